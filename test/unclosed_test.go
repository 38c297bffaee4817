package test

import (
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestAUserNamespaceWithoutDeviceRules: Podman's containers with --uidmap have no rule that denies.
// They start, reach no GPU and keep what every container has, and what they were given
// (docs/adr/0024).
func TestAUserNamespaceWithoutDeviceRules(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					unclosed(t, rig.NewNode(t, rig.Setup{Runtime: runtime}), runtime == "crun")
					if runtime == "crun" { // TestAUserNamespaceHasItsLimit has runc
						t.Run("limited", func(t *testing.T) { limitedInAUserNamespace(t, runtime) })
					}
				})
			}
		})
	}
}

// unclosed runs such a container, whose image contains the nodes of a GPU and of fuse. If open is
// set, the runtime lets the GPU be opened without gpuledger.
func unclosed(t *testing.T, n *rig.Node, open bool) {
	const script = `for node in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/ptmx; do
  (: <$node) 2>/dev/null || echo $node
done
for node in /dev/tty /tmp/fuse /tmp/gpu; do # of which no driver or terminal may be there
  (: <$node) 2>&1 | /bin/busybox grep -q "not permitted" && echo $node
done; echo >/dev/null && echo end`
	for name, c := range map[string]struct {
		rules []specs.LinuxDeviceCgroup
		shut  string
	}{
		"no rule": {nil, "/tmp/fuse\n/tmp/gpu\n"},
		"a rule":  {[]specs.LinuxDeviceCgroup{allowing(10, 229)}, "/tmp/gpu\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var mounts []specs.Mount
			whole := func(s *specs.Spec) { mounts = s.Mounts } // userNamespace leaves /dev/pts out
			b := n.Bundle(strings.ReplaceAll(name, " ", "-"), rig.Shell(script), whole, userNamespace,
				func(s *specs.Spec) {
					s.Mounts = mounts
					s.Linux.Resources.Devices = c.rules
				})
			for node, number := range map[string]uint64{"gpu": unix.Mkdev(195, 0),
				"fuse": unix.Mkdev(10, 229)} {
				path := filepath.Join(b.Dir, "rootfs/tmp", node)
				must(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(number)))
			}
			if r := b.RealRun(); open && strings.Contains(r.Stdout, "/tmp/gpu") {
				t.Errorf("the runtime alone: %+v, want the GPU open, or this test shows nothing", r)
			}
			b.RealDelete()
			if r := b.Run(); r.Code != 0 || r.Stdout != c.shut+"end\n" {
				t.Errorf("got %+v, want the container to run, and closed:\n%s", r, c.shut)
			}
			if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit, "device rules closed") {
				t.Errorf("it is not in the audit log: %s", audit)
			}
		})
	}
	t.Run("before a hook alone", func(t *testing.T) {
		b := n.Bundle("hooked", rig.Shell(script), n.Hooked, userNamespace,
			func(s *specs.Spec) { s.Linux.Resources.Devices = nil })
		isRefusedByHook(t, b.RealRun(), grant.InjectionImpossible)
	})
	n.CheckSound("at the end")
}

func allowing(major, minor int64) specs.LinuxDeviceCgroup {
	return specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
}
