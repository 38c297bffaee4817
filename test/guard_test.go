package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// eachRuntime runs a test under each layout of cgroups with each runtime.
func eachRuntime(t *testing.T, test func(t *testing.T, runtime string)) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					test(t, runtime)
				})
			}
		})
	}
}

// opener is a shell function that makes a node and opens it, and reads nothing.
const opener = `open() { mknod /tmp/x "$1" "$2" "$3" 2>/tmp/no && (: </tmp/x) 2>/tmp/no; grep -q "not permitted" /tmp/no && echo "$1 $2:$3 closed" || echo "$1 $2:$3 open"; rm -f /tmp/x /tmp/no; }
`

// TestStripClosesOnlyGPUs: a privileged container without a grant on a node with four GPUs, whose
// driver has its majors in /proc/devices and its DRM nodes in /sys.
func TestStripClosesOnlyGPUs(t *testing.T) {
	// GPUs, modeset, control
	closed := []string{"c 195 0", "c 195 1", "c 195 2", "c 195 3", "c 195 254", "c 195 255",
		// UVM, capabilities, a switch, NVIDIA's DRM
		"c 508 0", "c 508 1", "c 509 1", "c 507 0", "c 226 0", "c 226 128",
		"c 234 0", "c 254 0", "c 384 0", "c 511 0"} // majors that the driver's next module could get
	open := []string{"c 1 3", "c 1 5", "c 5 0", "c 4 64", "c 10 229", "c 10 200", "b 7 0", "c 226 1",
		"c 226 129", "c 240 0", "c 60 0"}
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{GPUs: 4, Runtime: runtime,
			Config: "[policy]\nprivileged = \"strip\"\n"})
		n.Write("config.toml", strings.Replace(read(t, n.Config), `source = "simulated"`,
			`source = "nvml"`, 1))
		devices := n.Write("devices", "Character devices:\n  1 mem\n  4 ttyS\n 10 misc\n195 nvidia\n195 "+
			"nvidiactl\n195 nvidia-modeset\n226 drm\n240 other\n507 nvidia-nvswitch\n508 nvidia-uvm\n509 "+
			"nvidia-caps\n\nBlock devices:\n  7 loop\n")
		rig.Mount(t, devices, "/proc/devices", "", syscall.MS_BIND, "")
		rig.Mount(t, "tmpfs", "/sys/dev/char", "tmpfs", 0, "")
		for minor, vendor := range map[string]string{"0": "0x10de", "128": "0x10de",
			"1": "0x1002", "129": "0x8086"} {
			dir := "/sys/dev/char/226:" + minor + "/device"
			must(t, os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/vendor", []byte(vendor+"\n"), 0o644))
		}
		script := opener
		want := ""
		for i, node := range append(closed[:len(closed):len(closed)], open...) {
			state := "closed"
			if i >= len(closed) {
				state = "open"
			}
			script += "open " + node + "\n"
			kind, numbers, _ := strings.Cut(node, " ")
			want += kind + " " + strings.Replace(numbers, " ", ":", 1) + " " + state + "\n"
		}
		bundle := func(id string, edits ...rig.Edit) *rig.Bundle {
			return n.Bundle(id, append(edits, rig.Privileged, device("/dev/nvidia0", 195, 0),
				device("/dev/nvidia3", 195, 3), device("/dev/fuse", 10, 229),
				rig.Shell(script+"ls /dev/nvidia* 2>/dev/null; ls /dev/fuse"))...)
		}
		want += "/dev/fuse\n"
		b := bundle("c")
		for by, r := range map[string]rig.Result{"wrapper": b.Run(),
			"hook": bundle("h", n.Hooked).RealRun()} {
			if r.Code != 0 || r.Stdout != want {
				t.Errorf("by the %s: got\n%s%s\nwant\n%s", by, r.Stdout, r.Stderr, want)
			}
		}
		wantSameAgain(t, b)
	})
}

// TestUpdateAndExecAddNoGPU: with a grant of GPU 0, and without one, neither a refused update nor
// an accepted one opens another GPU or closes the granted one. A process that is added later
// reaches what the first one does.
func TestUpdateAndExecAddNoGPU(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		reference := n.Grant("--memory", "1GiB", "--gpu", "0")
		for id, edits := range map[string][]rig.Edit{
			"granted": {rig.Annotation("gpuledger.dev/grant", reference.String())}, "plain": nil} {
			b := n.Bundle(id, edits...)
			if r := b.Create(); r.Code != 0 {
				t.Fatal(r)
			}
			if r := b.Start(); r.Code != 0 {
				t.Fatal(r)
			}
			want := "c 195:0 closed\nc 195:1 closed\nc 195:255 closed\nc 60:0 closed\n"
			if id == "granted" {
				want = "c 195:0 open\nc 195:1 closed\nc 195:255 open\nc 60:0 closed\n"
			}
			reaches := func(after string) {
				t.Helper()
				// The nodes are made in /dev, which the container may write: making one needs a
				// rule too on cgroup v1.
				r := rig.Run(n.Wrapper("exec", id, "/bin/busybox", "sh", "-c", nodes(n, id)))
				if r.Code != 0 || r.Stdout != want {
					t.Errorf("%s, after %s: got\n%s%swant\n%s", id, after, r.Stdout, r.Stderr, want)
				}
			}
			reaches("its create")
			for _, wide := range []string{`{"allow":true,"access":"rwm"}`,
				`{"allow":true,"type":"c","major":195,"access":"rwm"}`,
				`{"allow":true,"type":"c","major":195,"minor":1,"access":"rw"}`} {
				wantRefused(t, update(b, `{"devices":[{"allow":false,"access":"rwm"},`+wide+`]}`),
					"gpu-device-rule")
				reaches("a refused update with " + wide)
			}
			if r := update(b, `{"devices":[{"allow":false,"access":"rwm"}],"pids":{"limit":100}}`); r.Code !=
				0 && !onlyV2(r) {
				t.Errorf("%+v", r)
			}
			reaches("an update with the rules of its own spec")
			wantRefused(t, update(b, `{"unified":{"dmem.max":"nvidia/0000:00:00.0/vidmem 1"}}`),
				"limit-unenforceable")
		}
	})
}

// onlyV2 is for the private mount of version 2 on a hybrid machine, which has no pids controller.
func onlyV2(r rig.Result) bool { return strings.Contains(r.Stderr, "pids") }

// nodes is a script that opens nodes which this test puts into the container's root file system, so
// that the open is tested and not the mknod.
func nodes(n *rig.Node, id string) string {
	dir := filepath.Join(n.Dir, "bundles", id, "rootfs/tmp")
	script := `open() { (: </tmp/n$1-$2) 2>&1 | grep -q "not permitted" && echo "c $1:$2 closed" || echo ` +
		`"c $1:$2 open"; }` + "\n"
	for _, d := range [][2]int{{195, 0}, {195, 1}, {195, 255}, {60, 0}} {
		path := fmt.Sprintf("%s/n%d-%d", dir, d[0], d[1])
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, d[0]<<8|d[1]); err != nil && !os.IsExist(err) {
			n.T.Fatal(err)
		}
		script += fmt.Sprintf("open %d %d\n", d[0], d[1])
	}
	return script
}

// mount adds one to a spec.
func mount(m specs.Mount) rig.Edit {
	return func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) }
}

// TestDisguisedMounts: a mount of the ledger's directory in every disguise. Each one that a real
// runtime accepts, the wrapper has refused. The bare runtimes run too, so that the test shows which
// disguises work.
func TestDisguisedMounts(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		n.Write("state/canary", "sings")
		state := n.Dir + "/state"
		must(t, os.Symlink(state, n.Dir+"/link"), os.Mkdir(n.Dir+"/upper", 0o755),
			os.Mkdir(n.Dir+"/work", 0o755), os.Mkdir(n.Dir+"/empty", 0o755))
		rootfs := n.Dir + "/bundles/c/rootfs"
		seen := 0
		for _, c := range []struct {
			name   string
			mounts []specs.Mount
		}{
			{"a bind mount", []specs.Mount{{Type: "bind", Source: state, Options: []string{"rbind"}}}},
			{"without a type", []specs.Mount{{Source: state, Options: []string{"bind"}}}},
			{"without an option", []specs.Mount{{Type: "bind", Source: state}}},
			{"by a type that is another's", []specs.Mount{{Type: "tmpfs", Source: state, Options: []string{"bind"}}}},
			{"by an overlay's type", []specs.Mount{{Type: "overlay", Source: state, Options: []string{"rbind"}}}},
			{"by proc's type", []specs.Mount{{Type: "proc", Source: state, Options: []string{"rbind"}}}},
			{"by a link", []specs.Mount{{Type: "bind", Source: n.Dir + "/link", Options: []string{"bind"}}}},
			{"by a way around", []specs.Mount{{Type: "bind", Source: n.Dir + "//state/./grants/../", Options: []string{"bind"}}}},
			{"relative to the bundle", []specs.Mount{{Type: "bind", Source: "../../state", Options: []string{"bind"}}}},
			{"read-only", []specs.Mount{{Type: "bind", Source: state, Options: []string{"bind", "ro"}}}},
			{"in an overlay", []specs.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + state + ":/usr"}}}},
			{"in an overlay, as one option", []specs.Mount{{Type: "overlay", Source: "overlay", Options: []string{"index=off,lowerdir=" + state + ":/usr"}}}},
			{"in an overlay, with backslashes", []specs.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + n.Dir + `/\s\tate:/usr`}}}},
			{"in an overlay, relative to the bundle", []specs.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=../../state:/usr"}}}},
			{"in an overlay, relative to the root", []specs.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=../../../state:/usr"}}}},
			{"in an overlay that writes there", []specs.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=/usr", "upperdir=" + state, "workdir=" + n.Dir + "/work"}}}},
			{"by the runtime's own directory", []specs.Mount{{Type: "bind", Source: "/proc/self/cwd/../../state", Options: []string{"bind"}}}},
			{"by the runtime's own directory, from its root", []specs.Mount{{Type: "bind", Source: "/proc/self/cwd/../../../state", Options: []string{"bind"}}}},
			{"by the runtime's root", []specs.Mount{{Type: "bind", Source: "/proc/self/root" + state, Options: []string{"bind"}}}},
			{"through the container's own root", []specs.Mount{{Type: "bind", Source: n.Dir, Destination: "/mnt", Options: []string{"rbind"}}, {Type: "bind", Source: rootfs + "/mnt/state", Options: []string{"bind"}}}},
			{"through the container's own /proc", []specs.Mount{{Type: "bind", Source: rootfs + "/proc/self/root" + state, Options: []string{"bind"}}}},
		} {
			t.Run(c.name, func(t *testing.T) {
				n.T = t
				var edits []rig.Edit
				for _, m := range c.mounts {
					if m.Destination == "" {
						m.Destination = "/x"
					}
					edits = append(edits, mount(m))
				}
				b := n.Bundle("c", append(edits, rig.Shell("cat /x/canary; test -e /x/grants && "+
					"echo; echo ran"))...)
				must(t, os.MkdirAll(rootfs+"/mnt/state", 0o755))
				bare := rig.Run(n.Real("run", "--bundle", b.Dir, "c"))
				_ = rig.Run(n.Real("delete", "--force", "c"))
				if strings.Contains(bare.Stdout, "sings") {
					seen++
				}
				r := b.Create()
				if r.Code != 1 || !regexp.MustCompile(
					`^gpuledger: refused \((gpu-socket|gpu-bind-mount)\): `).MatchString(r.Stderr) {
					t.Errorf("the bare runtime prints %q; with gpuledger: %+v", bare.Stdout, r)
				}
				t.Logf("the bare runtime shows it: %v", strings.Contains(bare.Stdout, "sings"))
			})
		}
		if seen < 5 {
			t.Errorf("only %d of the dresses work at all: the test shows nothing", seen)
		}
	})
}

// TestMPSDaemonBelowAMount: a socket that listens at an MPS daemon's path closes every mount that
// contains it, except the node's root.
func TestMPSDaemonBelowAMount(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	pipe := n.Dir + "/shared/tmp/mps"
	must(t, os.MkdirAll(pipe, 0o755), os.MkdirAll(n.Dir+"/shared/data", 0o755))
	b := func(id, source string, edits ...rig.Edit) *rig.Bundle {
		return n.Bundle(id, append(edits, mount(specs.Mount{
			Type: "bind", Source: source, Destination: "/mnt", Options: []string{"rbind", "ro"}}),
			rig.Shell("exit 0"))...)
	}
	if r := b("before", n.Dir+"/shared").Run(); r.Code != 0 {
		t.Errorf("before there is a daemon: %+v", r)
	}
	listen(t, pipe+"/control")
	n.Write("shared/tmp/mps/control_lock", "")
	for id, source := range map[string]string{"pipe": pipe, "socket": pipe + "/control", "parent": n.Dir +
		"/shared/tmp", "above": n.Dir + "/shared"} {
		wantRefused(t, b(id, source).Create(), "gpu-socket")
	}
	wantRefused(t, b("holder", n.Dir+"/shared", rig.Annotation("gpuledger.dev/grant",
		n.Grant("--memory", "1GiB").String())).Create(), "gpu-socket")
	for id, source := range map[string]string{"beside": n.Dir + "/shared/data", "root": "/"} {
		bundle := b(id, source)
		before := bundle.Config()
		if r := bundle.Run(); r.Code != 0 || !bytes.Equal(bundle.Config(), before) {
			t.Errorf("%s: %+v", id, r)
		}
	}
	if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit,
		"node-root by mount:/mnt with the MPS daemon of "+pipe) {
		t.Errorf("audit: %s", audit)
	}
}

// TestNeighbourCannotCloseAVolume: an unprivileged container makes what looks like an MPS daemon's
// directory on a volume that others mount. They start untouched, and the log has a line about
// sockets.
func TestNeighbourCannotCloseAVolume(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		noted  bool
	}{
		"control_lock": {"touch /data/control /data/control_lock", false},
		"pid":          {"touch /data/control /data/nvidia-cuda-mps-control.pid", false},
		"directory":    {"mkdir /data/control && touch /data/control_lock", false},
		"socket":       {"touch /data/control_lock", true},
	} {
		t.Run(name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{})
			must(t, os.Mkdir(n.Dir+"/data", 0o777))
			data := mount(specs.Mount{Type: "bind", Source: n.Dir + "/data", Destination: "/data",
				Options: []string{"rbind"}})
			// a socket on which no process listens here: as of a container with a network namespace
			// of its own
			if name == "socket" {
				must(t, syscall.Mknod(n.Dir+"/data/control", syscall.S_IFSOCK|0o666, 0))
			}
			if r := n.Bundle("neighbour", data, rig.Shell(c.script)).Run(); r.Code != 0 {
				t.Fatalf("%+v", r)
			}
			b := n.Bundle("c", data, rig.Shell("exit 0"))
			before := b.Config()
			if r := b.Run(); r.Code != 0 || r.Stderr != "" || !bytes.Equal(b.Config(), before) {
				t.Errorf("%+v", r)
			}
			audit, _ := os.ReadFile(n.Dir + "/audit.jsonl")
			if got := strings.Contains(string(audit),
				"mount:/data has what may be an MPS daemon's socket in "+n.Dir+"/data"); got != c.noted {
				t.Errorf("noted %v: %s", got, audit)
			}
		})
	}
}

// TestMPSDaemonAtItsUsualPlace needs no socket in this network namespace: the directory that root
// owns is enough.
func TestMPSDaemonAtItsUsualPlace(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	const pipe = "/run/nvidia/mps/nvidia.com/gpu/pipe"
	must(t, os.MkdirAll(pipe, 0o755))
	b := n.Bundle("c", mount(specs.Mount{Type: "bind", Source: "/run/nvidia", Destination: "/mnt",
		Options: []string{"rbind"}}), rig.Shell("exit 0"))
	if r := b.Run(); r.Code != 0 {
		t.Errorf("before there is a daemon: %+v", r)
	}
	b.Delete()
	must(t, os.WriteFile(pipe+"/control", nil, 0o644))
	if r := b.Run(); r.Code != 0 {
		t.Errorf("a file of the name: %+v", r)
	}
	b.Delete()
	must(t, os.Remove(pipe+"/control"), syscall.Mknod(pipe+"/control", syscall.S_IFSOCK|0o666, 0))
	wantRefused(t, b.Create(), "gpu-socket")
	wantRefused(t, n.Bundle("e", mount(specs.Mount{Type: "bind", Source: "/var/run/nvidia-mps",
		Destination: "/mnt", Options: []string{"rbind"}})).Create(), "gpu-socket")
	b = n.Bundle("d", mount(specs.Mount{Type: "bind", Source: "/run", Destination: "/mnt",
		Options: []string{"rbind"}}), rig.Shell("exit 0"))
	if r := b.Run(); r.Code != 0 {
		t.Errorf("/run is an agent's: %+v", r)
	}
}

// TestWaysAround tests rows of request's tables through the real wrapper.
func TestWaysAround(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	sandbox := rig.Annotation("io.kubernetes.cri.container-type", "sandbox")
	own := func(rules ...specs.LinuxDeviceCgroup) rig.Edit {
		return func(s *specs.Spec) { s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rules...) }
	}
	major, minor := int64(195), int64(0)
	rule := own(specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
	hook := func(path string) rig.Edit {
		return func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
				{Path: path, Args: []string{path, "prestart"}, Env: []string{"PATH=/bin"}}}}
		}
	}
	legacy := n.Write("nvidia-container-runtime-hook", "#!/bin/sh\nexit 0\n")
	must(t, os.Chmod(legacy, 0o755))
	unified := func(s *specs.Spec) {
		s.Linux.Resources.Unified = map[string]string{"dmem.max": "nvidia/0000:00:00.0/vidmem max"}
	}
	for _, c := range []struct {
		name, code string
		edits      []rig.Edit
	}{
		{"the driver's limit", "limit-unenforceable", []rig.Edit{unified}},
		{"NUL in the environment", "spec-invalid", []rig.Edit{rig.Env("A=1\x00NVIDIA_VISIBLE_DEVICES=all")}},
		{"NUL in an annotation's key", "spec-invalid", []rig.Edit{rig.Annotation("org.systemd.property.DeviceAllow\x00", "x")}},
		{"a hook that injects", "gpu-hook", []rig.Edit{hook("/usr/bin/nvidia-cdi-hook")}},
		{"the legacy hook alone", "", []rig.Edit{hook(legacy)}},
		{"the legacy hook, and a wish", "visible-devices-all", []rig.Edit{hook(legacy), rig.Env("NVIDIA_VISIBLE_DEVICES=all")}},
		{"a sandbox's environment", "", []rig.Edit{sandbox, rig.Env("NVIDIA_VISIBLE_DEVICES=all")}},
		{"a privileged sandbox, as no engine makes it", "privileged-gpu", []rig.Edit{sandbox, rig.Privileged}},
		{"a forged sandbox with all of a major", "gpu-device-rule", []rig.Edit{sandbox, own(specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"})}},
		{"a forged sandbox without rules", "gpu-device-rule", []rig.Edit{sandbox, func(s *specs.Spec) { s.Linux.Resources.Devices = nil }}},
		{"a forged sandbox with a GPU's node", "gpu-device-node", []rig.Edit{sandbox, device("/dev/nvidia0", 195, 0)}},
		{"a forged sandbox with a GPU's rule", "gpu-device-rule", []rig.Edit{sandbox, rule}},
		{"a forged sandbox with the ledger's directory", "gpu-socket", []rig.Edit{sandbox, mount(specs.Mount{Type: "bind", Source: n.Dir + "/run", Destination: "/x", Options: []string{"bind"}})}},
		{"a scheduler's text that cannot be read", "", []rig.Edit{rig.Identity("u", "n", "p", "train"), rig.Annotation("scheduler.framework.gpushare.allocation", "{")}},
		{"the same, for a container that has a part", "annotation-malformed", []rig.Edit{rig.Identity("u", "n", "p", "train"), rig.Annotation("scheduler.framework.gpushare.allocation", "{"), rig.Env("ALIYUN_COM_GPU_MEM_CONTAINER=4")}},
		{"the same, outside a pod", "", []rig.Edit{rig.Annotation("scheduler.framework.gpushare.allocation", "{"), rig.Env("ALIYUN_COM_GPU_MEM_CONTAINER=4")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.T = t
			b := n.Bundle("c", append(c.edits, rig.Shell("exit 0"))...)
			before := b.Config()
			r := b.Run()
			if c.code != "" {
				wantRefused(t, r, c.code)
			} else if r.Code != 0 || !bytes.Equal(b.Config(), before) {
				t.Errorf("%+v", r)
			}
			b.Delete()
		})
	}
}

// TestLegacyHookGoesWithAGrant: gpuledger injects the devices itself, so it removes the hook.
func TestLegacyHookGoesWithAGrant(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	marker := n.Dir + "/marker"
	legacy := n.Write("nvidia-container-runtime-hook", "#!/bin/sh\n: >"+marker+"\n")
	must(t, os.Chmod(legacy, 0o755))
	b := n.Bundle("c", rig.Annotation("gpuledger.dev/grant", n.Grant("--memory", "1GiB").String()),
		rig.Shell("exit 0"), func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: legacy, Env: []string{"PATH=/bin"}}}}
		})
	if r := b.Run(); r.Code != 0 {
		t.Fatal(r)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("NVIDIA's hook ran")
	}
}

// TestNodeRootIsRecorded: a container that could change the guard starts, and the audit log has it.
// Package admission tests the strength of its grant.
func TestNodeRootIsRecorded(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB").String()
	must(t, os.Mkdir(n.Dir+"/data", 0o755), os.Mkdir(n.Dir+"/conf", 0o755))
	for id, source := range map[string]string{"": n.Dir + "/data", "config": n.Config, "parent": n.Dir,
		"program": filepath.Dir(rig.Binary(t, "gpuledger-runtime"))} {
		b := n.Bundle("c"+id, rig.Annotation("gpuledger.dev/grant", reference),
			mount(specs.Mount{Type: "bind", Source: source, Destination: "/" + id + "x",
				Options: []string{"rbind"}}), rig.Shell("exit 0"))
		if r := b.Run(); r.Code != 0 {
			t.Errorf("%s: %+v", source, r)
		}
		b.Delete()
		if got := strings.Contains(read(t, n.Dir+"/audit.jsonl"), "node-root by mount:/"+
			id+"x"); got != (id != "") {
			t.Errorf("%s: recorded %v", source, got)
		}
	}
}

// TestCAPSysAdminIsRecorded: a container without a grant that has CAP_SYS_ADMIN can open devices by
// mounts, so the log has a line. An ordinary one has none.
func TestCAPSysAdminIsRecorded(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	admin := func(s *specs.Spec) {
		caps := append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	}
	plain := n.Bundle("plain", rig.Shell("exit 0"))
	if r := plain.Run(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if _, err := os.Stat(n.Dir + "/audit.jsonl"); err == nil {
		t.Errorf("an ordinary container has a line: %s", read(t, n.Dir+"/audit.jsonl"))
	}
	b := n.Bundle("admin", admin, rig.Shell("exit 0"))
	before := b.Config()
	if r := b.Run(); r.Code != 0 || r.Stderr != "" || !bytes.Equal(b.Config(), before) {
		t.Errorf("%+v", r)
	}
	if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit,
		"node-root by capability:CAP_SYS_ADMIN") || strings.Count(audit, "\n") != 1 {
		t.Errorf("audit: %s", audit)
	}
}

// TestSharedPIDNamespacesAreRecorded: a container of the same user writes into its neighbour's root
// through /proc/PID/root, with the node's pid namespace and with the neighbour's. The log has both,
// and no line for one with its own pid namespace or its pod's.
func TestSharedPIDNamespacesAreRecorded(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	neighbour := n.Bundle("neighbour")
	if r := neighbour.Create(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := neighbour.Start(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	pid := fmt.Sprint(neighbour.Init())
	joins := func(s *specs.Spec) {
		i := slices.IndexFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
			return ns.Type == specs.PIDNamespace
		})
		s.Linux.Namespaces[i].Path = "/proc/" + pid + "/ns/pid"
	}
	for id, c := range map[string]struct {
		target   string
		edits    []rig.Edit
		recorded bool
	}{
		"node":  {pid, []rig.Edit{rig.NodePIDs}, true},
		"joins": {"1", []rig.Edit{joins}, true},
		"pod":   {"1", []rig.Edit{joins, inPod("main")}, false},
		"own":   {"1", nil, false},
	} {
		before, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		r := n.Bundle(id, append(c.edits, rig.Shell("echo x >/proc/"+c.target+"/root/tmp/"+id))...).Run()
		after, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		_, err := os.Stat(neighbour.Dir + "/rootfs/tmp/" + id)
		if wrote := err == nil; r.Code != 0 || wrote != (id != "own") {
			t.Errorf("%s: wrote %v: %+v", id, wrote, r)
		}
		if got := strings.Contains(string(after[len(before):]),
			"node-root by namespace:pid"); got != c.recorded {
			t.Errorf("%s: recorded %v", id, got)
		}
	}
}

// TestAccessToAnEnginesSocketIsRecorded: a user in root's group, or in the group that owns the
// socket, may connect to it and is recorded. So is a user that a setuid program could make root. No
// other user is, with the same mount.
func TestAccessToAnEnginesSocketIsRecorded(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	const socket, group = "/run/docker.sock", 64000
	listen(t, socket)
	must(t, os.Chown(socket, 0, group), os.Chmod(socket, 0o660))
	for id, c := range map[string]struct {
		user           specs.User
		setuid         bool
		uses, recorded bool
	}{
		"root":   {specs.User{}, false, true, true},
		"group":  {specs.User{UID: 1000, GID: group}, false, true, true},
		"beside": {specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{group}}, false, true, true},
		"setuid": {specs.User{UID: 1000, GID: 1000}, true, false, true},
		"others": {specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1001}}, false, false, false},
	} {
		before, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		r := n.Bundle(id, func(s *specs.Spec) {
			s.Process.User, s.Process.NoNewPrivileges = c.user, !c.setuid
			if id != "root" {
				s.Process.Capabilities = &specs.LinuxCapabilities{}
			}
		}, mount(specs.Mount{Type: "bind", Source: socket, Destination: "/x", Options: []string{"rbind"}}),
			rig.Shell("[ -w /x ] && echo uses; true")).Run()
		after, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		if r.Code != 0 || strings.Contains(r.Stdout, "uses") != c.uses {
			t.Errorf("%s: %+v", id, r)
		}
		if got := strings.Contains(string(after[len(before):]), "node-root by mount:/x"); got != c.recorded {
			t.Errorf("%s: recorded %v", id, got)
		}
	}
}

// TestAccessToBundlesIsRecorded: a container that mounts all bundles of an engine writes to
// another's config.json. What engines mount from a bundle, and a container's own bundle, leave no
// line.
func TestAccessToBundlesIsRecorded(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	const bundles = "/run/containers/storage/overlay-containers"
	must(t, os.MkdirAll(bundles+"/other/userdata/shm", 0o700))
	for _, name := range []string{"config.json", "hosts"} {
		must(t, os.WriteFile(bundles+"/other/userdata/"+name, nil, 0o600))
	}
	for id, c := range map[string]struct {
		source, write string
		recorded      bool
	}{
		"all":    {bundles, "/x/other/userdata/config.json", true},
		"one":    {bundles + "/other/userdata", "/x/config.json", true},
		"hosts":  {bundles + "/other/userdata/hosts", "/x", false},
		"shm":    {bundles + "/other/userdata/shm", "/x/file", false},
		"itself": {n.Dir + "/bundles/itself", "/x/file", false},
	} {
		before, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		r := n.Bundle(id, mount(specs.Mount{Type: "bind", Source: c.source, Destination: "/x",
			Options: []string{"rbind"}}), rig.Shell("echo x >"+c.write)).Run()
		after, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		if r.Code != 0 || strings.Contains(string(after[len(before):]),
			"node-root by mount:/x") != c.recorded {
			t.Errorf("%s: %+v, audit %s", id, r, after[len(before):])
		}
	}
}

// TestReadOnlyCgroupsOfVersion1: below a recursive mount that is read-only at its top, a container
// moves to another cgroup of version 1, and is recorded. On version 2 it cannot, and is not
// recorded.
func TestReadOnlyCgroupsOfVersion1(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		b := n.Bundle("c", mount(specs.Mount{Type: "bind", Source: "/sys/fs/cgroup", Destination: "/x",
			Options: []string{"rbind", "ro"}}),
			rig.Shell(`for d in /x/devices /x; do [ -e $d/cgroup.procs ] && echo $$ >$d/cgroup.procs && `+
				`echo moved && exit; done; true`))
		r := b.Run()
		audit, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		moved, recorded := strings.Contains(r.Stdout, "moved"),
			strings.Contains(string(audit), "node-root by mount:/x")
		if r.Code != 0 || moved != recorded {
			t.Errorf("recorded %v: %+v", recorded, r)
		}
		if _, err := os.Stat("/sys/fs/cgroup/devices"); moved != (err == nil) {
			t.Errorf("moved %v: %+v", moved, r)
		}
	})
}

// TestHarmlessMountsStart: the mounts of node agents, without a rule that opens a GPU, need no
// grant.
func TestHarmlessMountsStart(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	bind := func(source, destination string, options ...string) rig.Edit {
		return mount(specs.Mount{Type: "bind", Source: source, Destination: destination,
			Options: append([]string{"rbind"}, options...)})
	}
	for name, edits := range map[string][]rig.Edit{
		"node-exporter": {bind("/", "/host/root", "ro", "rslave"), bind("/proc", "/host/proc", "ro"), bind("/sys", "/host/sys", "ro")},
		"cadvisor":      {bind("/", "/rootfs", "ro"), bind("/var/run", "/var/run", "ro"), bind("/sys", "/sys", "ro"), bind("/dev", "/dev/disk", "ro")},
		"falco":         {bind("/dev", "/host/dev", "ro"), bind("/proc", "/host/proc", "ro"), bind("/etc", "/host/etc", "ro"), bind("/usr", "/host/usr", "ro")},
		"cni":           {bind("/etc", "/host/etc"), bind("/run", "/host/run")},
		"tmp":           {bind("/tmp", "/host/tmp")},
	} {
		t.Run(name, func(t *testing.T) {
			n.T = t
			b := n.Bundle(name, append(edits, rig.Shell("exit 0"))...)
			before := b.Config()
			if r := b.Run(); r.Code != 0 || r.Stderr != "" || !bytes.Equal(b.Config(), before) {
				t.Errorf("%+v", r)
			}
		})
	}
}
