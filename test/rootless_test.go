package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/test/rig"
)

// A tenant is an unprivileged user of the node that can read its configuration and none of
// gpuledger's other files. It starts containers from its home directory.
type tenant struct {
	*rig.Node        // with the tenant's home as directory
	ledger, home     string
	wrapper, runtime string
	as               []string // what a command begins with
	id               int
	global           []string // options of the runtime
	inUserNamespace  bool     // the command's; else the container has one
}

const tenantID = 4711

func newTenant(t *testing.T, n *rig.Node, as ...string) tenant {
	rig.Need(t, "setpriv", "unshare", "bash")
	n.HideRun()
	const dir = "/run/tenant"
	u := tenant{Node: new(rig.Node), ledger: n.Dir, home: dir + "/home", wrapper: dir + "/gpuledger-runtime",
		runtime: n.Runtime, as: as, id: tenantID}
	*u.Node = *n
	u.Dir, u.Config = u.home, dir+"/config.toml"
	must(t, os.MkdirAll(u.home+"/runtime", 0o755), os.WriteFile(u.wrapper,
		[]byte(read(t, rig.Binary(t, "gpuledger-runtime"))), 0o755),
		syscall.Mknod(dir+"/gpu", syscall.S_IFCHR|0o666, 195<<8), os.Chmod(dir+"/gpu", 0o666))
	for file, line := range map[string]string{"/etc/passwd": "tenant:x:4711:4711::" + u.home + ":/bin/sh\n",
		"/etc/group":  "tenant:x:4711:\n",
		"/etc/subuid": "tenant:200000:65536\n", "/etc/subgid": "tenant:200000:65536\n"} {
		had, _ := os.ReadFile(file)
		must(t, os.WriteFile(dir+"/"+filepath.Base(file), append(had, line...), 0o644))
		rig.Mount(t, dir+"/"+filepath.Base(file), file, "", syscall.MS_BIND, "")
	}
	u.configure("")
	return u
}

// configure gives it the node's configuration with more TOML at its end.
func (u tenant) configure(more string) {
	must(u.T, os.WriteFile(u.Config, []byte(read(u.T.(*testing.T), filepath.Join(u.ledger, "config.toml"))+
		more), 0o644))
}

// own makes the tenant the owner of its home.
func (u tenant) own() {
	must(u.T, filepath.WalkDir(u.home, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, u.id, u.id)
	}))
}

// bundle is an ordinary container as an engine without privileges makes it, whose device rules deny
// all.
func (u tenant) bundle(edits ...rig.Edit) *rig.Bundle {
	b := u.Bundle("c", append([]rig.Edit{rig.Light, rig.Shell("echo started"), func(s *specs.Spec) {
		s.Process.Capabilities, s.Linux.CgroupsPath = &specs.LinuxCapabilities{}, ""
		if !u.inUserNamespace {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: tenantID, Size: 1}}
			s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: tenantID, Size: 1}}
		}
	}}, edits...)...)
	u.own()
	return b
}

// run runs a command as the tenant does. A runtime makes its standard streams the container's, so
// they are the tenant's.
func (u tenant) run(program string, args ...string) rig.Result {
	u.T.Helper()
	words := append(append([]string{}, u.as...), "bash", "-c",
		`set -o pipefail; cd "$HOME"; "$@" 2>&1 </dev/null | cat`, "bash", program)
	cmd := exec.Command(words[0], append(words[1:], args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + u.home, "USER=tenant", "XDG_RUNTIME_DIR=" +
		u.home + "/runtime", "GPULEDGER_CONFIG=" + u.Config}
	return rig.Run(cmd)
}

// start runs a container by a runtime.
func (u tenant) start(runtime string, b *rig.Bundle) rig.Result {
	u.T.Helper()
	return u.run(runtime, append(slices.Clone(u.global), "run", "--bundle", b.Dir, b.ID)...)
}

func bindMount(source, destination string) rig.Edit {
	return mount(specs.Mount{Type: "bind", Source: source, Destination: destination,
		Options: []string{"rbind"}})
}

// asUser are the ways in which a runtime runs where the kernel lets it set no device rule.
var asUser = map[string]struct {
	as              []string
	id              int
	inUserNamespace bool
}{
	"a user's engine in a user namespace": {[]string{"setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", "unshare", "--user", "--map-root-user"}, tenantID, true},
	"a user's container in one":           {[]string{"setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"}, tenantID, false},
	"root in one":                         {[]string{"unshare", "--user", "--map-root-user"}, 0, true},
	"root in one within another, as a kubelet's or an engine's in LXC": {[]string{"unshare", "--user", "--map-root-user", "unshare", "--user", "--map-root-user"}, 0, true},
	"root in one with its own mounts and processes":                    {[]string{"unshare", "--user", "--map-root-user", "--mount", "--propagation=private"}, 0, true},
}

func TestRootless(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for way, as := range asUser {
				for _, runtime := range []string{"runc", "crun"} {
					t.Run(way+"/"+runtime, func(t *testing.T) {
						rig.NeedRuntime(t, runtime)
						n := rig.NewNode(t, rig.Setup{Runtime: runtime})
						reference := n.Grant("--memory", "4GiB")
						u := newTenant(t, n, as.as...)
						u.id, u.inUserNamespace = as.id, as.inUserNamespace
						if runtime == "crun" && layout == rig.V1 { // as rootless Podman calls it there
							u.global = []string{"--cgroup-manager=disabled"}
						}
						u.story(reference)
					})
				}
			}
		})
	}
}

func (u tenant) story(reference grant.Reference) {
	t := u.T.(*testing.T)
	starts := func(what string, b *rig.Bundle) {
		t.Helper()
		before := string(b.Config())
		if r := u.start(u.wrapper, b); r.Code != 0 || r.Stdout != "started\n" {
			t.Errorf("%s: %+v, want it started without output", what, r)
		}
		if string(b.Config()) != before {
			t.Errorf("%s: config.json was touched", what)
		}
	}
	refused := func(what string, edits ...rig.Edit) {
		t.Helper()
		r := u.start(u.wrapper, u.bundle(edits...))
		if r.Code != 1 || !strings.HasPrefix(r.Stdout,
			"gpuledger: refused (rules-not-enforced): container \"c\" ") ||
			!strings.Contains(r.Stdout, "\nhint: ") {
			t.Errorf("%s: %+v, want rules-not-enforced", what, r)
		}
	}
	reaching := func(when string) {
		t.Helper()
		refused(when+"all GPUs by the environment", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
		refused(when+"a GPU's node by a mount", bindMount("/run/tenant/gpu", "/gpu"))
		refused(when+"a GPU's node among the devices", func(s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
				Path: "/run/tenant/gpu", Type: "c", Major: 195})
		})
		refused(when+"the node's /dev", bindMount("/dev", "/host"))
		refused(when+"a grant", rig.Env("GPULEDGER_GRANT="+reference.String()))
	}

	opens := u.bundle(bindMount("/run/tenant/gpu", "/gpu"), rig.Shell("/bin/busybox cat /gpu"))
	if r := u.start(u.runtime, opens); !strings.Contains(r.Stdout, "No such device or address") {
		t.Errorf("the real runtime alone: %+v; want the GPU's node opened, though the container's device "+
			"rules deny all", r)
	}

	starts("no GPU", u.bundle())
	starts("no rules, as rootless Podman writes them",
		u.bundle(func(s *specs.Spec) { s.Linux.Resources = nil }))
	starts("rules for everything", u.bundle(rig.Privileged, func(s *specs.Spec) {
		s.Process.Capabilities = &specs.LinuxCapabilities{}
	}))
	reaching("")

	b := u.bundle(rig.Shell("exec sleep 1000"))
	for _, args := range [][]string{{"create", "--bundle", b.Dir, "c"}, {"start", "c"}, {"state", "c"},
		{"kill", "c", "KILL"}, {"delete", "--force", "c"}} {
		if r := u.run("sh", append([]string{"-c", `"$@" >log 2>&1 </dev/null; status=$?; cat log; ` +
			`exit $status`, "sh", u.wrapper}, append(slices.Clone(u.global), args...)...)...); r.Code != 0 {
			t.Errorf("%s: %+v", args[0], r)
		}
	}
	if left, _ := os.ReadDir(u.home + "/runtime/" + u.runtime); len(left) != 0 {
		t.Errorf("the real runtime keeps %v in the tenant's directory", left)
	}

	if u.runtime == "runc" { // the first by default
		must(t, os.Chmod(u.Config, 0o000))
		starts("a configuration that the tenant cannot read", u.bundle())
		reaching("a configuration that the tenant cannot read, ")
		must(t, os.Chmod(u.Config, 0o644))
	}

	u.configure("[policy]\nmode = \"report\"\n")
	r := u.start(u.wrapper, u.bundle(rig.Env("NVIDIA_VISIBLE_DEVICES=all")))
	if r.Code != 0 || !strings.HasSuffix(r.Stdout, "\nstarted\n") ||
		!strings.HasPrefix(r.Stdout, "gpuledger: would be refused (rules-not-enforced): ") {
		t.Errorf("report mode: %+v", r)
	}
	u.configure("[policy]\nungranted = \"hide\"\n")
	hidden := u.bundle(rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo $NVIDIA_VISIBLE_DEVICES"))
	if r := u.start(u.wrapper, hidden); r.Code != 0 || r.Stdout != "void\n" {
		t.Errorf("hidden: %+v", r)
	}
}

// TestRootlessPodman: if Podman reads a drop-in of root's that names the wrapper, as Debian 12's
// does for every user, its containers without a GPU start as before.
func TestRootlessPodman(t *testing.T) {
	rig.Need(t, "podman", "conmon", "newuidmap")
	n := rig.NewNode(t, rig.Setup{Engine: "podman"})
	u := newTenant(t, n, "setpriv", fmt.Sprintf("--reuid=%d", tenantID),
		fmt.Sprintf("--regid=%d", tenantID), "--clear-groups")
	const common = "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nlock_type = " +
		"\"file\"\n[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n"
	rig.Mount(t, "tmpfs", "/etc/containers", "tmpfs", 0, "mode=755")
	rig.Mount(t, "tmpfs", "/var/lib", "tmpfs", 0, "mode=755")
	must(t, os.MkdirAll("/etc/containers/containers.conf.d", 0o755),
		os.WriteFile("/etc/containers/containers.conf", []byte(common), 0o644),
		os.WriteFile("/etc/containers/containers.conf.d/zz-gpuledger.conf",
			fmt.Appendf(nil, "[engine]\nruntime = \"gpuledger\"\n[engine.runtimes]\ngpuledger = [%q]\n",
				u.wrapper), 0o644))
	t.Cleanup(func() { // the process by which a user's Podman keeps its user namespace
		pid, err := strconv.Atoi(read(t, u.home+"/runtime/libpod/tmp/pause.pid"))
		must(t, err, syscall.Kill(pid, syscall.SIGKILL))
	})
	u.PodmanEnds() // before: a Podman that begins later makes itself such a process again
	rootfs := u.bundle().Dir + "/rootfs"
	podman := func(options ...string) rig.Result {
		args := append([]string{"--storage-driver=vfs", "run", "--rm", "--network=none"}, options...)
		return u.run("podman", append(args, "--rootfs", rootfs, "/bin/busybox", "echo", "started")...)
	}
	for name, options := range map[string][]string{"no GPU": nil,
		"a device of others": {"--device", "/dev/full:/dev/other"}, "a volume": {"-v", u.home + ":/home"},
		"a privilege, on a node that has no GPU's node": {"--privileged"},
		"a user namespace": {"--uidmap=0:0:1"}} {
		if r := podman(options...); r.Code != 0 || !strings.HasSuffix(r.Stdout, "started\n") ||
			strings.Contains(r.Stdout, "gpuledger: ") {
			t.Errorf("%s: %+v, want it started", name, r)
		}
	}
	// Podman hands on no GPULEDGER_CONFIG, so the wrapper has the default one: of a node without an
	// inventory, and then with one, which users may not read.
	if host.Default().HasNVIDIA() {
		t.Log("misses a machine without a GPU: that the node's /dev is harmless there is not shown")
	} else if r := podman("-v", "/dev:/dev"); r.Code != 0 || !strings.HasSuffix(r.Stdout, "started\n") {
		t.Errorf("the node's /dev, without a GPU: %+v, want it started", r)
	}
	must(t, os.Mkdir("/var/lib/gpuledger", 0o700))
	for name, options := range map[string][]string{"all GPUs by the environment": {
		"-e", "NVIDIA_VISIBLE_DEVICES=all"}, "the node's /dev": {"-v", "/dev:/dev"},
		"a GPU's node":            {"--device", "/run/tenant/gpu:/dev/nvidia0"},
		"a GPU's node by a mount": {"-v", "/run/tenant/gpu:/dev/nvidia0"}} {
		if r := podman(options...); r.Code != 126 ||
			!strings.Contains(r.Stdout, "gpuledger: refused (rules-not-enforced): ") {
			t.Errorf("%s: %+v, want rules-not-enforced", name, r)
		}
	}

	must(t, os.MkdirAll(u.home+"/.config/containers", 0o755),
		os.WriteFile(u.home+"/.config/containers/containers.conf",
			[]byte("[engine]\nruntime = \"runc\"\n"), 0o644))
	u.own()
	if r := podman("-v", "/dev:/dev"); r.Code != 0 || !strings.HasSuffix(r.Stdout, "started\n") {
		t.Errorf("a user whose own configuration names another runtime: %+v, want it started", r)
	}
}
