package request

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

func TestDeviceNodes(t *testing.T) {
	node := func(path, kind string, major, minor int64) func(*scene) {
		return func(s *scene) { s.device(path, kind, major, minor) }
	}
	check(t, []row{
		{"/dev/fuse", node("/dev/fuse", "c", 10, 229), nil},
		{"a disk with a GPU's numbers", node("/dev/sdx", "b", 195, 0), nil},
		{"a GPU", node("/dev/nvidia0", "c", 195, 0), []string{
			"gpu-device-node | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:/dev/nvidia0"}},
		{"a GPU by another name", node("/dev/foo", "c", 195, 7),
			[]string{"gpu-device-node | device:/dev/foo | c 195:7 | node=nvidia/7 | -device:/dev/foo"}},
		{"another device by a GPU's name", node("/dev/nvidia0", "c", 1, 3), nil},
		{"a GPU as unbuffered device", node("/dev/nvidia0", "u", 195, 0),
			[]string{"gpu-device-node | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
				"-device:/dev/nvidia0"}},
		{"a type that crun takes for a character device", node("/dev/x", "x", 195, 0),
			[]string{"gpu-device-node | device:/dev/x | c 195:0 | node=nvidia/0 | -device:/dev/x"}},
		{"a fifo", node("/dev/x", "p", 195, 0), nil},
		{"numbers that mknod cuts down to a GPU's", node("/dev/x", "c", 195+4096, 1+1<<20),
			[]string{"gpu-device-node | device:/dev/x | c 195:1 | node=nvidia/1 | -device:/dev/x"}},
		{"the control node", node("/dev/nvidiactl", "c", 195, 255),
			[]string{"gpu-device-node | device:/dev/nvidiactl | c 195:255 | node=nvidiactl/255 | " +
				"-device:/dev/nvidiactl"}},
		{"modeset", node("/dev/nvidia-modeset", "c", 195, 254),
			[]string{"gpu-device-node | device:/dev/nvidia-modeset | c 195:254 | drop=nvidia-modeset/254 | " +
				"-device:/dev/nvidia-modeset"}},
		{"UVM by the major of this boot", node("/dev/nvidia-uvm", "c", majorUVM, 0),
			[]string{"gpu-device-node | device:/dev/nvidia-uvm | c 508:0 | node=nvidia-uvm/0 | " +
				"-device:/dev/nvidia-uvm"}},
		{"UVM by the major of another boot", node("/dev/nvidia-uvm", "c", 500, 0), nil},
		{"a capability", node("/dev/nvidia-caps/nvidia-cap1", "c", majorCaps, 1),
			[]string{"gpu-device-node | device:/dev/nvidia-caps/nvidia-cap1 | c 509:1 | node=nvidia-caps/1 " +
				"| -device:/dev/nvidia-caps/nvidia-cap1"}},
		{"an IMEX channel", node("/dev/nvidia-caps-imex-channels/channel0", "c", majorIMEX, 0), []string{
			"gpu-device-node | device:/dev/nvidia-caps-imex-channels/channel0 | c 510:0 | " +
				"node=nvidia-caps-imex-channels/0 | -device:/dev/nvidia-caps-imex-channels/channel0"}},
		{"a switch", node("/dev/nvidia-nvswitch0", "c", majorSwitch, 0),
			[]string{"gpu-device-node | device:/dev/nvidia-nvswitch0 | c 507:0 | node=nvidia-nvswitch/0 | " +
				"-device:/dev/nvidia-nvswitch0"}},
		{"an NVIDIA GPU's DRM node", node("/dev/dri/renderD128", "c", 226, 128),
			[]string{"gpu-device-node | device:/dev/dri/renderD128 | c 226:128 | node=drm/128 | " +
				"-device:/dev/dri/renderD128"}},
		{"another vendor's DRM node", node("/dev/dri/renderD129", "c", 226, 129), nil},
		{"CAP_SYS_ADMIN with a GPU's node is a privileged shape", func(s *scene) {
			s.caps("CAP_SYS_ADMIN")
			s.device("/dev/nvidia0", "c", 195, 0)
		}, []string{"privileged-gpu | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:/dev/nvidia0"}},
	})
}

// In a user namespace runc binds the host's node at the path and ignores the numbers.
func TestDeviceNodesInAUserNamespace(t *testing.T) {
	check(t, []row{
		{"false numbers over a GPU's path", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/nvidia0", 195, 0), "c", 1, 3)
		}, []string{"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
			"-device:T/dev/nvidia0"}},
		{"false numbers outside a user namespace, where they count", func(s *scene) {
			s.device(s.mknod("dev/nvidia0", 195, 0), "c", 1, 3)
		}, nil},
		{"the control node's numbers over a GPU's path", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/nvidia0", 195, 0), "c", 195, 255)
		}, []string{"gpu-device-node | device:T/dev/nvidia0 | c 195:255 | node=nvidiactl/255 | " +
			"-device:T/dev/nvidia0",
			"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:T/dev/nvidia0"}},
		{"a block device's type over a GPU's path", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/nvidia0", 195, 0), "b", 8, 0)
		}, []string{"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
			"-device:T/dev/nvidia0"}},
		{"a GPU's node, once", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/nvidia0", 195, 0), "c", 195, 0)
		}, []string{"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
			"-device:T/dev/nvidia0"}},
		{"a link to a GPU", func(s *scene) {
			s.userNamespace()
			s.mknod("dev/nvidia0", 195, 0)
			s.device(s.Link("nvidia0", "dev/x"), "c", 1, 3)
		}, []string{"gpu-device-node | device:T/dev/x | c 195:0 | node=nvidia/0 | -device:T/dev/x"}},
		{"an NVIDIA DRM node by path", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/renderD128", 226, 128), "c", 1, 3)
		}, []string{"gpu-device-node | device:T/dev/renderD128 | c 226:128 | node=drm/128 | " +
			"-device:T/dev/renderD128"}},
		{"the runtime's own links in /proc", func(s *scene) {
			s.userNamespace()
			s.device("/proc/self/fd/987", "c", 1, 3)
		}, []string{
			"gpu-device-node | device:/proc/self/fd/987 | " + grant.UnknownTarget + " | never"}},
		{"a path relative to the bundle", func(s *scene) {
			s.userNamespace()
			s.mknod("dev/nvidia0", 195, 0)
			s.device("../dev/nvidia0", "c", 195, 0)
		}, []string{
			"gpu-device-node | device:../dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:../dev/nvidia0"}},
		{"nothing at the path", func(s *scene) {
			s.userNamespace()
			s.device(s.Path("dev/none"), "c", 1, 3)
		}, nil},
		{"a path through a file", func(s *scene) {
			s.userNamespace()
			s.device(s.Touch("file")+"/x", "c", 1, 3)
		}, nil},
		{"/dev/null", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/null", 1, 3), "c", 1, 3)
		}, nil},
	})
}

func TestDeviceRules(t *testing.T) {
	rules := func(texts ...string) func(*scene) { return func(s *scene) { s.rules(texts...) } }
	add := func(texts ...string) func(*scene) { return func(s *scene) { s.addRules(texts...) } }
	const (
		privileged = "privileged-gpu | rule:0 | a *:* rwm | narrow"
		none       = "gpu-device-rule | rule:none | no device rule is given | narrow"
		unclosed   = "gpu-device-rule | rule:none | the device rules do not begin by denying all | narrow"
		gpu0       = "gpu-device-rule | rule:1 | c 195:0 rwm | node=nvidia/0 | -rule:c 195:0"
		allGPUs    = "gpu-device-rule | rule:1 | c 195:* rwm | never | -rule:c 195:*"
	)
	check(t, []row{
		{"containerd's own", func(*scene) {}, nil},
		{"Docker's own", rules("deny a", "allow c 1:5 rwm", "allow c 1:3 rwm", "allow c 1:9 rwm",
			"allow c 1:8 rwm", "allow c 5:0 rwm", "allow c 5:1 rwm", "deny c 10:229 rwm"), nil},
		{"Podman's own", rules("deny a"), nil},
		{"deny all, the type left out", rules("deny -"), nil},
		{"making any node", add("allow c *:* m", "allow b *:* m"), nil},
		{"making a GPU's node", add("allow c 195:* m"), nil},
		{"any disk", add("allow b *:* rwm"), nil},
		{"a disk with a GPU's numbers", add("allow b 195:0 rwm"), nil},
		{"another driver's devices", add("allow c 10:* rwm"), nil},
		{"UVM's major of another boot", add("allow c 500:* rwm"), nil},

		{"a GPU", rules("deny a", "allow c 195:0 rwm"), []string{gpu0}},
		{"a GPU, read only", rules("deny a", "allow c 195:0 r"),
			[]string{"gpu-device-rule | rule:1 | c 195:0 r | node=nvidia/0 | -rule:c 195:0"}},
		{"a GPU, write only", rules("deny a", "allow c 195:0 w"),
			[]string{"gpu-device-rule | rule:1 | c 195:0 w | node=nvidia/0 | -rule:c 195:0"}},
		{"a GPU, the access left out", rules("deny a", "allow c 195:0 -"), []string{gpu0}},
		{"every GPU", rules("deny a", "allow c 195:* rwm"), []string{allGPUs}},
		{"the control node", rules("deny a", "allow c 195:255 rw"),
			[]string{"gpu-device-rule | rule:1 | c 195:255 rw | node=nvidiactl/255 | -rule:c 195:255"}},
		{"modeset", rules("deny a", "allow c 195:254 rw"),
			[]string{"gpu-device-rule | rule:1 | c 195:254 rw | drop=nvidia-modeset/254 | -rule:c 195:254"}},
		{"UVM", rules("deny a", "allow c 508:0 rw"), []string{
			"gpu-device-rule | rule:1 | c 508:0 rw | node=nvidia-uvm/0 | -rule:c 508:0"}},
		{"capabilities", rules("deny a", "allow c 509:* rw"),
			[]string{"gpu-device-rule | rule:1 | c 509:* rw | never | -rule:c 509:*"}},
		{"the first minor of every major", rules("deny a", "allow c *:0 rw"),
			[]string{"gpu-device-rule | rule:1 | c *:0 rw | never | -rule:c *:0"}},
		{"every character device", rules("deny a", "allow c *:* rwm"),
			[]string{"gpu-device-rule | rule:1 | c *:* rwm | never | -rule:c *:*"}},
		{"an NVIDIA DRM node", rules("deny a", "allow c 226:128 rw"),
			[]string{"gpu-device-rule | rule:1 | c 226:128 rw | node=drm/128 | -rule:c 226:128"}},
		{"another vendor's DRM node", rules("deny a", "allow c 226:129 rw"), nil},
		{"every DRM node", rules("deny a", "allow c 226:* rw"),
			[]string{"gpu-device-rule | rule:1 | c 226:* rw | never | -rule:c 226:*"}},

		{"everything", rules("allow a"), []string{privileged}},
		{"everything, the type left out", rules("allow -"), []string{privileged}},
		{"everything, by a rule that names a device beside it", rules("deny a", "allow a 1:3 m"),
			[]string{"privileged-gpu | rule:1 | a *:* m | narrow"}},
		{"everything, then nothing", rules("allow a", "deny a"), nil},
		{"everything, then nothing, then a GPU", rules("allow a", "deny a", "allow c 195:0 rwm"),
			[]string{"gpu-device-rule | rule:2 | c 195:0 rwm | node=nvidia/0 | -rule:c 195:0"}},
		{"nothing, then everything", rules("deny a", "allow a"),
			[]string{"privileged-gpu | rule:1 | a *:* rwm | narrow"}},

		{"no rules", rules(), []string{none}},
		{"rules that do not begin by denying all: crun on cgroup v1 adds them to the parent's",
			rules("allow c 1:3 rwm"), []string{unclosed}},
		{"the same, denying all in the end", rules("allow c 1:3 rwm", "deny a"), nil},
		{"the same, denying the GPUs alone", rules("deny c 195:* rwm", "deny c 507:* rwm", "deny c 508:* rwm",
			"deny c 509:* rwm", "deny c 510:* rwm", "deny c 226:* rwm"), nil},
		{"the same, forgetting DRM", rules("deny c 195:* rwm", "deny c 507:* rwm", "deny c 508:* rwm",
			"deny c 509:* rwm", "deny c 510:* rwm"), []string{unclosed}},

		{"allowed, then denied", rules("deny a", "allow c 195:0 rwm", "deny c 195:0 rwm"), nil},
		{"denied, then allowed", rules("deny a", "deny c 195:0 rwm", "allow c 195:0 rwm"),
			[]string{"gpu-device-rule | rule:2 | c 195:0 rwm | node=nvidia/0 | -rule:c 195:0"}},
		{"allowed, then a wider deny, which cgroup v1 ignores",
			rules("deny a", "allow c 195:0 rwm", "deny c 195:* rwm"), []string{gpu0}},
		{"allowed, then a narrower deny", rules("deny a", "allow c 195:* rwm", "deny c 195:0 rwm"),
			[]string{allGPUs}},
		{"a deny of reading leaves writing", rules("deny a", "allow c 195:0 rwm", "deny c 195:0 r"), []string{
			gpu0}},
		{"a deny of making leaves all that counts", rules("deny a", "allow c 195:0 rwm", "deny c 195:0 m"),
			[]string{gpu0}},
		{"a deny without access denies nothing", rules("deny a", "allow c 195:0 rwm", "deny c 195:0 -"),
			[]string{gpu0}},
		{"denied again in full", rules("deny a", "allow c 195:0 r", "allow c 195:0 w", "deny c 195:0 rw"),
			nil},

		{"everything but the majors of GPUs and DRM", rules("allow a", "deny c 195:* rwm", "deny c 507:* rwm",
			"deny c 508:* rwm", "deny c 509:* rwm", "deny c 510:* rwm", "deny c 226:* rwm"), nil},
		{"everything but the majors of GPUs", rules("allow a", "deny c 195:* rwm", "deny c 507:* rwm",
			"deny c 508:* rwm", "deny c 509:* rwm", "deny c 510:* rwm"), []string{privileged}},
		{"everything but 195", rules("allow a", "deny c 195:* rwm"), []string{privileged}},
		{"everything but the first GPU", rules("allow a", "deny c 195:0 rwm"), []string{privileged}},
		{"everything but making GPUs' nodes", rules("allow a", "deny c 195:* m", "deny c 507:* m",
			"deny c 508:* m", "deny c 509:* m", "deny c 510:* m", "deny c 226:* m"), []string{privileged}},
		{"everything but character devices", rules("allow a", "deny c *:* rw"), nil},
		{"everything but character devices, then a GPU",
			rules("allow a", "deny c *:* rwm", "allow c 195:3 rw"),
			[]string{"gpu-device-rule | rule:2 | c 195:3 rw | node=nvidia/3 | -rule:c 195:3"}},

		{"a type that crun takes for a character device",
			rules("deny a", "allow u 195:0 rwm", "allow char 195:1 rwm"),
			[]string{gpu0, "gpu-device-rule | rule:2 | c 195:1 rwm | node=nvidia/1 | -rule:c 195:1"}},
		{"a major that C cuts down to a GPU's", rules("deny a", "allow c 4294967491:* rwm"),
			[]string{allGPUs}},
		{"a major that C takes for all", rules("deny a", "allow c 2147483648:* rwm"),
			[]string{"gpu-device-rule | rule:1 | c *:* rwm | never | -rule:c *:*"}},
		{"a deny by such a major denies nothing", rules("deny a", "allow c 195:0 rwm",
			"deny c 4294967491:0 rwm"), []string{gpu0}},
		{"a major below -1, then denied: on cgroup v2 runc takes them for two devices, both of them all",
			rules("deny a", "allow c -7:* rwm", "deny c *:* rwm"),
			[]string{"gpu-device-rule | rule:1 | c *:* rwm | never | -rule:c *:*"}},
		{"a negative major means all", rules("deny a", "allow c -1:-1 rwm"),
			[]string{"gpu-device-rule | rule:1 | c *:* rwm | never | -rule:c *:*"}},

		{"CAP_MKNOD, as every container has it", func(s *scene) { s.caps("CAP_MKNOD") }, nil},
		{"CAP_MKNOD with an open rule", func(s *scene) {
			s.caps("CAP_MKNOD")
			s.rules("deny a", "allow c *:* rw")
		}, []string{"gpu-device-rule | rule:1 | c *:* rw | never | -rule:c *:*"}},
		{"IMEX channels", rules("deny a", "allow c 510:* rw"),
			[]string{"gpu-device-rule | rule:1 | c 510:* rw | never | -rule:c 510:*"}},
		{"a switch", rules("deny a", "allow c 507:0 rw"), []string{
			"gpu-device-rule | rule:1 | c 507:0 rw | node=nvidia-nvswitch/0 | -rule:c 507:0"}},
		{"cgroups switched off, whatever the rules say", func(s *scene) { s.caller.CgroupsOff = true },
			[]string{"rules-not-enforced | rule:none | the device cgroup is switched off | never"}},
		{"cgroups switched off for a privileged container: no rule of ours would hold it", func(s *scene) {
			s.caller.CgroupsOff = true
			s.caps("CAP_SYS_ADMIN")
			s.device("/dev/nvidia0", "c", 195, 0)
		}, []string{"rules-not-enforced | rule:none | the device cgroup is switched off | never",
			"privileged-gpu | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:/dev/nvidia0"}},
		{"no linux part at all", func(s *scene) { s.spec.Linux = nil }, []string{none}},
		{"no resources", func(s *scene) { s.spec.Linux.Resources = nil }, []string{none}},
	})
}

// TestWhereNoDeviceRuleHolds: in a user namespace what counts is which nodes come in.
func TestWhereNoDeviceRuleHolds(t *testing.T) {
	unruled := func(setup func(*scene)) func(*scene) { return func(s *scene) { s.unruled(); setup(s) } }
	const dev = "gpu-bind-mount | mount:/host | T/dev | drop"
	check(t, []row{
		{"an ordinary container", unruled(func(*scene) {}), nil},
		{"an annotation that changes device rules", unruled(func(s *scene) {
			s.spec.Annotations = map[string]string{"org.systemd.property.DeviceAllow": "[('x', 'rw')]",
				"org.systemd.property.DevicePolicy": "'auto'", "org.systemd.property.PIDs": "[uint32 1]",
				"run.oci.delegate-cgroup": "../x", "run.oci.systemd.subgroup": ".."}
		}), nil},
		{"an annotation that changes device rules, and a GPU's node", unruled(func(s *scene) {
			s.spec.Annotations = map[string]string{"run.oci.delegate-cgroup": "../x"}
			s.device("/dev/nvidia0", "c", 195, 0)
		}), []string{
			"gpu-device-node | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:/dev/nvidia0"}},
		{"no rules, as rootless Podman writes them", unruled(func(s *scene) { s.rules() }), nil},
		{"rules for everything", unruled(func(s *scene) {
			s.rules("allow a")
			s.caps("CAP_SYS_ADMIN", "CAP_MKNOD")
		}), nil},
		{"a rule for a GPU, of which nobody can make the node",
			unruled(func(s *scene) { s.addRules("allow c 195:* rwm") }), nil},
		{"cgroups switched off, as rootless engines have them on cgroup v1",
			unruled(func(s *scene) { s.caller.CgroupsOff = true }), nil},
		{"a GPU's node", unruled(func(s *scene) { s.device("/dev/nvidia0", "c", 195, 0) }),
			[]string{"gpu-device-node | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
				"-device:/dev/nvidia0"}},
		{"a path that is a GPU's node, which the runtime binds whatever the numbers",
			unruled(func(s *scene) { s.device(s.mknod("dev/nvidia0", 195, 0), "c", 1, 3) }),
			[]string{"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
				"-device:T/dev/nvidia0"}},
		{"another node", unruled(func(s *scene) { s.device(s.mknod("dev/null", 1, 3), "c", 1, 3) }), nil},
		{"a mount of a GPU's node", unruled(func(s *scene) { s.bind(s.mknod("dev/nvidia0", 195, 0), "/x") }),
			[]string{"gpu-bind-mount | mount:/x | T/dev/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"the node's /dev", unruled(func(s *scene) { s.bind(s.Path("dev"), "/host") }), []string{dev}},
		{"the node's /dev, whatever the rules deny", unruled(func(s *scene) {
			s.rules("deny a")
			s.bind(s.Path("dev"), "/host")
		}), []string{dev}},
		{"a parent of /dev", unruled(func(s *scene) { s.bind(s.Dir, "/host") }),
			[]string{"gpu-bind-mount | mount:/host | T | drop"}},
		{"a directory of GPUs' nodes", unruled(func(s *scene) {
			s.Mkdir("dev/dri")
			s.mknod("dev/dri/renderD128", 226, 128)
			s.bind(s.Path("dev/dri"), "/host")
		}),
			[]string{"gpu-bind-mount | mount:/host | T/dev/dri | drop"}},
		{"another directory of /dev", unruled(func(s *scene) { s.bind(s.Mkdir("dev/snd"), "/host") }), nil},
		{"a volume", unruled(func(s *scene) { s.bind(s.Mkdir("volume"), "/data") }), nil},
		{"a root file system with the node's /dev", unruled(func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Dir}
		}), []string{"gpu-bind-mount | root | T | never"}},
		{"one without", unruled(func(s *scene) {
			s.Mkdir("bundle/rootfs")
			s.spec.Root = &specs.Root{Path: "rootfs"}
		}), nil},
		{"with CAP_SYS_ADMIN, taking the nodes away leaves the mount", unruled(func(s *scene) {
			s.caps("CAP_SYS_ADMIN")
			s.device("/dev/nvidia0", "c", 195, 0)
			s.bind(s.Path("dev"), "/host")
		}), []string{"privileged-gpu | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:/dev/nvidia0",
			dev}},
		{"and so is a root file system in the machine's first one", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Dir}
		}, nil},
	})
	for name, setup := range map[string]func(*scene){"in a user namespace": (*scene).unruled,
		"as another user than root": func(s *scene) { s.node.Host.UID = 1000 }} {
		s := newScene(t)
		setup(s)
		s.userNamespace()
		s.rules()
		if r := s.find(); !r.Unruled || r.Unclosed || len(r.Hits) != 0 {
			t.Errorf("%s: unruled %v, unclosed %v, hits %v: what holds nothing is not closed, and "+
				"lets nothing in", name, r.Unruled, r.Unclosed, r.Hits)
		}
	}
}

// TestUnclosed: what a container in a user namespace keeps where nothing but the lack of a rule
// that denies all lets it reach GPUs.
func TestUnclosed(t *testing.T) {
	fuse := grant.DeviceRule{Allow: true, Type: 'c', Major: 10, Minor: 229, Access: "rwm"}
	for _, c := range []struct {
		name     string
		make     func(*scene)
		unclosed bool
		keeps    []grant.DeviceRule
	}{
		{"Podman's with --uidmap", func(s *scene) { s.userNamespace(); s.rules() }, true, nil},
		{"and with --device", func(s *scene) { s.userNamespace(); s.rules("allow c 10:229 rwm") }, true, []grant.DeviceRule{fuse}},
		{"and with a privilege", func(s *scene) { s.userNamespace(); s.rules("allow a") }, false, nil},
		{"all majors", func(s *scene) { s.userNamespace(); s.rules("allow b *:1 r") }, true, []grant.DeviceRule{{Allow: true, Type: 'b', Major: -1, Minor: 1, Access: "r"}}},
		{"an engine's that denies all first", func(s *scene) { s.userNamespace() }, false, nil},
		{"one that denies in between", func(s *scene) { s.userNamespace(); s.rules("allow c 1:3 rwm", "deny c 1:3 rwm") }, false, nil},
		{"a type that readers take for different ones", func(s *scene) { s.userNamespace(); s.rules("allow u 10:229 rwm") }, false, nil},
		{"a number that they take for different ones", func(s *scene) { s.userNamespace(); s.rules("allow c 4294967306:229 rwm") }, false, nil},
		{"no access", func(s *scene) { s.userNamespace(); s.rules("allow c 10:229 -") }, false, nil},
		{"no user namespace", func(s *scene) { s.rules() }, false, nil},
		{"cgroups switched off", func(s *scene) { s.userNamespace(); s.rules(); s.caller.CgroupsOff = true }, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.make(s)
			if r := s.find(); r.Unclosed != c.unclosed || !slices.Equal(r.Rules, c.keeps) {
				t.Errorf("%v %+v, want %v %+v", r.Unclosed, r.Rules, c.unclosed, c.keeps)
			}
		})
	}
}

// TestEverythingWithoutAGPU: on a machine without an NVIDIA GPU a container that may open every
// device reaches none. A rule for 195 still counts: that number is NVIDIA's
// everywhere.
func TestEverythingWithoutAGPU(t *testing.T) {
	on := func(cards bool, change func(*scene)) func(*scene) {
		return func(s *scene) {
			s.node.Majors = func() (map[string]int, error) { return nil, nil }
			s.node.DRM = func() (map[int]bool, error) { return map[int]bool{1: false, 129: false}, nil }
			s.node.Taken = func() (map[int]bool, error) { return map[int]bool{1: true, 226: true}, nil }
			s.node.Cards = func() bool { return cards }
			change(s)
		}
	}
	rules := func(texts ...string) func(*scene) { return func(s *scene) { s.rules(texts...) } }
	off := func(s *scene) { s.caller.CgroupsOff = true }
	dev := func(s *scene) { s.unruled(); s.bind(s.Path("dev"), "/host") }
	var rows []row
	for _, c := range []row{
		{"a privileged container", rules("allow a"),
			[]string{"privileged-gpu | rule:0 | a *:* rwm | narrow"}},
		{"nothing, then everything", rules("deny a", "allow a"),
			[]string{"privileged-gpu | rule:1 | a *:* rwm | narrow"}},
		{"every character device", rules("deny a", "allow c *:* rwm"),
			[]string{"gpu-device-rule | rule:1 | c *:* rwm | never | -rule:c *:*"}},
		{"no rules", rules(), []string{"gpu-device-rule | rule:none | no device rule is given | narrow"}},
		{"rules that do not begin by denying all", rules("allow c 1:3 rwm"), []string{"gpu-device-rule | " +
			"rule:none | the device rules do not begin by denying all | narrow"}},
		{"cgroups that are switched off", off,
			[]string{"rules-not-enforced | rule:none | the device cgroup is switched off | never"}},
		{"a rootless engine's, with the node's /dev", dev,
			[]string{"gpu-bind-mount | mount:/host | T/dev | drop"}},
	} {
		rows = append(rows, row{c.name, on(true, c.setup), c.want},
			row{c.name + " without a GPU", on(false, c.setup), nil})
	}
	exact := func(i int) []string {
		return []string{fmt.Sprintf("gpu-device-rule | rule:%d | c 195:0 rw | node=nvidia/0 | "+
			"-rule:c 195:0", i)}
	}
	rows = append(rows,
		row{"NVIDIA's major", on(false, rules("deny a", "allow c 195:0 rw")), exact(1)},
		row{"NVIDIA's major beside everything", on(false, rules("allow a", "allow c 195:0 rw")), exact(1)},
		row{"NVIDIA's major before everything", on(false, rules("allow c 195:0 rw", "allow a")), exact(0)},
		row{"a driver alone", on(false, func(s *scene) {
			s.node.Majors = func() (map[string]int, error) { return map[string]int{"nvidia-uvm": 508}, nil }
			s.rules("allow a")
		}), []string{"privileged-gpu | rule:0 | a *:* rwm | narrow"}})
	check(t, rows)

	s := newScene(t)
	on(false, rules("allow a"))(s)
	if r := s.find(); r.AllDevices || r.Privileged {
		t.Errorf("its rules would be replaced: %+v", r)
	}
	s.node.Majors = func() (map[string]int, error) { return nil, errors.New("no /proc/devices") }
	if _, err := Find(s.spec, s.caller, s.node); err == nil {
		t.Error("it does not fail where it cannot tell")
	}
}

func TestWhatMakesAContainerPrivileged(t *testing.T) {
	for _, c := range []struct {
		name                      string
		setup                     func(*scene)
		privileged, all, sysAdmin bool
	}{
		{"an ordinary one", func(*scene) {}, false, false, false},
		{"a rule for everything", func(s *scene) { s.rules("allow a") }, true, true, false},
		{"a rule for everything that is denied again", func(s *scene) { s.rules("allow a", "deny a") }, false, false, false},
		{"a rule for every character device", func(s *scene) { s.rules("deny a", "allow c *:* rwm") }, false, false, false},
		{"CAP_SYS_ADMIN alone", func(s *scene) { s.caps("CAP_SYS_ADMIN") }, false, false, true},
		{"CAP_SYS_ADMIN in lower case, as libcap takes it", func(s *scene) { s.caps("cap_sys_admin") }, false, false, true},
		{"CAP_SYS_ADMIN with a node that is no GPU's", func(s *scene) { s.caps("CAP_SYS_ADMIN"); s.device("/dev/fuse", "c", 10, 229) }, false, false, true},
		{"CAP_SYS_ADMIN with a GPU's node", func(s *scene) { s.caps("CAP_SYS_ADMIN"); s.device("/dev/nvidia0", "c", 195, 0) }, true, false, true},
		{"no rules", func(s *scene) { s.rules() }, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			r := s.find()
			if r.Privileged != c.privileged || r.AllDevices != c.all || r.SysAdmin != c.sysAdmin {
				t.Errorf("privileged %v, all devices %v, CAP_SYS_ADMIN %v", r.Privileged,
					r.AllDevices, r.SysAdmin)
			}
		})
	}
}

// The vendor of a DRM node stands in sysfs, which costs a look for each: only a spec that has to do
// with DRM pays it.
func TestDRMNodesAreToldApartByVendor(t *testing.T) {
	s := newScene(t)
	for device, vendor := range map[string]string{"226:0": "0x10de\n", "226:128": "0x10de\n",
		"226:1": "0x8086\n"} {
		s.Mkdir("sys/dev/char/" + device + "/device")
		s.Must(os.WriteFile(s.Path("sys/dev/char/"+device+"/device/vendor"), []byte(vendor), 0o644))
	}
	s.Mkdir("sys/dev/char/226:2") // a virtual one has no vendor
	looked := 0
	s.node.DRM = func() (map[int]bool, error) { looked++; return host.Host{Sys: s.Path("sys")}.DRM() }
	s.wantHits()
	if looked != 0 {
		t.Error("an ordinary container made it look into sysfs")
	}
	for minor := range int64(3) {
		s.device("/dev/dri/card", "c", 226, minor)
	}
	s.wantHits("gpu-device-node | device:/dev/dri/card | c 226:0 | node=drm/0 | -device:/dev/dri/card")
	looked = 0
	if s.find(); looked != 1 {
		t.Errorf("it looked into sysfs %d times", looked)
	}
}

func TestFindFailsWhereItCannotTell(t *testing.T) {
	broken := errors.New("sysfs is gone")
	for name, setup := range map[string]func(*scene){
		"a DRM rule": func(s *scene) { s.addRules("allow c 226:129 rw") },
		"a DRM node": func(s *scene) { s.device("/dev/dri/renderD129", "c", 226, 129) },
		"a mount of a DRM node": func(s *scene) {
			s.bind(s.mknod("dev/renderD129", 226, 129), "/dev/dri/renderD129")
		},
		"such a mount among good": func(s *scene) {
			s.bind(s.mknod("dev/renderD129", 226, 129), "/a")
			s.bind(s.mknod("dev/null", 1, 3), "/b")
		},
		"rules for everything":    func(s *scene) { s.rules("allow a") },
		"rules that do not begin": func(s *scene) { s.rules("deny c 195:* rwm") },
	} {
		s := newScene(t)
		s.node.DRM = func() (map[int]bool, error) { return nil, broken }
		setup(s)
		if _, err := Find(s.spec, s.caller, s.node); !errors.Is(err, broken) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	s := newScene(t)
	s.node.DRM = func() (map[int]bool, error) { return nil, broken }
	s.wantHits() // one that has to do with no DRM node starts
}

// An error that is followed by a success is still an error.
func TestFindKeepsItsFirstError(t *testing.T) {
	s := newScene(t)
	calls := 0
	s.node.DRM = func() (map[int]bool, error) {
		if calls++; calls == 1 {
			return nil, errors.New("once")
		}
		return map[int]bool{}, nil
	}
	s.bind(s.mknod("dev/renderD128", 226, 128), "/a")
	s.bind(s.Path("dev/renderD128"), "/b")
	if _, err := Find(s.spec, s.caller, s.node); err == nil || err.Error() != "once" {
		t.Errorf("got %v", err)
	}
}

func TestTheMapOfMajorsIsHandedOn(t *testing.T) {
	s := newScene(t)
	s.node.Majors = func() (map[string]int, error) { return nil, nil }
	s.rules("allow a")
	if got := s.find().Devices; len(got.Majors) != 1 || got.Majors[grant.MajorNVIDIA] != grant.ClassGPU {
		t.Errorf("without a driver: %+v", got)
	}
	s = newScene(t)
	s.rules("allow a")
	got := s.find().Devices
	if got.Majors[majorUVM] != grant.ClassUVM || got.Majors[majorSwitch] != "nvidia-nvswitch" ||
		!got.DRM[128] || got.DRM[129] {
		t.Errorf("with one: %+v", got)
	}
	if slices.Contains([]grant.NodeClass{"nvidiactl", "nvidia-modeset"}, got.Majors[195]) {
		t.Error("a minor's name stands for the whole major")
	}
}

func TestMajorsAreReadOnlyForASpecThatNamesOne(t *testing.T) {
	s := newScene(t)
	s.node.Majors = func() (map[string]int, error) { return nil, errors.New("no /proc") }
	if got := s.find(); len(got.Hits) != 0 {
		t.Errorf("an ordinary container: %+v", got.Hits)
	}
	s.rules("deny a *:* rwm", "allow c 511:0 rw")
	if _, err := Find(s.spec, s.caller, s.node); err == nil || err.Error() != "no /proc" {
		t.Errorf("one whose rule could be the driver's: %v", err)
	}
}

// Rules that take the place of "everything" leave out majors that nobody has, so it is asked who
// has which; nobody else pays.
func TestMajorsOfOthersAreAskedForByARuleForEverything(t *testing.T) {
	s := newScene(t)
	asked := 0
	s.node.Taken = func() (map[int]bool, error) { asked++; return map[int]bool{10: true, 500: true}, nil }
	s.addRules("allow c 195:* rw")
	if r := s.find(); asked != 0 || r.Devices.Taken != nil {
		t.Errorf("asked %d times", asked)
	}
	s.rules("allow a")
	if r := s.find(); asked != 1 || !r.Devices.Taken[500] {
		t.Errorf("asked %d times: %v", asked, r.Devices.Taken)
	}
	s.node.Taken = func() (map[int]bool, error) { return nil, errors.New("no /proc/devices") }
	if _, err := Find(s.spec, s.caller, s.node); err == nil {
		t.Error("it does not fail where it cannot tell")
	}
}

// TestRulesForNumbersToCome: with an NVIDIA GPU in the machine, a number that is nobody's can
// become one of its driver's.
func TestRulesForNumbersToCome(t *testing.T) {
	on := func(cards bool, rules ...string) func(*scene) {
		return func(s *scene) {
			s.node.Majors = func() (map[string]int, error) { return nil, nil }
			s.node.DRM = func() (map[int]bool, error) { return map[int]bool{1: false, 129: false}, nil }
			s.node.Taken = func() (map[int]bool, error) {
				return map[int]bool{1: true, 10: true, 226: true, 240: true, 500: true}, nil
			}
			s.node.Cards = func() bool { return cards }
			s.rules(append([]string{"deny a"}, rules...)...)
		}
	}
	const why = " (a number that NVIDIA's driver gets when it is loaded)"
	hit := func(rule string) []string {
		device, _, _ := strings.Cut(rule, " rw")
		cover, minor := "never", 0
		if n, _ := fmt.Sscanf(device, "c 226:%d", &minor); n == 1 { // a grant may be of it
			cover = fmt.Sprintf("node=drm/%d", minor)
		}
		return []string{"gpu-device-rule | rule:1 | " + rule + why + " | " + cover + " | -rule:" + device}
	}
	var rows []row
	for _, rule := range []string{"c 226:* rwm", "c 226:0 rw", "c 226:128 rw", "c 511:* rwm", "c 511:0 rwm",
		"c 384:7 rw", "c 254:* rwm", "c 234:* rwm"} {
		rows = append(rows, row{rule, on(true, "allow "+rule), hit(rule)},
			row{rule + " without a GPU", on(false, "allow "+rule), nil})
	}
	for _, rule := range []string{"c 226:1 rw", "c 226:129 rwm", "c 240:* rwm", "c 500:0 rw", "c 233:* rwm",
		"c 255:* rwm", "c 383:* rwm", "c 512:* rwm", "c 511:* m", "c *:* m", "b 511:* rwm", "c 10:200 rwm"} {
		rows = append(rows, row{rule, on(true, "allow "+rule), nil})
	}
	denials := []string{"allow a", "deny c 195:* rwm", "deny c 226:* rwm"}
	for major := int64(234); major <= 511; major++ {
		if (major <= 254 || major >= 384) && major != 240 && major != 500 {
			denials = append(denials, fmt.Sprintf("deny c %d:* rwm", major))
		}
	}
	everything := []string{"privileged-gpu | rule:1 | a *:* rwm | narrow"}
	rows = append(rows, row{"everything but what could come", on(true, denials...), nil},
		row{"everything but some", on(true, denials[:100]...), everything},
		row{"everything but DRM", on(true, append(slices.Clone(denials[:2]), denials[3:]...)...), everything},
		row{"everything but the last number", on(true, denials[:len(denials)-1]...), everything},
		row{"everything but 195 and DRM", on(true, denials[:3]...), everything},
		row{"the same without a GPU", on(false, denials[:3]...), nil},
		row{"what is asked of the kernel is not told", func(s *scene) {
			on(true, "allow c 10:* rwm")(s)
			s.node.Taken = func() (map[int]bool, error) { return nil, errors.New("no /proc/devices") }
		}, nil})
	drm := func(nodes map[int]bool, rule string) func(*scene) {
		return func(s *scene) {
			on(true, rule)(s)
			s.node.DRM = func() (map[int]bool, error) { return nodes, nil }
		}
	}
	rows = append(rows, row{"all DRM nodes, of which one is a GPU's",
		drm(map[int]bool{0: false, 128: true}, "allow c 226:* rwm"),
		[]string{"gpu-device-rule | rule:1 | c 226:* rwm | never | -rule:c 226:*"}},
		row{"a rule that is the first", func(s *scene) { on(true)(s); s.rules("allow c 511:0 rw") },
			[]string{"gpu-device-rule | rule:none | the device rules do not begin by denying all | narrow",
				"gpu-device-rule | rule:0 | c 511:0 rw" + why + " | never | -rule:c 511:0"}},
		row{"a DRM node beside a GPU's", drm(map[int]bool{0: true}, "allow c 226:5 rw"), hit("c 226:5 rw")})
	check(t, rows)

	s := newScene(t)
	on(true, "allow c 511:* rw")(s)
	s.node.Taken = func() (map[int]bool, error) { return nil, errors.New("no /proc/devices") }
	if _, err := Find(s.spec, s.caller, s.node); err == nil {
		t.Error("it does not fail where it cannot tell")
	}
}
