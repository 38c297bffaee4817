package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestMPSOutlivesUpgrades: gpuledgerd is upgraded, downgraded and upgraded again under 20 clients
// in containers, to and from the oldest version that ran MPS daemons. No client is disturbed, every
// daemon and server remains the same process, and each version reads and changes the other's
// grants, bindings and daemons.
func TestMPSOutlivesUpgrades(t *testing.T) {
	rig.More(t)
	bin := oldest(t)
	now := newMPSNode(t, rig.Setup{Memory: "40GiB"})
	was := mpsNode{Node: now.Of(bin), t: t, program: now.program}
	var clients []*rig.Bundle
	var grants []grant.Reference
	var d *rig.Daemon
	processes := ""
	for i, step := range []struct {
		name string
		n    mpsNode
		end  syscall.Signal // of the gpuledgerd before it
	}{
		{"the older version", was, 0},
		{"upgraded", now, syscall.SIGTERM}, // as systemd does
		{"downgraded", was, syscall.SIGTERM},
		{"upgraded after a crash", now, syscall.SIGKILL},
		{"downgraded after a crash", was, syscall.SIGKILL},
	} {
		n := step.n
		if d != nil {
			d.End(step.end)
			n.forget()
		}
		d = n.Daemon("--nri", "off")
		for range 4 {
			grants = append(grants, n.Grant("--mode", "mps", "--memory", "1GiB", "--compute", "5", "--gpu",
				fmt.Sprint(len(grants)%2)))
		}
		n.ready(2)
		for _, g := range grants[len(clients):] {
			clients = append(clients, n.talks(fmt.Sprintf("c%d", len(clients)), g))
		}
		if i > 0 { // a grant of the other version's, with a client of its, grows
			// by whole GiB: the first versions do not know how a daemon prints others
			size := grant.Bytes(1+i) * grant.GiB
			n.Must("grant", "--update", string(grants[4*i-1].ID), "--memory", size.String())
			eventually(t, "the daemons have it", func() bool { return n.largest() == size })
		}
		if these := n.processes(); processes == "" {
			processes = these
		} else if these != processes {
			t.Errorf("%s: the daemons are\n%s, and were\n%s", step.name, these, processes)
		}
		stillTalk(t, step.name, clients)
		if a, b := now.Grants(), was.Grants(); len(a) != len(grants) || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: this version lists\n%+v, the older\n%+v", step.name, a, b)
		}
		for _, g := range now.Grants() {
			if g.State != grant.Bound || len(g.Bindings) != 1 {
				t.Errorf("%s: %+v", step.name, g)
			}
		}
		n.CheckSound(step.name)
	}
	if len(clients) != 20 {
		t.Errorf("%d clients", len(clients))
	}
	for i, b := range clients {
		b.End()
		now.Must("release", string(grants[i].ID))
	}
	now.gone()
}

// oldest builds the oldest version of gpuledger that supervises MPS daemons, from the history of
// this checkout, and gives the directory of its binaries.
func oldest(t *testing.T) string {
	t.Helper()
	rig.Need(t, "git", "tar")
	const misses = "this checkout has no history (%s): that MPS clients outlive an upgrade from, and a " +
		"downgrade to, another version is not shown"
	git := func(args ...string) string {
		// another user's, under sudo
		out, err := exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", ".."},
			args...)...).Output()
		if err != nil {
			t.Skipf(misses, err)
		}
		return strings.TrimSpace(string(out))
	}
	if git("rev-parse", "--is-shallow-repository") != "false" {
		t.Skipf(misses, "it is a shallow clone")
	}
	// launcher.go had this name then
	commits := strings.Fields(git("log", "--diff-filter=A", "--format=%H", "--", "internal/mps/launch.go"))
	if len(commits) == 0 {
		t.Skipf(misses, "nothing in it added internal/mps")
	}
	commit := commits[len(commits)-1]
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	git("archive", "--output", archive, commit)
	source, bin := filepath.Join(dir, "source"), filepath.Join(dir, "bin")
	must(t, os.MkdirAll(source, 0o755))
	if out, err := exec.Command("tar", "-xf", archive, "-C", source).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	for _, name := range []string{"gpuledger", "gpuledger-runtime", "gpuledgerd"} {
		build := exec.Command("go", "build", "-p", "2", "-trimpath", "-buildvcs=false", "-o",
			filepath.Join(bin, name), "./cmd/"+name)
		build.Dir, build.Env = source, append(os.Environ(), "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
		if name != "gpuledger" {
			build.Env = append(build.Env, "CGO_ENABLED=0")
		}
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("cannot build %s of %s: %v\n%s", name, commit, err, out)
		}
		if read(t, filepath.Join(bin, name)) == read(t, rig.Binary(t, name)) {
			t.Fatalf("%s of %s is no other program than this version's", name, commit)
		}
	}
	return bin
}

// talks starts a client whose server answers again and again.
func (n mpsNode) talks(id string, r grant.Reference) *rig.Bundle {
	n.t.Helper()
	b := starts(n.t, n.client(id, r, "0:64 talk >/tmp/out 2>&1; echo end >>/tmp/out; "+
		"/bin/busybox sleep 1000"))
	eventually(n.t, id+" is a client", func() bool {
		return strings.Contains(clientOutput(b), "0:64 CUDA_SUCCESS\nbeat\n")
	})
	return b
}

// stillTalk wants one more answer for every client, and no end.
func stillTalk(t *testing.T, when string, clients []*rig.Bundle) {
	t.Helper()
	beats := func(b *rig.Bundle) int { return strings.Count(clientOutput(b), "beat\n") }
	for _, b := range clients {
		before := beats(b)
		eventually(t, when+": "+b.ID+" gets answers", func() bool {
			return beats(b) > before || strings.Contains(clientOutput(b), "end")
		})
		if strings.Contains(clientOutput(b), "end") || !rig.Lives(b.Init()) {
			t.Errorf("%s: %s is disturbed: %s", when, b.ID, clientOutput(b))
		}
	}
}

// forget removes the state files of an ended gpuledgerd's daemons: the next one writes them again
// after it has queried the daemons.
func (n mpsNode) forget() {
	n.t.Helper()
	files, _ := filepath.Glob(filepath.Join(n.Dir, "run/mps/*/state.json"))
	for _, file := range files {
		must(n.t, os.Remove(file))
	}
}

// processes are those of two daemons, once they are ready.
func (n mpsNode) processes() (text string) {
	n.t.Helper()
	for _, m := range n.ready(2) {
		text += fmt.Sprintln(m.GPUs, m.Daemon, m.Servers)
	}
	return text
}

// largest is the largest limit of the two daemons.
func (n mpsNode) largest() (most grant.Bytes) {
	n.t.Helper()
	for _, m := range n.ready(2) {
		for _, limit := range m.Limits {
			most = max(most, limit)
		}
	}
	return most
}
