package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	gpunode "github.com/gpuledger/gpuledger/internal/node"

	"golang.org/x/sys/unix"
)

// scaleName is what -only says for the node at scale. A run without -only leaves it out: it takes
// some minutes, and compares with no other wrapper.
const scaleName = "scale"

// A scaleSize is how much is on the node.
type scaleSize struct {
	Grants     int `json:"grants"`
	Containers int `json:"containers"` // each with a grant and perContainer processes on a GPU
	Others     int `json:"others"`     // processes that use no GPU
	Mounts     int `json:"mounts"`
}

// wholeNode is the largest size; scaleGPUs, perContainer and atOnceCreates are the same in all.
var wholeNode = scaleSize{Grants: 1000, Containers: 500, Others: 10000, Mounts: 5000}

const (
	scaleGPUs     = 16
	perContainer  = 2
	atOnceCreates = 64
)

// part is the whole divided by a number.
func (s scaleSize) part(divisor int) scaleSize {
	return scaleSize{s.Grants / divisor, s.Containers / divisor, s.Others / divisor, s.Mounts / divisor}
}

func (s scaleSize) String() string {
	return fmt.Sprintf("%d grants, %d containers, %d other processes, %d mounts", s.Grants, s.Containers,
		s.Others, s.Mounts)
}

// A scaleNode is a node that grows.
type scaleNode struct {
	*node
	admitting  *node // the same ledger; its real runtime is true(1)
	size       scaleSize
	root       string   // the runtime's state
	rootfs     string   // one for all containers
	references []string // of grants, the first ones of containers
	use        gpuUse
	burst      []string // references for the containers that are created at once
}

// scale measures the node at a tenth, a third and the whole of its size.
func (r *rig) scale() (ScaleReport, error) {
	report := ScaleReport{Machine: r.machine()}
	n, err := r.newScaleNode()
	if err != nil {
		return report, err
	}
	for _, word := range strings.Split(r.options.parts, ",") {
		divisor, err := strconv.Atoi(word)
		if err != nil || divisor < 1 {
			return report, fmt.Errorf("cannot understand -parts %q: want divisors as 10,3,1", r.options.parts)
		}
		if err := n.grow(wholeNode.part(divisor)); err != nil {
			return report, fmt.Errorf("the node does not grow: %w", err)
		}
		at, err := n.measure()
		report.Sizes = append(report.Sizes, at)
		if err != nil {
			return report, err
		}
	}
	report.Machine.LoadAfter = loadAverage()
	return report, nil
}

func (r *rig) newScaleNode() (*scaleNode, error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	gpus := []string{"--gpus", strconv.Itoa(scaleGPUs), "--memory", "81920MiB"}
	more := "[daemon]\nlisten = \"127.0.0.1:0\"\n"
	n := &scaleNode{root: r.path("run/roots", scaleName), rootfs: r.path("run/rootfs", scaleName)}
	if n.node, err = r.newNodeOf(scaleName, r.runtime, gpus, more); err != nil {
		return nil, err
	}
	config := r.path("nodes", scaleName, "config.toml")
	text := strings.Replace(readFile(config), strconv.Quote(r.runtime), strconv.Quote(nothing), 1)
	admits := r.path("nodes", scaleName, "admits.toml")
	n.admitting = &node{rig: r, env: []string{"GPULEDGER_CONFIG=" + admits}}
	n.use = gpuUse{path: r.path("nodes", scaleName, "gpus.json")}
	r.ends = append(r.ends, n.stopAll)
	return n, errors.Join(os.WriteFile(admits, []byte(text), 0o644), writeRootfs(n.rootfs))
}

// grow adds to the node until it has a size.
func (n *scaleNode) grow(to scaleSize) error {
	progress("the node grows to %s", to)
	if err := n.addMounts(n.size.Mounts, to.Mounts); err != nil {
		return err
	}
	if err := n.rig.addSleepers(to.Others - n.size.Others); err != nil {
		return err
	}
	if err := n.addGrants(n.size.Grants, to.Grants); err != nil {
		return err
	}
	for first := n.size.Containers; first < to.Containers; first += atOnceCreates {
		var batch []*container
		for i := first; i < min(first+atOnceCreates, to.Containers); i++ {
			c, err := n.container(fmt.Sprintf("%064x", i), n.references[i])
			if err != nil {
				return err
			}
			batch = append(batch, c)
		}
		if _, err := n.together(batch, (*container).create); err != nil {
			return err
		}
		if _, err := n.together(batch, (*container).start); err != nil {
			return err
		}
		for i, c := range batch {
			if err := n.use.add(c, (first+i)%scaleGPUs); err != nil {
				return err
			}
		}
	}
	n.size = to
	return n.use.write()
}

// addGrants makes grants with one writing of the ledger. One after another would take minutes.
func (n *scaleNode) addGrants(from, to int) error {
	var asks []admission.Ask
	for i := from; i < to; i++ {
		asks = append(asks, admission.Ask{Memory: 256 * grant.MiB, Mode: grant.Limit, Owner: grant.Bearer,
			Names: []string{strconv.Itoa(i % scaleGPUs)}, Source: "cli"})
	}
	opened := gpunode.Open(n.rig.path("nodes", scaleName, "config.toml"), host.Default())
	for _, made := range grants.EnterAll(opened, asks, nil) {
		if made.Err != nil {
			return made.Err
		}
		n.references = append(n.references, made.Reference.String())
	}
	return nil
}

// addMounts mounts a tmpfs and a directory of another one in turn, as a kubelet does for secrets
// and for volumes.
func (n *scaleNode) addMounts(from, to int) error {
	for i := from; i < to; i++ {
		point := n.rig.path("run/mounts", strconv.Itoa(i))
		if err := os.MkdirAll(point, 0o700); err != nil {
			return err
		}
		if err := mountOne(i, n.rootfs, point); err != nil {
			return fmt.Errorf("cannot mount %s: %w", point, err)
		}
	}
	return nil
}

// addSleepers starts processes that sleep until standard input ends, which it does with this
// program.
func (r *rig) addSleepers(count int) error {
	if count <= 0 {
		return nil
	}
	program, err := absolute(r.options, "sleepers")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, strconv.Itoa(count))
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	r.ends = append(r.ends, func() { _, _ = in.Close(), cmd.Wait() })
	if _, err := out.Read(make([]byte, 16)); err != nil {
		return errors.New("the sleeping processes did not start")
	}
	return nil
}

// A container is one of the node's.
type container struct {
	node            *scaleNode
	id, bundle, pid string // pid: a file
	bare            bool   // created by the bare runtime
}

// container writes a bundle that asks for a grant; for none with the reference "".
func (n *scaleNode) container(id, reference string) (*container, error) {
	spec := n.rig.spec()
	spec.Root.Path = n.rootfs
	spec.Linux.CgroupsPath = "/" + n.rig.cgroup + "/" + id
	spec.Process.Args = []string{"/bin/sh", "-c", strings.Repeat("sleep 7200 & ", perContainer-1) +
		"exec sleep 7200"}
	if reference != "" {
		spec.Annotations["gpuledger.dev/grant"] = reference
	}
	c := &container{node: n, id: id, bundle: n.rig.path("run/bundles", id)}
	c.pid = filepath.Join(c.bundle, "pid")
	data, err := json.Marshal(spec)
	return c, errors.Join(err, os.MkdirAll(c.bundle, 0o700),
		os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o644))
}

func (c *container) command(args ...string) *exec.Cmd {
	r := c.node.rig
	program := r.wrapper
	if c.bare {
		program = r.runtime
	}
	return r.command(c.node.env, append([]string{program, "--root", c.node.root}, args...)...)
}

func (c *container) create() *exec.Cmd {
	return c.command("create", "--bundle", c.bundle, "--pid-file", c.pid, c.id)
}
func (c *container) start() *exec.Cmd  { return c.command("start", c.id) }
func (c *container) delete() *exec.Cmd { return c.command("delete", "--force", c.id) }

// together runs a command of each container at the same time.
func (n *scaleNode) together(all []*container, of func(*container) *exec.Cmd) ([]callCost, error) {
	costs, failures := make([]callCost, len(all)), make(chan error, len(all))
	for i, c := range all {
		go func() {
			var err error
			costs[i], err = n.rig.cost(of(c))
			failures <- err
		}()
	}
	var failed error
	for range all {
		if err := <-failures; err != nil && failed == nil {
			failed = err
		}
	}
	if failed == nil && n.rig.ctx.Err() != nil {
		failed = errors.New("interrupted")
	}
	return costs, failed
}

// stopAll ends the first processes of all containers that were created, and with each the others of
// its pid namespace.
func (n *scaleNode) stopAll() {
	files, _ := filepath.Glob(n.rig.path("run/bundles", "*", "pid"))
	for _, file := range files {
		if pid, err := strconv.Atoi(readFile(file)); err == nil {
			killInit(pid)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for _, file := range files {
		pid, err := strconv.Atoi(readFile(file))
		for err == nil && !isOver(pid) && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// isOver reports whether a process has ended, reaped or not.
func isOver(pid int) bool {
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
