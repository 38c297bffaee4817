package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A rig is what every measurement needs: a folder on the checkout's file system, the binaries, and
// a pod's namespaces.
type rig struct {
	ctx       context.Context
	options   options
	dir       string
	runtime   string // the bare runtime
	crun      string // the second one; "": there is none
	wrapper   string // gpuledger-runtime
	cli       string // gpuledger
	daemon    string // gpuledgerd
	peer      string // nvidia-container-runtime; "": the node at scale is measured, without it
	tree      string // the directory in which they are installed
	pod       *exec.Cmd
	cgroup    string
	limits    bool            // the specs may carry cpu, memory and pids limits
	live      map[string]bool // runtime roots that may hold the container
	mounted   []string        // root file systems in their bundles
	loadStart string
	ends      []func() // ends what was started beside that, the last first
}

// containerID is the id of every container. Each contestant has a runtime root of its own.
const containerID = "bench"

func newRig(ctx context.Context, o options) (*rig, error) {
	if _, err := os.Stat("go.mod"); err != nil {
		return nil, fmt.Errorf("cannot find go.mod: start bench from the checkout (make bench)")
	}
	r := &rig{ctx: ctx, options: o, live: map[string]bool{}, loadStart: loadAverage()}
	r.cgroup = fmt.Sprintf("gpuledger-bench-%d", os.Getpid())
	var err error
	for _, binary := range []struct {
		path *string
		name string
	}{{&r.wrapper, "gpuledger-runtime"}, {&r.cli, "gpuledger"}, {&r.daemon, "gpuledgerd"},
		{&r.peer, "peers/nvidia-container-runtime"}} {
		if o.only == scaleName && binary.path == &r.peer {
			continue
		}
		if *binary.path, err = absolute(o, binary.name); err != nil {
			return nil, err
		}
	}
	if r.runtime, err = exec.LookPath(o.runtime); err != nil {
		return nil, fmt.Errorf("cannot find the bare runtime: %w", err)
	}
	r.crun, _ = exec.LookPath("crun")
	if err := os.MkdirAll(".cache", 0o755); err != nil {
		return nil, err
	}
	cache, err := filepath.Abs(".cache")
	if err != nil {
		return nil, err
	}
	if r.dir, err = os.MkdirTemp(cache, "bench-"+os.Getenv(machineVar)); err != nil {
		return nil, err
	}
	r.limits = canLimit()
	if err := errors.Join(r.install(), r.mountRun(), r.startPod(), r.writePodFiles()); err != nil {
		return nil, errors.Join(err, r.clean())
	}
	return r, nil
}

// mountRun mounts a tmpfs for what is under /run on a real node: bindings, the runtimes' state, the
// engines' bundles. Root file systems are on another tmpfs, as an engine's are file systems of
// their own. The ledger stays on the checkout's file system. With -disk everything stays there.
func (r *rig) mountRun() error {
	for _, dir := range []string{r.path("run"), r.path("run/rootfs")} {
		if err := os.Mkdir(dir, 0o700); err != nil || r.options.disk {
			return err
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV,
			"mode=700"); err != nil {
			return fmt.Errorf("cannot mount a tmpfs: %w", err)
		}
	}
	r.mounted = append(r.mounted, r.path("run/rootfs"))
	return nil
}

// canLimit reports whether specs may carry limits. On a hybrid machine seen as v2 only, the v2 tree
// has no controllers for them.
func canLimit() bool {
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	return err != nil || strings.Contains(string(controllers), "memory")
}

// startPod starts the process whose namespaces the containers join, as a kubelet's containers join
// the sandbox's. A new network namespace for each create would take longer, and vary more, than
// everything that is measured here.
func (r *rig) startPod() error {
	r.pod = exec.Command("sleep", "3600") // it ends by itself even if we are killed
	r.pod.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	if err := r.pod.Start(); err != nil {
		r.pod = nil
		return fmt.Errorf("cannot start the pod's process: %w", err)
	}
	return nil
}

func (r *rig) path(elements ...string) string {
	return filepath.Join(append([]string{r.dir}, elements...)...)
}

// command is a process with the environment that an engine gives: the engine's own, and what the
// contestant needs.
func (r *rig) command(env []string, argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8"}, env...)
	cmd.Dir = r.dir
	return cmd
}

// creating is a contestant that creates a container of the bundle, and kills and deletes it again
// as engines do. The runtime root is named after it.
func (r *rig) creating(name, runtime, bundle string, env []string) contestant {
	root := r.path("run/roots", strings.ReplaceAll(name, " ", "-"))
	return contestant{
		name: name,
		command: func() *exec.Cmd {
			r.live[root] = true
			return r.command(env, runtime, "--root", root, "create", "--bundle", bundle, containerID)
		},
		after: func() error {
			err := r.run(r.command(env, runtime, "--root", root, "kill", containerID, "KILL"))
			for range 100 { // a killed process takes a moment to be gone, and delete does not wait for it
				if err == nil {
					err = r.run(r.command(env, runtime, "--root", root, "delete", containerID))
				}
				if err == nil {
					delete(r.live, root)
					return nil
				}
				if !strings.Contains(err.Error(), "not stopped") {
					break
				}
				err = nil
				time.Sleep(2 * time.Millisecond)
			}
			return err
		},
	}
}

// bundle makes a bundle as containerd does: config.json under run, with a root file system of its
// own, which is mounted there. Its files are under run, too: ext4 takes longer with each round to
// make files where others have just been removed.
func (r *rig) bundle(name string, spec *specs.Spec, more ...func(*specs.Spec) error) (string, error) {
	files, dir := r.path("run/rootfs", name), r.path("run/bundles", name)
	spec.Root.Path = filepath.Join(dir, "rootfs")
	if err := errors.Join(writeRootfs(files), os.MkdirAll(dir, 0o700),
		os.Mkdir(spec.Root.Path, 0o755)); err != nil {
		return "", err
	}
	if err := syscall.Mount(files, spec.Root.Path, "", syscall.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("cannot mount a root file system: %w", err)
	}
	r.mounted = append(r.mounted, spec.Root.Path)
	for _, change := range more {
		if err := change(spec); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
}

// clean removes all files, also after a failure. It never follows a mount. The folder is on one
// file system, and a container's mounts were in a namespace that is gone.
func (r *rig) clean() error {
	for _, end := range slices.Backward(r.ends) {
		end()
	}
	for root := range r.live {
		_ = r.command(nil, r.runtime, "--root", root, "delete", "--force", containerID).Run()
	}
	if r.pod != nil {
		_ = r.pod.Process.Kill()
		_ = r.pod.Wait()
	}
	if err := r.removeCgroups(); err != nil {
		return err
	}
	for _, mount := range r.mounted {
		_ = syscall.Unmount(mount, syscall.MNT_DETACH)
	}
	if !r.options.disk {
		_ = syscall.Unmount(r.path("run"), syscall.MNT_DETACH)
	}
	return exec.Command("rm", "-rf", "--one-file-system", r.dir, r.tree).Run()
}

func (r *rig) removeCgroups() error {
	patterns := []string{"/sys/fs/cgroup/" + r.cgroup, "/sys/fs/cgroup/*/" + r.cgroup}
	var last error
	for range 50 {
		last = nil
		for _, pattern := range patterns {
			groups, _ := filepath.Glob(pattern)
			for _, group := range groups {
				leaves, _ := filepath.Glob(group + "/*/cgroup.procs")
				for _, leaf := range leaves {
					_ = os.Remove(filepath.Dir(leaf))
				}
				if err := removeCgroup(group); err != nil {
					last = fmt.Errorf("cannot remove a cgroup: %w", err)
				}
			}
		}
		if last == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond) // a cgroup stays busy for a moment after its last process
	}
	return last
}

// removeCgroup removes an empty cgroup, or the plain files that crun writes where no cgroup file
// system is (test/rig/cgroup1.sh).
func removeCgroup(dir string) error {
	if fileSystem(dir) == "tmpfs" {
		return os.RemoveAll(dir)
	}
	return os.Remove(dir)
}
