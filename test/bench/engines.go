package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const engineImage = "localhost/peers:1"

// seen prints what a container has of the GPUs: the device nodes, whether it may open them (without
// a driver the kernel then has no such device), and the driver's files.
const seen = `for node in /dev/nvidia*; do
ls -l $node | { read -r mode _ _ _ major minor _; echo $node $mode $major $minor; }
(: <$node) 2>&1 | sed 's/.*: //'; done; ls /lib/x86_64-linux-gnu`

// An engine starts containers of engineImage with an OCI runtime.
type engine struct {
	name, runtime string
	// run is a command that runs a container to its end and removes it.
	run func(runtime string, options, command []string) *exec.Cmd
	// native are the options for the devices of the CDI file; granted those for a grant.
	native  []string
	granted func(reference string) []string
}

func podmanRuns(r *rig) ([]Row, error) {
	if r.crun == "" {
		return nil, errors.New("cannot find crun")
	}
	if _, err := r.image(); err != nil {
		return nil, err
	}
	return r.ran(engine{name: "podman", runtime: r.crun, native: []string{"--device", nativeName},
		run: func(runtime string, options, command []string) *exec.Cmd {
			argv := append([]string{"podman", "--runtime", runtime, "run", "--rm", "--network", "none"},
				options...)
			return r.command(nil, append(append(argv, engineImage), command...)...)
		},
		granted: func(reference string) []string {
			return []string{"--annotation", "gpuledger.dev/grant=" + reference}
		}})
}

const containerdConfig = `version = 3
oom_score = 0
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs"]
`

func containerdRuns(r *rig) ([]Row, error) {
	bin, err := filepath.Abs(filepath.Join(r.options.engines, "containerd-2"))
	if err != nil {
		return nil, err
	}
	archive, err := r.image()
	if err != nil {
		return nil, err
	}
	if err := writeEtc("containerd/config.toml", containerdConfig); err != nil {
		return nil, err
	}
	log, err := os.Create(r.path("containerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	daemon := r.command([]string{"PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin"}, bin+"/containerd")
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	defer func() { _, _ = daemon.Process.Kill(), daemon.Wait() }()
	ctr := bin + "/ctr"
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err = r.run(r.command(nil, ctr, "version")); err == nil {
			break
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("containerd does not answer: %w\n%s", err, readFile(log.Name()))
		}
	}
	if err := r.run(r.command(nil, ctr, "images", "import", archive)); err != nil {
		return nil, err
	}
	return r.ran(engine{name: "containerd", runtime: r.runtime, native: []string{"--device", nativeName},
		run: func(runtime string, options, command []string) *exec.Cmd {
			argv := append([]string{ctr, "run", "--rm", "--runc-binary", runtime}, options...)
			return r.command(nil, append(append(argv, engineImage, "peers"), command...)...)
		},
		granted: func(reference string) []string {
			return []string{"--annotation", "gpuledger.dev/grant=" + reference}
		}})
}

// ran compares whole containers of an engine, from the client's start to its end: without and with
// gpuledger-runtime, and with CDI of the engine's own and with a grant of the same devices.
func (r *rig) ran(e engine) ([]Row, error) {
	if _, _, _, err := r.withGrant(e.name + "-cdi"); err != nil {
		return nil, err
	}
	node, err := r.newDriverNode(e.name, e.runtime)
	if err != nil {
		return nil, err
	}
	if err := node.serves(e.name); err != nil {
		return nil, err
	}
	reference, err := node.grant("--memory", "8GiB", "--gpus", "2")
	if err != nil {
		return nil, err
	}
	all := []string{"--env", "NVIDIA_DRIVER_CAPABILITIES=all"}
	granted := append(e.granted(reference), all...)
	native := append(e.native, all...)
	if err := sameInside(e.run(e.runtime, native, []string{"/bin/sh", "-c", seen}),
		e.run(r.wrapper, granted, []string{"/bin/sh", "-c", seen})); err != nil {
		return nil, err
	}
	running := func(name, runtime string, options []string) contestant {
		return contestant{name: name, command: func() *exec.Cmd {
			return e.run(runtime, options, []string{"/bin/true"})
		}}
	}
	times, err := r.compare(r.options.pairs,
		running(e.name+" bare", e.runtime, nil), running(e.name+" ours", r.wrapper, nil),
		running(e.name+" CDI", e.runtime, native), running(e.name+" grant", r.wrapper, granted))
	if err != nil {
		return nil, err
	}
	what := e.name + " run over " + filepath.Base(e.runtime)
	gpus := what + ", 2 GPUs and the driver's files"
	return []Row{
		comparison(what+", no GPU", wrapperName, times[0], times[1]),
		comparison(gpus+"; base: its own CDI", wrapperName, times[2], times[3]),
		comparison(gpus+"; base: no GPU", "its own CDI", times[0], times[2]),
	}, nil
}

// serves makes this node the machine's, for containers of an engine.
func (n *node) serves(engine string) error {
	config := strings.TrimPrefix(n.env[0], "GPULEDGER_CONFIG=")
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	named := strings.Replace(string(text), `engine = "none"`, fmt.Sprintf("engine = %q", engine), 1)
	return errors.Join(os.WriteFile(config, []byte(named), 0o644), writeEtc("gpuledger/config.toml", named))
}

// sameInside checks that two containers have the same nodes, may open them, and have the same files
// of the driver.
func sameInside(withCDI, withGrant *exec.Cmd) error {
	var said [2]string
	for i, cmd := range []*exec.Cmd{withCDI, withGrant} {
		var complaint strings.Builder
		cmd.Stderr = &complaint
		output, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.String())
		}
		said[i] = string(output)
	}
	native, granted := strings.Split(said[0], "\n"), strings.Split(said[1], "\n")
	for i := range max(len(native), len(granted)) {
		if i >= len(native) || i >= len(granted) || native[i] != granted[i] {
			return fmt.Errorf("a container with CDI has\n%s\nwith a grant it has\n%s",
				strings.Join(native[min(i, len(native)):], "\n"),
				strings.Join(granted[min(i, len(granted)):], "\n"))
		}
	}
	for _, must := range []string{"/dev/nvidia1 ", "No such device", filepath.Base(driverMark)} {
		if !strings.Contains(said[0], must) {
			return fmt.Errorf("a container with CDI lacks %q:\n%s", must, said[0])
		}
	}
	return nil
}

func writeEtc(name, text string) error {
	path := filepath.Join("/etc", name)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// image configures Podman, gives it an image of busybox and of a loader, and returns the archive of
// that for others.
func (r *rig) image() (archive string, err error) {
	dir, layer := r.path("image"), r.path("image.tar")
	archive = r.path("image-archive.tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	if err := errors.Join(
		writeEtc("containers/containers.conf", "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", "+
			"\"nproc=1024:1024\"]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n"),
		writeEtc("containers/storage.conf", "[storage]\ndriver = \"overlay\"\n"+
			"runroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n"),
		writeEtc("containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`),
	); err != nil {
		return "", err
	}
	spec := &specs.Spec{Process: &specs.Process{}, Root: &specs.Root{Path: dir}}
	if err := errors.Join(writeRootfs(dir), withLoader(spec)); err != nil {
		return "", err
	}
	for _, applet := range []string{"true", "ls", "sed"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return "", err
		}
	}
	return archive, errors.Join(
		r.run(r.command(nil, "tar", "-C", dir, "-cf", layer, ".")),
		r.run(r.command(nil, "podman", "import", "--change", "ENV PATH=/bin", layer, engineImage)),
		r.run(r.command(nil, "podman", "save", "--format", "oci-archive", "--output", archive, engineImage)))
}

// engineVersions names the engines of -peers.
func (r *rig) engineVersions() string {
	hami := hamiNot + "; " + hamiHow
	if os.Getenv(hamiVar) != "" {
		hami = "the library that " + hamiVar + " names"
	}
	containerd := firstLine(filepath.Join(r.options.engines, "containerd-2/containerd"), "--version")
	return fmt.Sprintf("Engines: %s; %s. %s: %s.", firstLine("podman", "--version"),
		strings.TrimSpace(containerd), hamiName, hami)
}
