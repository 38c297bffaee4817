package test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/test/rig"
)

// driverProc puts a driver's directory for each of these PCI addresses into /proc. Only the test's
// own processes see it.
func driverProc(t *testing.T, addresses ...string) (gpus string) {
	t.Helper()
	if _, err := os.Stat("/proc/driver"); err != nil {
		t.Skip("this kernel has no /proc/driver: that a container sees only its GPUs there is not shown")
	}
	gpus = "/proc/driver/nvidia/gpus"
	rig.Mount(t, "driver", "/proc/driver", "tmpfs", 0, "")
	for _, pci := range addresses {
		must(t, os.MkdirAll(gpus+"/"+pci, 0o755), os.WriteFile(gpus+"/"+pci+"/information",
			[]byte("Model: a GPU\n"), 0o444))
	}
	return gpus
}

// TestOtherGPUsAreNotListed: of the driver's directories in /proc a container sees its own GPUs;
// one that was not edited sees all. The container has the node's /proc, because the driver of this
// test is only there.
func TestOtherGPUsAreNotListed(t *testing.T) {
	layout := rig.V1 // crun 1.8 refuses a machine with both
	if _, err := os.Stat("/sys/fs/cgroup/devices"); err != nil {
		layout = rig.V2
	}
	if rig.Under(t, layout) {
		return
	}
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			rig.NeedRuntime(t, runtime)
			n := rig.NewNode(t, rig.Setup{GPUs: 3, Runtime: runtime})
			gpus := driverProc(t, "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
			b := n.Bundle("c", with(n.Grant("--memory", "1GiB", "--gpu", "1")),
				rig.Shell("cd "+gpus+" && echo */information"), func(s *specs.Spec) {
					s.Linux.MaskedPaths = []string{"/proc/keys"}
					i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool {
						return m.Destination == "/proc"
					})
					s.Mounts[i] = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc",
						Options: []string{"rbind"}}
				})
			all := rig.Run(n.Real("run", "--bundle", b.Dir, "plain"))
			if all.Code != 0 || strings.Count(all.Stdout, "/information") != 3 {
				t.Fatalf("without gpuledger: %+v", all)
			}
			if r := b.Run(); r.Stdout != "0000:02:00.0/information\n" {
				t.Errorf("%+v", r)
			}
			var spec specs.Spec
			must(t, json.Unmarshal(b.Config(), &spec))
			if want := []string{"/proc/keys", gpus + "/0000:01:00.0",
				gpus + "/0000:03:00.0"}; !slices.Equal(spec.Linux.MaskedPaths, want) {
				t.Errorf("masked are %q", spec.Linux.MaskedPaths)
			}
		})
	}
}

// sysDrivers gives each GPU of an inventory a PCI device with a link to its driver in /sys, which
// only the test's own processes see. It returns the second one's link, or "" without a PCI bus.
func sysDrivers(t *testing.T, gpus []grant.GPU) (link string) {
	t.Helper()
	if _, err := os.Stat("/sys/bus/pci"); err != nil {
		t.Log("this kernel has no PCI bus: that a GPU was bound again is not shown")
		return ""
	}
	rig.Mount(t, "bus", "/sys/bus/pci", "tmpfs", 0, "")
	for i := range gpus {
		device := "/sys/bus/pci/devices/" + gpus[i].PCI
		must(t, os.MkdirAll(device, 0o755), os.Symlink("../../drivers/nvidia", device+"/driver"))
		gpus[i].DriverLink = host.DriverLink(host.Default(), gpus[i].PCI)
	}
	return "/sys/bus/pci/devices/" + gpus[1].PCI + "/driver"
}

// TestChangesSinceTheInventoryAreSeen at the next create, by files of /proc and /sys alone. With
// runc, on a node whose inventory came from NVML.
func TestChangesSinceTheInventoryAreSeen(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	snapshot := filepath.Join(n.Dir, "state/inventory.json")
	var inv grant.Inventory
	must(t, json.Unmarshal([]byte(read(t, snapshot)), &inv))
	inv.Source, inv.Majors = "nvml", map[string]int{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509}
	driver := sysDrivers(t, inv.GPUs)
	data, err := json.Marshal(inv)
	must(t, err, os.WriteFile(snapshot, data, 0o600))
	n.Write("config.toml", strings.Replace(read(t, n.Config), `source = "simulated"`, `source = "nvml"`, 1))
	gpus := driverProc(t, inv.GPUs[0].PCI, inv.GPUs[1].PCI)
	devices := n.Write("devices", strings.Replace(read(t, "/proc/devices"), "Block devices:",
		"195 nvidia\n508 nvidia-uvm\n509 nvidia-caps\n\nBlock devices:", 1))
	rig.Mount(t, devices, "/proc/devices", "", syscall.MS_BIND, "")
	b := n.Bundle("c", with(n.Grant("--memory", "1GiB", "--gpu", "0")), rig.Shell("echo runs"))
	config := b.Config()
	create := func() rig.Result { b.WriteConfig(config); return b.Run() }
	if r := create(); r.Stdout != "runs\n" {
		t.Fatalf("as it was: %+v", r)
	}
	mig := filepath.Dir(gpus) + "/capabilities/gpu1/mig/gi3/ci0"
	was := read(t, devices)
	type change struct {
		name, code string
		do, undo   func() error
	}
	changes := []change{
		{"MIG devices were made", "inventory-stale", func() error { return os.MkdirAll(mig, 0o755) },
			func() error { return os.RemoveAll(filepath.Dir(gpus) + "/capabilities") }},
		{"nvidia-uvm was loaded again", "inventory-stale", func() error {
			return os.WriteFile(devices, []byte(strings.Replace(was, "508 ", "507 ", 1)), 0o600)
		},
			func() error { return os.WriteFile(devices, []byte(was), 0o600) }},
		{"the GPU was removed", "gpu-unhealthy", func() error {
			return os.Rename(gpus+"/"+inv.GPUs[0].PCI, gpus+"/x")
		}, func() error { return os.Rename(gpus+"/x", gpus+"/"+inv.GPUs[0].PCI) }},
		{"another GPU was removed", "", func() error { return os.RemoveAll(gpus + "/" + inv.GPUs[1].PCI) },
			func() error { return nil }},
	}
	if driver != "" {
		again := func() error {
			return errors.Join(os.Rename(driver, driver+"-was"), os.Symlink("../../drivers/nvidia", driver))
		}
		back := func() error { return os.Rename(driver+"-was", driver) }
		changes = slices.Insert(changes, 0,
			change{"another GPU was bound to the driver again", "inventory-stale", again, back})
	}
	for _, change := range changes {
		must(t, change.do())
		if r := create(); change.code == "" && r.Stdout != "runs\n" {
			t.Errorf("%s: %+v", change.name, r)
		} else if change.code != "" {
			wantRefused(t, r, change.code)
		}
		must(t, change.undo())
		if r := create(); r.Stdout != "runs\n" {
			t.Errorf("after %s: %+v", change.name, r)
		}
	}
}
