package daemon

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestAFindingIsAReasonOnceForAnInventory: a new inventory that does not agree with the watch is
// not taken again, but one that another process has written since is.
func TestAFindingIsAReasonOnceForAnInventory(t *testing.T) {
	s := daemontest.NewNode(t)
	s.Policy.Inventory.Source = grant.Simulated
	boot, err := s.Host.BootID()
	write := func() {
		daemontest.Must(t, gpu.Write(gpu.Path(s.Policy.StateDir), grant.Inventory{BootID: boot,
			Source: string(grant.Simulated), GPUs: []grant.GPU{{UUID: daemontest.GPU, Memory: grant.GiB,
				Health: grant.Healthy}}}))
	}
	write()
	log := logrus.New()
	log.SetOutput(t.Output())
	i := newInventoryManager(func() *node.Node { return s.Node }, "",
		func() string { return "a GPU is missing" }, log)
	calls := 0
	i.run = func(*exec.Cmd) ([]byte, error) { calls++; write(); return nil, nil }
	ensured := func(want int) {
		t.Helper()
		for range 2 {
			daemontest.Must(t, err, i.Ensure(t.Context()))
		}
		if calls != want {
			t.Errorf("%d inventories were taken, want %d", calls, want)
		}
	}
	ensured(1)
	write() // by an administrator, with what an earlier scan found
	i.retry = time.Time{}
	ensured(2)
}

// TestAGPUThatAnswersAndFailsByTurns has the inventory taken more and more rarely.
func TestAGPUThatAnswersAndFailsByTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while this process does
		s := daemontest.NewNode(t)
		s.Policy.Inventory.Source = grant.Simulated
		boot, err := s.Host.BootID()
		daemontest.Must(t, err, gpu.Write(gpu.Path(s.Policy.StateDir), grant.Inventory{BootID: boot,
			Source: string(grant.Simulated), GPUs: []grant.GPU{{UUID: daemontest.GPU, Memory: grant.GiB,
				Health: grant.Healthy}}}))
		log := logrus.New()
		log.SetOutput(t.Output())
		stale := ""
		i := newInventoryManager(func() *node.Node { return s.Node }, "", func() string { return stale }, log)
		calls := 0
		i.run = func(*exec.Cmd) ([]byte, error) { calls++; return nil, nil }
		for want := range 4 {
			for _, stale = range []string{"it fails", "", "it answers again", "", "it fails", ""} {
				daemontest.Must(t, i.Ensure(t.Context()))
			}
			if wait := firstScan << want; calls != want+1 || i.wait != wait {
				t.Errorf("%d inventories were taken, and it waits for %s; want %d and %s", calls, i.wait,
					want+1, wait)
			}
			i.retry = time.Now() // the wait is over
		}
		i.retry = time.Now().Add(-2 * lastScan)
		daemontest.Must(t, i.Ensure(t.Context()))
		if i.wait != 0 {
			t.Errorf("after a minute without a reason it waits for %s", i.wait)
		}
	})
}

// TestDRMNodesThatAppearLater: the inventory is taken again when nvidia-drm is loaded after it.
func TestDRMNodesThatAppearLater(t *testing.T) {
	s := daemontest.NewNode(t)
	dir := t.TempDir()
	s.Host.Proc, s.Host.Sys = dir, dir
	s.Policy.Inventory.Source = grant.NVML
	device := dir + "/bus/pci/devices/0000:01:00.0"
	daemontest.Must(t, os.MkdirAll(device, 0o755), os.MkdirAll(dir+"/sys/kernel/random", 0o755),
		os.WriteFile(dir+"/sys/kernel/random/boot_id", []byte("boot\n"), 0o644),
		os.WriteFile(dir+"/devices", []byte("Character devices:\n"), 0o644))
	write := func(render ...string) {
		daemontest.Must(t, gpu.Write(gpu.Path(s.Policy.StateDir), grant.Inventory{BootID: "boot",
			Source: string(grant.NVML), GPUs: []grant.GPU{{UUID: daemontest.GPU, Memory: grant.GiB,
				PCI: "0000:01:00.0", Render: render, Health: grant.Healthy}}}))
	}
	write()
	i := newInventoryManager(func() *node.Node { return s.Node }, "", func() string { return "" }, nil)
	if why := i.reason(); why != "" {
		t.Error(why)
	}
	daemontest.Must(t, os.MkdirAll(device+"/drm/renderD128", 0o755))
	if why := i.reason(); !strings.HasPrefix(why, "the inventory has DRM nodes [] for GPU 0") {
		t.Errorf("got %q", why)
	}
	write("/dev/dri/renderD128")
	if why := i.reason(); why != "" {
		t.Error(why)
	}
}

// TestANewInventoryWithAProblem is not taken again at once: another one would have it, too.
func TestANewInventoryWithAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while this process does
		s := daemontest.NewNode(t)
		s.Policy.Inventory.Source = grant.Simulated
		log := logrus.New()
		log.SetOutput(t.Output())
		i := newInventoryManager(func() *node.Node { return s.Node }, "", func() string { return "" }, log)
		calls := 0
		i.run = func(*exec.Cmd) ([]byte, error) { calls++; return nil, nil } // and there is still none
		for want := range 5 {
			for range 3 {
				daemontest.Must(t, i.Ensure(t.Context()))
			}
			if wait := firstScan << want; calls != want+1 || i.wait != wait {
				t.Errorf("%d inventories were taken, and it waits for %s; want %d and %s", calls, i.wait,
					want+1, wait)
			}
			i.retry = time.Time{}
		}
	})
}

// A child that hangs in the kernel ends neither by a signal nor by a cancelled context. The daemon
// goes on without it, starts no second child beside it, and tries again when it has ended.
func TestAHangingRefreshIsGivenUp(t *testing.T) {
	release, calls := make(chan struct{}), 0
	i := &inventoryManager{command: []string{"/nowhere"}, within: time.Millisecond, ends: time.Millisecond,
		run: func(*exec.Cmd) ([]byte, error) {
			calls++
			<-release
			return nil, nil
		}}
	if err := i.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be ended") {
		t.Fatalf("the first returns %v", err)
	}
	if err := i.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "hangs in the kernel") {
		t.Fatalf("while it hangs the next returns %v", err)
	}
	close(release)
	<-i.running
	i.within, i.ends = time.Minute, time.Minute
	if err := i.refresh(t.Context()); err != nil || calls != 2 {
		t.Errorf("when it has ended: %v, %d children", err, calls)
	}
	i.ends = time.Millisecond

	stopped, stop := context.WithCancel(t.Context())
	hang := make(chan struct{})
	defer close(hang)
	i.run = func(*exec.Cmd) ([]byte, error) { stop(); <-hang; return nil, nil }
	if err := i.refresh(stopped); err == nil { // and the daemon can end
		t.Error("a refresh that hangs is taken for done")
	}
}

func TestARefreshReportsItsChildsError(t *testing.T) {
	for name, row := range map[string]struct{ script, want string }{
		"done":              {"exit 0", ""},
		"it complains":      {"echo 'gpuledger: cannot load NVML: no driver'; echo more; exit 1", "cannot refresh the inventory: cannot load NVML: no driver"},
		"it prints nothing": {"exit 3", "cannot refresh the inventory: exit status 3"},
		"it has no end":     {"echo begun; exec sleep 600", "cannot refresh the inventory: no answer within 100ms"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInventoryManager(nil, "", nil, nil)
			i.command, i.ends = []string{"/bin/sh", "-c", row.script}, time.Minute
			if name == "it has no end" {
				i.within = 100 * time.Millisecond
			}
			err := i.refresh(t.Context())
			if err == nil {
				err = errors.New("")
			}
			if err.Error() != row.want {
				t.Errorf("it returns %q, want %q", err, row.want)
			}
		})
	}
}
