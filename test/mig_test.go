package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// partition makes MIG devices of each of a node's GPUs: GPU 0 has 0:0 with capabilities 66 and 67,
// 0:1 with 75 and 76, 0:2 with 12 and 13.
func partition(t *testing.T, n *rig.Node) grant.Inventory {
	t.Helper()
	n.Must("inventory", "simulate", "--gpus", "2", "--memory", "80GiB", "--mig", "1g.10gb,1g.10gb,3g.40gb",
		"--out", n.Dir+"/node.json")
	n.Must("inventory", "refresh")
	return snapshot(t, n)
}

func snapshot(t *testing.T, n *rig.Node) (inv grant.Inventory) {
	t.Helper()
	must(t, json.Unmarshal([]byte(read(t, n.Dir+"/state/inventory.json")), &inv))
	return inv
}

// migProbe opens what the driver would make for each MIG device of GPU 0, and nodes that it makes
// for missing ones. Nothing is behind the nodes of a simulated node, so one that may be opened is
// "No such device or address".
func migProbe(inv grant.Inventory) string {
	caps := inv.Majors["nvidia-caps"]
	script := `open() { [ -e "$1" ] && state=there || { state=made; /bin/busybox mknod /tmp/x c $2 $3; set -- /tmp/x; }; echo "$state $(/bin/busybox cat "$1" 2>&1 | /bin/busybox sed "s/.*: //")"; /bin/busybox rm -f /tmp/x; }
`
	for _, minor := range []int{1, 12, 13, 66, 67, 75, 76} {
		script += fmt.Sprintf("open /dev/nvidia-caps/nvidia-cap%d %d %d\n", minor, caps, minor)
	}
	return script + "open /dev/nvidia0 195 0\nopen /dev/nvidia1 195 1\nopen /dev/nvidiactl 195 255\necho " +
		"$NVIDIA_VISIBLE_DEVICES\n"
}

// onlyTheFirst is what migProbe prints if 0:0 is granted.
func onlyTheFirst(inv grant.Inventory, visible string) string {
	const closed, open = "made Operation not permitted\n", "there No such device or address\n"
	return strings.Repeat(closed, 3) + open + open + closed + closed + open + closed + open + visible + "\n"
}

// TestAContainerReachesItsMIGDevice and no other: the instances of its neighbours and the
// capability to create some are closed. By the wrapper, by a hook before a bare runtime, and by CDI
// names before and behind the wrapper.
func TestAContainerReachesItsMIGDevice(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		realHook(t, n)
		inv := partition(t, n)
		first := inv.GPUs[0].MIG[0].UUID
		reference := n.Grant("--gpu", "0:0", "--cdi")
		n.Must("cdi", "generate")
		probe := rig.Shell(migProbe(inv))
		wrapper, hook := (*rig.Bundle).Run, (*rig.Bundle).RealRun
		for _, c := range []struct {
			name    string
			run     func(*rig.Bundle) rig.Result
			edits   []rig.Edit
			visible string
		}{
			{"by reference", wrapper, []rig.Edit{with(reference)}, first},
			{"by UUID", wrapper, []rig.Edit{with(reference), rig.Env("NVIDIA_VISIBLE_DEVICES=" + first)}, first},
			{"by place", wrapper, []rig.Edit{with(reference), rig.Env("NVIDIA_VISIBLE_DEVICES=0:0", "NVIDIA_MIG_CONFIG_DEVICES=all")}, first},
			{"a hook", hook, []rig.Edit{with(reference), rig.Env("NVIDIA_VISIBLE_DEVICES=0:0"), n.Hooked}, "0:0"},
			{"CDI name of the grant", wrapper, []rig.Edit{injected(t, n, grant.CDIKindGrant+"="+reference.String())}, first},
			{"CDI name of the grant and the hook alone", hook, []rig.Edit{injected(t, n, grant.CDIKindGrant+"="+reference.String())}, first},
			{"CDI name of the device", wrapper, []rig.Edit{with(reference), injected(t, n, "gpuledger.dev/gpu=0:0")}, first},
		} {
			b := n.Bundle(strings.ReplaceAll(c.name, " ", "-"), append(c.edits, probe)...)
			if r := c.run(b); r.Stdout != onlyTheFirst(inv, c.visible) || r.Code != 0 {
				t.Errorf("%s: %+v\nwant\n%s", c.name, r, onlyTheFirst(inv, c.visible))
			}
			becomesFree(t, n, reference.ID)
		}
	})
}

// TestDevicesOutsideAMIGGrantAreRefused by wrapper and hook alike, and so are devices without a
// grant.
func TestDevicesOutsideAMIGGrantAreRefused(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	realHook(t, n)
	inv := partition(t, n)
	n.Must("cdi", "generate")
	reference := n.Grant("--gpu", "0:0")
	second, caps := inv.GPUs[0].MIG[1].UUID, int64(inv.Majors["nvidia-caps"])
	for i, c := range []struct {
		name, code string
		granted    bool
		edit       rig.Edit
	}{
		{"its neighbour by UUID", "visible-devices-outside-grant", true, rig.Env("NVIDIA_VISIBLE_DEVICES=" + second)},
		{"its neighbour by place", "visible-devices-outside-grant", true, rig.Env("NVIDIA_VISIBLE_DEVICES=0:1")},
		{"its card", "visible-devices-outside-grant", true, rig.Env("NVIDIA_VISIBLE_DEVICES=0")},
		{"its neighbour's instance", "gpu-device-node", true, device("/dev/nvidia-caps/nvidia-cap75", caps, 75)},
		{"the right to partition", "gpu-device-node", true, device("/dev/nvidia-caps/nvidia-cap1", caps, 1)},
		{"its neighbour's CDI name", "gpu-device-node", true, injected(t, n, "gpuledger.dev/gpu="+second)},
		{"a MIG device without a grant", "visible-devices-outside-grant", false, rig.Env("NVIDIA_VISIBLE_DEVICES=" + second)},
		{"a place without a grant", "visible-devices-outside-grant", false, rig.Env("NVIDIA_VISIBLE_DEVICES=0:0")},
		{"an instance without a grant", "gpu-device-node", false, device("/dev/nvidia-caps/nvidia-cap66", caps, 66)},
	} {
		edits := []rig.Edit{rig.Shell("echo started")}
		if c.granted {
			edits = append(edits, with(reference))
		}
		edits = append(edits, c.edit)
		wantRefused(t, n.Bundle(fmt.Sprintf("w%d", i), edits...).Run(), c.code)
		if !strings.Contains(c.name, "CDI") { // those bring the hook along
			edits = append(edits, n.Hooked)
		}
		isRefusedByHook(t, n.Bundle(fmt.Sprintf("h%d", i), edits...).RealRun(), grant.Code(c.code))
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
	wantState(t, n, reference.ID, "nothing was admitted", grant.Free)
}

// TestExplainListsTheFilesOfAMIGDevice that a container would get.
func TestExplainListsTheFilesOfAMIGDevice(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	inv := partition(t, n)
	reference := n.Grant("--profile", "3g.40gb")
	r := n.Bundle("c", with(reference)).Explain()
	caps := inv.Majors["nvidia-caps"]
	for _, want := range []string{"admit by grant " + string(reference.ID) +
		" (0/3g.40gb:40GiB), strength hardware\n",
		fmt.Sprintf("  + device /dev/nvidia-caps/nvidia-cap12 (c %d:12)\n  + device "+
			"/dev/nvidia-caps/nvidia-cap13 (c %d:13)\n", caps, caps)} {
		if !strings.Contains(r.Stdout, want) || r.Code != 0 {
			t.Errorf("%+v, want %q", r, want)
		}
	}
}

// TestGraphicsNodesInAContainer: by the wrapper and by a hook before a bare runtime, which run
// the probe on a node with a render node and a card node, both with links by their address.
func TestGraphicsNodesInAContainer(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	inv := snapshot(t, n)
	inv.GPUs[0].Render = []string{"/dev/dri/card0", "/dev/dri/renderD128"}
	inv.GPUs[0].Links = []string{"/dev/dri/by-path/pci-0000:01:00.0-card",
		"/dev/dri/by-path/pci-0000:01:00.0-render"}
	data, err := json.Marshal(inv)
	must(t, err, os.WriteFile(n.Dir+"/state/inventory.json", data, 0o600))
	const probe = `for d in dri/card0 dri/renderD128 dri/renderD129 dri/by-path/pci-0000:01:00.0-card ` +
		`dri/by-path/pci-0000:01:00.0-render nvidia-modeset; do echo "$d $(stat -c %t:%T /dev/$d ` +
		`2>/dev/null || echo none)"; done`
	const all = "dri/card0 e2:0\ndri/renderD128 e2:80\ndri/renderD129 " +
		"none\ndri/by-path/pci-0000:01:00.0-card e2:0\ndri/by-path/pci-0000:01:00.0-render " +
		"e2:80\nnvidia-modeset c3:fe\n"
	const shared = "dri/card0 none\ndri/renderD128 e2:80\ndri/renderD129 " +
		"none\ndri/by-path/pci-0000:01:00.0-card none\ndri/by-path/pci-0000:01:00.0-render " +
		"e2:80\nnvidia-modeset none\n"
	none := regexp.MustCompile(`[0-9a-f]+:[0-9a-f]+\n`).ReplaceAllString(all, "none\n")
	for _, c := range []struct {
		name, capabilities, want string
		grant                    []string
	}{
		{"alone", "graphics", all, []string{"--mode", "exclusive"}},
		{"alone-display", "display,compute", all, []string{"--mode", "exclusive"}},
		{"alone-computing", "compute", none, []string{"--mode", "exclusive"}},
		{"shared", "all", shared, []string{"--mode", "timeslice", "--memory", "1GiB"}},
	} {
		reference := n.Grant(append(c.grant, "--gpu", "0")...)
		edits := []rig.Edit{with(reference), rig.Env("NVIDIA_DRIVER_CAPABILITIES=" + c.capabilities),
			rig.Shell(probe)}
		if r := n.Bundle(c.name, edits...).Run(); r.Stdout != c.want || r.Code != 0 {
			t.Errorf("%s: %+v, want\n%s", c.name, r, c.want)
		}
		becomesFree(t, n, reference.ID)
		if r := n.Bundle(c.name+"-hook", append(edits, n.Hooked)...).RealRun(); r.Stdout != c.want ||
			r.Code != 0 {
			t.Errorf("%s, by a hook: %+v, want\n%s", c.name, r, c.want)
		}
		becomesFree(t, n, reference.ID)
		n.Must("release", string(reference.ID))
	}
}

// TestNRIGivesAMIGDevice to a pod's container by its identity.
func TestNRIGivesAMIGDevice(t *testing.T) {
	n, e, _ := nriNode(t, "")
	inv := partition(t, n)
	g := n.Grant("--gpu", "0:0", "--owner", "pod:"+rig.Pod().Uid+"/train")
	b := n.Bundle("granted", ends(migProbe(inv)))
	must(t, e.Create(b))
	if got, want := runOf(t, e, b), onlyTheFirst(inv, inv.GPUs[0].MIG[0].UUID); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.End()
	becomesFree(t, n, g.ID)
	must(t, e.Remove(b.ID))
}

// TestChangedMIGDevicesAreRefused: each create verifies the granted one with the kernel. What has
// changed since the inventory was taken is refused until it is taken again.
func TestChangedMIGDevicesAreRefused(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	inv := partition(t, n)
	inv.Source, inv.Majors = "nvml", map[string]int{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509}
	data, err := json.Marshal(inv)
	must(t, err, os.WriteFile(n.Dir+"/state/inventory.json", data, 0o600))
	n.Write("config.toml", strings.Replace(read(t, n.Config), `source = "simulated"`, `source = "nvml"`, 1))
	gpus := driverProc(t, inv.GPUs[0].PCI, inv.GPUs[1].PCI)
	devices := n.Write("devices", strings.Replace(read(t, "/proc/devices"), "Block devices:",
		"195 nvidia\n508 nvidia-uvm\n509 nvidia-caps\n\nBlock devices:", 1))
	rig.Mount(t, devices, "/proc/devices", "", syscall.MS_BIND, "")
	if _, err := os.Stat("/sys/bus/pci"); err == nil { // the addresses are of no device of this machine
		rig.Mount(t, "bus", "/sys/bus/pci", "tmpfs", 0, "")
	}
	instance := func(gpu grant.GPU, m grant.MIGDevice) string {
		return filepath.Join(filepath.Dir(gpus), fmt.Sprintf("capabilities/gpu%d/mig/gi%d", gpu.Minor, m.GI))
	}
	for _, gpu := range inv.GPUs {
		for _, m := range gpu.MIG {
			dir := instance(gpu, m)
			must(t, os.MkdirAll(dir+"/ci0", 0o755), os.WriteFile(dir+"/access",
				fmt.Appendf(nil, "DeviceFileMinor: %d\n", m.Caps[0]), 0o444),
				os.WriteFile(dir+"/ci0/access", fmt.Appendf(nil, "DeviceFileMinor: %d\n", m.Caps[1]), 0o444))
		}
	}
	reference := n.Grant("--gpu", "0:0")
	b := n.Bundle("c", with(reference), rig.Shell("echo runs"))
	config := b.Config()
	create := func() rig.Result { b.WriteConfig(config); return b.Run() }
	if r := create(); r.Stdout != "runs\n" {
		t.Fatalf("as it was: %+v", r)
	}
	own, other := instance(inv.GPUs[0], inv.GPUs[0].MIG[0]), instance(inv.GPUs[1], inv.GPUs[1].MIG[1])
	for _, c := range []struct{ name, file, content, prints string }{
		{"made anew with another capability", own + "/ci0/access", "DeviceFileMinor: 70\n", "MIG device 0:0"},
		{"another one's capability", other + "/access", "DeviceFileMinor: 71\n", ""},
	} {
		was := read(t, c.file)
		must(t, os.WriteFile(c.file, []byte(c.content), 0o444))
		r := create()
		if c.prints == "" && r.Stdout != "runs\n" {
			t.Errorf("%s: %+v", c.name, r)
		}
		if c.prints != "" {
			if wantRefused(t, r, "inventory-stale"); !strings.Contains(r.Stderr, c.prints) ||
				!strings.Contains(r.Stderr, "gpuledger inventory refresh") {
				t.Errorf("%s: %+v", c.name, r)
			}
		}
		must(t, os.WriteFile(c.file, []byte(was), 0o444))
	}
	must(t, os.Rename(other, other+"0"))
	if wantRefused(t, create(), "inventory-stale"); t.Failed() {
		t.Error("another MIG device has another instance")
	}
}
