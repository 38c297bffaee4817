//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// seenContainer is a container of a storm as the real runtime got it.
type seenContainer struct {
	id, pod, name string
	gpus          []int
}

// memoryOfGPU is what each GPU of the rig's node has.
const memoryOfGPU = 16160 * grant.MiB

// watch compares, again and again, the ledger with what living containers reach, by their processes
// and by the spec that the real runtime got. end returns the number of comparisons. It fails the
// test for each state that must never occur.
func (s *storm) watch() (end func() (looks int)) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	wrong, looks, withGPU := map[string]bool{}, 0, 0
	known := map[string]*seenContainer{}
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			live := s.alive(known)
			grants, ok := s.grantsNow()
			still := s.alive(known) // those in both lists lived all the time between
			live = slices.DeleteFunc(live, func(c *seenContainer) bool { return !slices.Contains(still, c) })
			looks++
			withGPU = max(withGPU, len(live))
			for _, what := range append(s.collisions(live), overdrawn(grants)...) {
				wrong[what] = true
			}
			if ok {
				for _, what := range ungranted(live, grants) {
					wrong[what] = true
				}
			}
		}
	}()
	return func() int {
		close(stop)
		<-stopped
		for what := range wrong {
			s.T.Errorf("seen while the storm was on: %s", what)
		}
		if looks == 0 || withGPU < 2 {
			s.T.Errorf("the watch has compared %d times, and has seen %d containers with GPUs at once: that "+
				"shows nothing", looks, withGPU)
		}
		return looks
	}
}

// grantsNow is Grants for a goroutine.
func (s *storm) grantsNow() (grants []rig.Listed, ok bool) {
	r := rig.Run(s.Command("../../bin/gpuledger", "grants", "--json"))
	var out struct{ Grants []rig.Listed }
	ok = r.Code == 0 && json.Unmarshal([]byte(r.Stdout), &out) == nil
	return out.Grants, ok
}

// alive are the containers with GPUs that have a process.
func (s *storm) alive(known map[string]*seenContainer) (live []*seenContainer) {
	ids := map[string]bool{}
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if id := containerOf(line); id != "" && !ids[id] && !ended(filepath.Dir(file)) {
				ids[id] = true
			}
		}
	}
	for id := range ids {
		c, found := known[id]
		if !found {
			if c = s.container(id); c == nil {
				continue // not written yet, or not of the storm
			}
			known[id] = c
		}
		if len(c.gpus) > 0 {
			live = append(live, c)
		}
	}
	return live
}

// ended reports whether a process has ended. Its cgroup file still names its cgroup then.
func ended(proc string) bool {
	stat, err := os.ReadFile(proc + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// containerOf is the container's id in a line of /proc/PID/cgroup: the last part of the path,
// behind a prefix in some engines. The cgroup of CRI-O's conmon, crio-conmon-ID, is not the
// container's: conmon lives on for a moment after the container.
func containerOf(line string) string {
	id := strings.TrimSuffix(filepath.Base(strings.TrimSpace(line)), ".scope")
	if strings.HasPrefix(id, "crio-conmon-") {
		return ""
	}
	if i := strings.LastIndex(id, "-"); i >= 0 {
		id = id[i+1:]
	}
	if len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// container reads what the real runtime got; nil if it has got nothing yet.
func (s *storm) container(id string) *seenContainer {
	_, after := s.seen(id)
	var spec specs.Spec
	if json.Unmarshal(after, &spec) != nil {
		return nil
	}
	c := &seenContainer{id: id}
	for _, keys := range [][2]string{{"io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"},
		{"io.kubernetes.pod.name", "io.kubernetes.container.name"}} {
		if spec.Annotations[keys[0]] != "" {
			c.pod, c.name = strings.TrimSuffix(spec.Annotations[keys[0]], "-"+clusterNode),
				spec.Annotations[keys[1]]
		}
	}
	if spec.Linux != nil {
		for _, d := range spec.Linux.Devices {
			var gpu int
			if n, _ := fmt.Sscanf(d.Path, "/dev/nvidia%d", &gpu); n == 1 {
				c.gpus = append(c.gpus, gpu)
			}
		}
	}
	return c
}

// collisions are conflicts on a GPU between containers that live at once, by what their pods
// requested.
func (s *storm) collisions(live []*seenContainer) (wrong []string) {
	type use struct {
		mode   grant.Mode
		memory map[string]grant.Bytes // by holder
	}
	uses := map[int]*use{}
	for _, c := range live {
		p := s.podKindOf(c.pod)
		if p == nil {
			wrong = append(wrong,
				fmt.Sprintf("container %s of pod %s reaches the GPUs %v and is none of the storm's", c.name,
					c.pod, c.gpus))
			continue
		}
		if len(c.gpus) != p.gpus {
			wrong = append(wrong, fmt.Sprintf("container %s of pod %s reaches the GPUs %v, and requested %d",
				c.name, c.pod, c.gpus, p.gpus))
		}
		holder, memory := p.asks(c.pod, c.name)
		for _, gpu := range c.gpus {
			u := uses[gpu]
			if u == nil {
				u = &use{p.mode, map[string]grant.Bytes{}}
				uses[gpu] = u
			}
			u.memory[holder] = memory
			if u.mode != p.mode {
				wrong = append(wrong, fmt.Sprintf("GPU %d is in mode %s and, for pod %s, in mode %s", gpu,
					u.mode, c.pod, p.mode))
			}
		}
	}
	for gpu, u := range uses {
		var sum grant.Bytes
		for _, m := range u.memory {
			sum += m
		}
		if sum > memoryOfGPU || u.mode == grant.Exclusive && len(u.memory) > 1 {
			wrong = append(wrong, fmt.Sprintf("GPU %d is given out twice: %v in mode %s", gpu,
				u.memory, u.mode))
		}
	}
	return wrong
}

// overdrawn are states that a ledger must never have.
func overdrawn(grants []rig.Listed) (wrong []string) {
	type shares struct {
		sum   grant.Bytes
		modes []grant.Mode
	}
	byGPU, owners := map[string]*shares{}, map[grant.Owner]bool{}
	for _, g := range grants {
		if strings.HasPrefix(string(g.Owner), "claim:") {
			if owners[g.Owner] {
				wrong = append(wrong, fmt.Sprintf("%s has two grants", g.Owner))
			}
			owners[g.Owner] = true
		}
		for _, share := range g.GPUs {
			b := byGPU[share.UUID]
			if b == nil {
				b = &shares{}
				byGPU[share.UUID] = b
			}
			b.sum += share.Memory
			b.modes = append(b.modes, g.Mode)
		}
	}
	for uuid, b := range byGPU {
		slices.Sort(b.modes)
		modes := slices.Compact(slices.Clone(b.modes))
		if b.sum > memoryOfGPU || len(modes) > 1 || modes[0] == grant.Exclusive && len(b.modes) > 1 {
			wrong = append(wrong, fmt.Sprintf("the ledger has given out %s of GPU %s in the modes %v", b.sum,
				uuid, b.modes))
		}
	}
	return wrong
}

// ungranted are containers that lived before and after the ledger was read, and that the ledger did
// not know.
func ungranted(live []*seenContainer, grants []rig.Listed) (wrong []string) {
	for _, c := range live {
		n := 0
		for _, g := range grants {
			for _, b := range g.Bindings {
				if b.Container == c.id {
					n++
				}
			}
		}
		if n != 1 {
			wrong = append(wrong, fmt.Sprintf("container %s of pod %s reaches the GPUs %v and uses %d grants",
				c.name, c.pod, c.gpus, n))
		}
	}
	return wrong
}
