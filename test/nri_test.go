package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// The stories of NRI: a real gpuledgerd at the server that engines link, and real runc for the
// effect of its answers. The engine is the test.

// nriNode is a node with an engine and a gpuledgerd that is connected to it.
func nriNode(t *testing.T, config string, args ...string) (*rig.Node, *rig.NRI, *rig.Daemon) {
	t.Helper()
	n := rig.NewNode(t, rig.Setup{Engine: "containerd",
		Config: "[daemon]\nlisten = \"\"\ninterval = \"50ms\"\n" + config})
	e := n.NRI()
	d := n.Daemon(args...)
	e.Connected()
	return n, e, d
}

// holding refers to a grant as a pod does.
func holding(g grant.Reference) rig.Edit {
	return rig.Annotation("gpuledger.dev/grant.train", g.String())
}

func TestNRILeavesAPlainContainerAlone(t *testing.T) {
	n, e, _ := nriNode(t, "")
	g := n.Grant("--memory", "4GiB")
	for name, edit := range map[string]rig.Edit{
		"nothing": func(*specs.Spec) {}, "void": rig.Env("NVIDIA_VISIBLE_DEVICES=void"),
		"a host's directory":            bind("/etc", "/host"),
		"another container's reference": rig.Annotation("gpuledger.dev/grant.other", g.String()),
		"a reference that names none":   rig.Annotation("gpuledger.dev/grant", g.String()),
		"a foreign CDI annotation":      rig.Annotation("cdi.k8s.io/x", "vendor.com/nic=0"),
	} {
		b := n.Bundle("plain", edit)
		before := string(b.Config())
		var spec, after specs.Spec
		must(t, e.Create(b), json.Unmarshal([]byte(before), &spec), json.Unmarshal(b.Config(), &after))
		if fmt.Sprint(spec.Process.Env, spec.Mounts, spec.Linux.Devices, len(spec.Linux.Resources.Devices),
			spec.Annotations) !=
			fmt.Sprint(after.Process.Env, after.Mounts, after.Linux.Devices,
				len(after.Linux.Resources.Devices), after.Annotations) {
			t.Errorf("%s: the spec was changed from %s to %s", name, before, b.Config())
		}
		if adjustment, err := e.Ask(e.Now(b)); err != nil || !isEmpty(adjustment) {
			t.Errorf("%s: the adjustment is %v (%v), want none", name, adjustment, err)
		}
		must(t, e.Begin(b), e.Remove("plain"))
	}
	if audit, err := os.ReadFile(n.Dir + "/audit.jsonl"); err == nil {
		t.Errorf("the audit log has %s", audit)
	}
	wantState(t, n, g.ID, "no container used it", grant.Free)
}

// isEmpty reports whether an adjustment changes nothing. The server fills in empty parts.
func isEmpty(a *api.ContainerAdjustment) bool {
	l := a.GetLinux()
	return len(a.GetEnv())+len(a.GetMounts())+len(a.GetAnnotations())+len(a.GetCDIDevices())+
		len(a.GetRlimits())+len(a.GetArgs()) == 0 &&
		a.GetHooks().Hooks() == nil && len(l.GetDevices())+len(l.GetResources().GetDevices())+
		len(l.GetResources().GetUnified())+len(l.GetNamespaces())+len(l.GetSysctl()) == 0
}

func bind(source, destination string) rig.Edit {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: destination, Type: "bind", Source: source,
			Options: []string{"rbind", "ro"}})
	}
}

// opened is what probe prints if GPU 1 is granted and GPU 0 is missing.
const opened = "No such file or directory\nNo such device or address\nNo such device or address\nOperation " +
	"not permitted\n"

func TestNRIGivesExactlyTheGrant(t *testing.T) {
	n, e, _ := nriNode(t, "")
	for name, prepare := range map[string]func() (grant.ID, []rig.Edit){
		"by identity": func() (grant.ID, []rig.Edit) {
			g := n.Grant("--memory", "4GiB", "--gpu", "1", "--owner", "pod:"+rig.Pod().Uid+"/train")
			return g.ID, nil
		},
		"by a reference in the pod's annotations": func() (grant.ID, []rig.Edit) {
			g := n.Grant("--memory", "4GiB", "--gpu", "1")
			return g.ID, []rig.Edit{holding(g), rig.Env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled")}
		},
		"by a reference in the environment": func() (grant.ID, []rig.Edit) {
			g := n.Grant("--memory", "4GiB", "--gpu", "1")
			return g.ID, []rig.Edit{rig.Env("GPULEDGER_GRANT=" + g.String())}
		},
	} {
		t.Run(name, func(t *testing.T) {
			id, edits := prepare()
			defer n.Must("release", "--force", string(id))
			b := n.Bundle("granted", append(edits, ends(probe+
				`; echo "$NVIDIA_VISIBLE_DEVICES+$NVIDIA_GDS"`))...)
			must(t, e.Create(b))
			wantState(t, n, id, "its container is not created yet", grant.Bound)
			if got := runOf(t, e, b); got != opened+n.Grants()[0].GPUs[0].UUID+"+\n" {
				t.Errorf("opening GPU 0, GPU 1, nvidiactl and a node of its own made for another GPU, and "+
					"its environment:\n%s", got)
			}
			if pid := pidOf(t, n, id); pid != b.Init() {
				t.Errorf("the grant is bound to process %d, the container's is %d", pid, b.Init())
			}
			b.End()
			becomesFree(t, n, id)
			must(t, e.Remove(b.ID))
		})
	}
	n.CheckSound("at the end")
}

func TestNRIRefuses(t *testing.T) {
	n, e, _ := nriNode(t, "[[policy.exempt]]\nnamespace = \"kube-system\"\n")
	g := n.Grant("--memory", "4GiB", "--gpu", "1")
	other := n.Grant("--memory", "4GiB", "--gpu", "1", "--owner", "pod:"+rig.Pod().Uid+"/other")
	node := filepath.Join(n.Dir, "node")
	must(t, syscall.Mknod(node, syscall.S_IFCHR|0o600, 195<<8))
	hook := func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{
			{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "create-symlinks"}}}}
	}
	rule := func(s *specs.Spec) {
		major := int64(195)
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rw"})
	}
	for _, c := range []struct {
		name  string
		code  grant.Code
		edits []rig.Edit
	}{
		{"all", grant.VisibleDevicesAll, []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all")}},
		{"an index", grant.VisibleDevicesOutsideGrant, []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=0")}},
		{"a legacy image", grant.VisibleDevicesAll, []rig.Edit{rig.Env("CUDA_VERSION=8.0")}},
		{"an injector's variable", grant.GPUEnv, []rig.Edit{rig.Env("NVIDIA_MIG_CONFIG_DEVICES=all")}},
		{"a device node", grant.GPUDeviceNode, []rig.Edit{device("/dev/nvidia0", 195, 0)}},
		{"a device rule", grant.GPUDeviceRule, []rig.Edit{rule}},
		{"a bind mount of a node", grant.GPUBindMount, []rig.Edit{bind(node, "/dev/x")}},
		{"the ledger's directory", grant.GPUSocket, []rig.Edit{bind(n.Dir+"/run", "/x")}},
		{"a mount that requests all", grant.VisibleDevicesAll, []rig.Edit{bind("/dev/null", "/var/run/nvidia-container-devices/all")}},
		{"an injector's hook", grant.GPUHook, []rig.Edit{hook}},
		{"a CDI annotation", grant.CDIDeviceOutsideGrant, []rig.Edit{rig.Annotation("nvidia.cdi.k8s.io/x", "nvidia.com/gpu=all")}},
		{"privileged", grant.PrivilegedGPU, []rig.Edit{rig.Privileged}},
		{"a guessed reference", grant.GrantNotFound, []rig.Edit{rig.Annotation("gpuledger.dev/grant.train", "g-aaaaaaaaaaaa.0123456789abcdef0123456789abcdef")}},
		{"a wrong secret", grant.GrantNotFound, []rig.Edit{rig.Annotation("gpuledger.dev/grant.train", string(g.ID)+".0123456789abcdef0123456789abcdef")}},
		{"a malformed reference", grant.AnnotationMalformed, []rig.Edit{rig.Annotation("gpuledger.dev/grant.train", "a\nb")}},
		{"another container's grant", grant.GrantOwnerMismatch, []rig.Edit{rig.Annotation("gpuledger.dev/grant.train", string(other.ID))}},
		{"a forged identity", grant.VisibleDevicesAll, []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Identity("x", "kube-system", "x", "other")}},
		{"a forged sandbox", grant.VisibleDevicesAll, []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Annotation("io.kubernetes.cri.container-type", "sandbox")}},
		{"more than the grant", grant.VisibleDevicesOutsideGrant, []rig.Edit{holding(g), rig.Env("NVIDIA_VISIBLE_DEVICES=0")}},
		{"a node outside the grant", grant.GPUDeviceNode, []rig.Edit{holding(g), device("/dev/nvidia0", 195, 0)}},
		{"an allocation that disagrees", grant.AnnotationMismatch, []rig.Edit{holding(g), rig.Annotation("gpuledger.dev/memory.train", "5GiB")}},
		{"granted, with a hook that NRI cannot take out", grant.InjectionImpossible, []rig.Edit{holding(g), hook}},
		{"granted, with two values for what is set", grant.InjectionImpossible, []rig.Edit{holding(g), rig.Env("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES=all")}},
		{"granted, with a client's settings of MPS", grant.InjectionImpossible, []rig.Edit{holding(g), rig.Env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=9=1G")}},
	} {
		t.Run(c.name, func(t *testing.T) { wantNRIRefusal(t, e.Create(n.Bundle("bad", c.edits...)), c.code) })
	}
	c := e.Now(n.Bundle("bad"))
	c.CDIDevices = []*api.CDIDevice{{Name: "nvidia.com/gpu=0"}}
	_, err := e.Ask(c)
	wantNRIRefusal(t, err, grant.CDIDeviceOutsideGrant)
	wantState(t, n, g.ID, "all were refused", grant.Free)
	must(t, e.Create(n.Bundle("good", holding(g))))
	wantNRIRefusal(t, e.CreateIn(rig.PodOf("another"), n.Bundle("bad", holding(g))), grant.GrantInUse)
	must(t, e.Remove("good"))
	wantState(t, n, g.ID, "what was created is removed before it starts", grant.Free)
	must(t, e.Create(n.Bundle("good", holding(g))))
}

func wantNRIRefusal(t *testing.T, err error, code grant.Code) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "gpuledger: refused ("+string(code)+"): ") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line of a refusal for %s", err, code)
	}
}

// TestNRIConfinesAPrivilegedContainer: what strip removes is also removed through NRI, in a form
// that real runc accepts.
func TestNRIConfinesAPrivilegedContainer(t *testing.T) {
	n, e, _ := nriNode(t, "[policy]\nprivileged = \"strip\"\n")
	b := n.Bundle("privileged", rig.Privileged, device("/dev/nvidia0", 195, 0), device("/dev/other", 1, 3),
		ends(probe+"; : </dev/other && echo fine"))
	must(t, e.Create(b))
	if got, want := runOf(t, e, b), "No such file or directory\nNo such file or directory\nOperation not "+
		"permitted\nfine\n"; got != want {
		t.Errorf("opening GPU 0 (now empty), GPU 1, nvidiactl, a GPU's node of its own and another device "+
			"gives\n%swant\n%s", got, want)
	}
}

// ends makes the container write a script's output, and stay.
func ends(script string) rig.Edit {
	return rig.Shell("(" + script + ") >/tmp/out; /bin/busybox touch /tmp/done; /bin/busybox sleep 1000")
}

// runOf runs what the engine has made of a bundle until its script has ended, with real runc, and
// returns its output.
func runOf(t *testing.T, e *rig.NRI, b *rig.Bundle) string {
	t.Helper()
	succeeds(t, rig.Run(b.Node.Real("create", "--bundle", b.Dir, b.ID)))
	must(t, e.Begin(b))
	succeeds(t, rig.Run(b.Node.Real("start", b.ID)))
	tmp := filepath.Join(b.Dir, "rootfs/tmp")
	rig.Eventually(t, "the script has ended", func() bool {
		_, err := os.Stat(tmp + "/done")
		return err == nil
	})
	out := read(t, tmp+"/out")
	must(t, os.RemoveAll(tmp), os.Mkdir(tmp, 0o755))
	return out
}
