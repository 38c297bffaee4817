package campaign

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// command is one program of a container's life, by the step that it is.
type command struct {
	step step
	cmd  *exec.Cmd
}

// step is a program of a life that can be killed.
type step string

const (
	toGrant   step = "grant"
	toCreate  step = "create"
	toStart   step = "start"
	toExec    step = "exec"
	toDelete  step = "delete"
	toRelease step = "release"
)

// engine is a way in which containers are made. dying, if not empty, is the mark at which
// gpuledger's part of the create or delete kills itself.
type engine struct {
	name    string
	workers int
	view    func(*node) *rig.Node
	asks    bool // containers may ask for a share
	creates func(s *slot, w wish, dying string) []command
	execs   func(s *slot, args ...string) *exec.Cmd
	deletes func(s *slot, dying string) []command
	clears  func(s *slot) // whatever a killed program has left
}

// engines have 16 workers.
var engines = []engine{
	wrapped("runc", 6, func(n *node) *rig.Node { return n.Node }),
	wrapped("crun", 5, func(n *node) *rig.Node { return n.crun }),
	hooked, throughContainerd, throughPodman,
}

// wrapped calls gpuledger-runtime as an engine does.
func wrapped(name string, workers int, view func(*node) *rig.Node) engine {
	return engine{name: name, workers: workers, view: view, asks: true,
		creates: func(s *slot, w wish, dying string) []command {
			s.bundle = s.node.bundle(view(s.node), s.id, w.edits()...)
			n := at(view(s.node), dying)
			return []command{{toCreate, n.Wrapper("create", "--bundle", s.bundle.Dir, s.id)},
				{toStart, n.Wrapper("start", s.id)}}
		},
		execs: func(s *slot, args ...string) *exec.Cmd {
			return view(s.node).Wrapper(append([]string{"exec", s.id}, args...)...)
		},
		deletes: func(s *slot, dying string) []command {
			return []command{{toDelete, at(view(s.node), dying).Wrapper("delete", "--force", s.id)}}
		},
		clears: func(s *slot) {
			_ = rig.Run(view(s.node).Wrapper("delete", "--force", s.id))
			s.bundle.End()
		}}
}

// at is the node, or with a mark the one whose programs kill themselves there.
func at(n *rig.Node, dying string) *rig.Node {
	if dying == "" {
		return n
	}
	return n.Dying(dying)
}

// hooked is the bare runc, which calls the hook.
var hooked = engine{name: "hook", workers: 2, view: func(n *node) *rig.Node { return n.Node }, asks: true,
	creates: func(s *slot, w wish, dying string) []command {
		edits := append(w.edits(), at(s.node.Node, dying).Hooked)
		s.bundle = s.node.bundle(s.node.Node, s.id, edits...)
		return []command{{toCreate, s.node.Real("create", "--bundle", s.bundle.Dir, s.id)},
			{toStart, s.node.Real("start", s.id)}}
	},
	execs: func(s *slot, args ...string) *exec.Cmd {
		return s.node.Real(append([]string{"exec", s.id}, args...)...)
	},
	deletes: func(s *slot, _ string) []command {
		return []command{{toDelete, s.node.Real("delete", "--force", s.id)}}
	},
	clears: func(s *slot) { s.bundle.End() }}

// throughContainerd has gpuledger-runtime as the runtime of containerd's shim. Each container has
// an id of its own: a shim that is killed at its start leaves a directory that containerd keeps.
var throughContainerd = engine{name: "containerd", workers: 2, asks: true,
	view: func(n *node) *rig.Node { return n.Node },
	creates: func(s *slot, w wish, _ string) []command {
		s.bundle = s.node.bundle(s.node.Node, s.id)
		s.made++
		s.bundle.ID = fmt.Sprintf("%s-%d", s.id, s.made)
		args := []string{"run", "--detach", "--rootfs", "--runc-binary",
			rig.Binary(s.node.T, "gpuledger-runtime", s.node.Tags...), "--cgroup", s.bundle.CgroupPath(),
			"--mount", "type=bind,src=" + s.node.bookOf(s.id) + ",dst=/run/fakedriver,options=bind:rw"}
		for key, value := range w.annotations {
			args = append(args, "--annotation", key+"="+value)
		}
		for _, entry := range w.env {
			args = append(args, "--env", entry)
		}
		args = append(args, filepath.Join(s.bundle.Dir, "rootfs"), s.bundle.ID, "/bin/busybox", "sh", "-c",
			script(w))
		return []command{{toCreate, s.node.ctr.Command(args...)}}
	},
	execs: func(s *slot, args ...string) *exec.Cmd {
		id := "e" + time.Now().Format("150405.000000")
		return s.node.ctr.Command(append([]string{"task", "exec", "--exec-id", id, s.bundle.ID}, args...)...)
	},
	deletes: func(s *slot, _ string) []command {
		return []command{{toDelete, s.node.ctr.Command("task", "rm", "--force", s.bundle.ID)},
			{toDelete, s.node.ctr.Command("containers", "rm", s.bundle.ID)}}
	},
	clears: func(s *slot) {
		for range 600 {
			_ = rig.Run(s.node.ctr.Command("task", "rm", "--force", s.bundle.ID))
			r := rig.Run(s.node.ctr.Command("containers", "rm", s.bundle.ID))
			if (r.Code == 0 || strings.Contains(r.Stderr, "not found")) && s.bundle.RemoveCgroups() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}}

// throughPodman is Podman, which calls the hook.
var throughPodman = engine{name: "podman", workers: 1, view: func(n *node) *rig.Node { return n.podman },
	creates: func(s *slot, w wish, _ string) []command {
		s.bundle = s.node.bundle(s.node.podman, s.id)
		cid := s.cidFile()
		_ = os.Remove(cid)
		args := []string{"run", "--detach", "--name", s.id, "--cidfile", cid, "--network", "none",
			"--cgroup-parent", filepath.Dir(s.bundle.CgroupPath()), "--volume",
			s.node.bookOf(s.id) + ":/run/fakedriver"}
		for key, value := range w.annotations {
			args = append(args, "--annotation", key+"="+value)
		}
		for _, entry := range w.env {
			args = append(args, "--env", entry)
		}
		args = append(args, "--rootfs", filepath.Join(s.bundle.Dir, "rootfs"), "/bin/busybox", "sh", "-c",
			script(w))
		return []command{{toCreate, s.podman(args...)}}
	},
	execs: func(s *slot, args ...string) *exec.Cmd {
		return s.podman(append([]string{"exec", s.id}, args...)...)
	},
	deletes: func(s *slot, _ string) []command {
		return []command{{toDelete, s.podman("rm", "--force", "--time", "0", s.id)}}
	},
	clears: func(s *slot) {
		for range 600 {
			if r := rig.Run(s.podman("rm", "--force", "--ignore", "--time", "0", s.id)); r.Code == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		for tries := 0; tries < 3000 && !s.cgroups().RemoveCgroups(); tries++ {
			time.Sleep(20 * time.Millisecond)
		}
	}}

func (s *slot) podman(args ...string) *exec.Cmd { return s.node.podman.Podman(s.node.hooks, args...) }

func (s *slot) cidFile() string { return filepath.Join(s.node.Dir, s.id+".cid") }

// commandOf is gpuledger on a node.
func commandOf(n *rig.Node, args ...string) *exec.Cmd {
	return n.Command(rig.Binary(n.T, "gpuledger", n.Tags...), args...)
}
