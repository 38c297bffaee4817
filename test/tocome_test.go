package test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// ruled replaces a spec's device rules.
func ruled(t *testing.T, rules ...string) rig.Edit {
	return func(s *specs.Spec) {
		s.Linux.Resources.Devices = nil
		for _, text := range rules {
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, parseRule(t, text))
		}
	}
}

// engineRules are the device rules of an ordinary container: runc spec's, containerd 1.7's and
// 2.4's (oci.WithDefaultUnixDevices), Docker's (oci/defaults.go), Podman's and CRI-O's.
var engineRules = map[string][]string{
	"runc's":       {"deny a rwm"},
	"containerd's": {"deny a rwm", "allow c *:* m", "allow b *:* m", "allow c 1:3 rwm", "allow c 1:8 rwm", "allow c 1:7 rwm", "allow c 5:0 rwm", "allow c 1:5 rwm", "allow c 1:9 rwm", "allow c 5:1 rwm", "allow c 136:* rwm", "allow c 5:2 rwm"},
	"Docker's":     {"deny a rwm", "allow c 1:5 rwm", "allow c 1:3 rwm", "allow c 1:9 rwm", "allow c 1:8 rwm", "allow c 5:0 rwm", "allow c 5:1 rwm", "deny c 10:229 rwm", "allow c *:* m", "allow b *:* m"},
	"CRI-O's":      {"deny a rwm", "allow c 10:229 rwm", "allow c 1:3 rwm", "allow c 136:* rwm"},
	"Podman's":     {"deny a rwm", "allow c 10:200 rwm"},
}

// TestRulesBeforeTheDriver: a rule for a number without a driver opens the device that NVIDIA's
// driver creates with it later, at boot or by an operator's pod. The bare runtime shows that such a
// rule stays in force (docs/adr/0065).
func TestRulesBeforeTheDriver(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		n.Write("config.toml", strings.Replace(read(t, n.Config), `source = "simulated"`,
			`source = "nvml"`, 1))
		must(t, os.Remove(n.Dir+"/state/inventory.json"))
		devices := n.Write("devices", "Character devices:\n  1 mem\n 10 misc\n226 drm\n240 other\n500 "+
			"third\n\nBlock devices:\n  7 loop\n")
		rig.Mount(t, devices, "/proc/devices", "", syscall.MS_BIND, "")
		rig.Mount(t, "tmpfs", "/sys/dev/char", "tmpfs", 0, "")
		rig.Mount(t, "tmpfs", "/sys/bus/pci/devices", "tmpfs", 0, "")
		device := func(dir, vendor, class string) {
			must(t, os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/vendor", []byte(vendor+"\n"), 0o644),
				os.WriteFile(dir+"/class", []byte(class+"\n"), 0o644))
		}
		device("/sys/dev/char/226:1/device", "0x1002", "0x030000") // another vendor's
		device("/sys/bus/pci/devices/0000:00:02.0", "0x1002", "0x030000")
		device("/sys/bus/pci/devices/0000:00:03.0", "0x10de", "0x040300") // sound

		toCome := []string{"c 226:* rwm", "c 226:0 rw", "c 226:128 r", "c 511:* rwm", "c 511:0 rw",
			"c 384:* w", "c 254:* rwm", "c 234:1 rwm", "c 499:* rwm"}
		others := []string{"c *:* m", "b *:* m", "c 511:* m", "c 240:* rwm", "c 500:* rwm", "c 226:1 rw",
			"c 233:* rwm", "c 255:* rwm", "c 383:* rwm", "c 600:* rwm", "b 511:* rwm"}
		starts := func(what string, rules ...string) {
			t.Helper()
			b := n.Bundle("c", rig.Light, ruled(t, rules...), rig.Shell("echo started"))
			before := string(b.Config())
			if r := b.Run(); r.Code != 0 || r.Stdout != "started\n" || r.Stderr != "" ||
				string(b.Config()) != before {
				t.Errorf("%s: %+v, want it started and untouched", what, r)
			}
		}
		for _, rule := range toCome {
			starts(rule+" on a machine without NVIDIA's GPUs", "deny a rwm", "allow "+rule)
		}
		starts("everything on a machine without NVIDIA's GPUs", "allow a rwm")
		starts("all character devices there", "deny a rwm", "allow c *:* rwm")

		device("/sys/bus/pci/devices/0000:01:00.0", "0x10de", "0x030200")
		wantRefused(t, n.Bundle("c", rig.Light, ruled(t, "allow a rwm")).Run(), "inventory-missing")
		for engine, rules := range engineRules {
			starts(engine, rules...)
		}
		for _, rule := range others {
			starts(rule, "deny a rwm", "allow "+rule)
		}
		starts("a rule that is taken back", "deny a rwm", "allow c 511:* rwm", "deny c 511:* rwm")
		b := n.Bundle("runs", rig.Shell("exec sleep 1000"))
		for _, r := range []rig.Result{b.Create(), b.Start()} {
			if r.Code != 0 {
				t.Fatal(r)
			}
		}
		for _, rule := range toCome {
			refused := n.Bundle("c", rig.Light, ruled(t, "deny a rwm", "allow "+rule))
			wantRefused(t, refused.Run(), "inventory-missing") // which weighs more
			if r := refused.Explain(); r.Code != 3 || !strings.Contains(r.Stdout, "gpu-device-rule") {
				t.Errorf("%s: %+v", rule, r)
			}
			words := strings.Fields(rule)
			major, minor, _ := strings.Cut(words[1], ":")
			numbers := `"major":` + major
			if minor != "*" {
				numbers += `,"minor":` + minor
			}
			wantRefused(t, update(b, `{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c",`+
				numbers+`,"access":"`+words[2]+`"}]}`), "gpu-device-rule")
		}

		early := n.Bundle("early", rig.Light, ruled(t, "deny a rwm", "allow c 511:* rwm"),
			rig.Shell("cat /gpu"))
		mknod(t, early.Dir+"/rootfs/gpu", 511, 0)
		if r := early.RealRun(); !strings.Contains(r.Stderr, "No such device or address") {
			t.Errorf("the bare runtime: %+v, want the node opened that has no driver yet", r)
		}
	})
}
