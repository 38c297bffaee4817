package test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// busy is a daemon's configuration with which it passes as often as it can.
const busy = "[daemon]\nlisten = \"\"\ninterval = \"10ms\"\n"

// entries are the files of the ledger's grants and bindings, counted or not.
func entries(n *rig.Node) (found []string) {
	for _, file := range n.Files() {
		if strings.HasPrefix(file, "state/grants/") || strings.HasPrefix(file, "run/bindings/") {
			found = append(found, file)
		}
	}
	return found
}

func TestDaemonTidiesTheLedger(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: adopts + busy})
	released, kept := n.Grant("--memory", "1GiB"), n.Grant("--memory", "1GiB")
	user, stays := starts(t, n.Bundle("user", with(released), rig.Light)),
		starts(t, n.Bundle("stays", with(kept), rig.Light))
	adopted := starts(t, n.Bundle("adopted", inPod("train"), allocated("train", "1", "4GiB"), rig.Light))
	n.Must("release", string(released.ID))
	d := n.Daemon("--nri", "off")
	rig.Eventually(t, "it is started", func() bool { return strings.Contains(d.Log(), "started") })
	if got := entries(n); len(got) != 6 {
		t.Errorf("while all containers run the ledger has %q", got)
	}
	user.KillInit() // an engine that crashed never deletes them
	adopted.KillInit()
	rig.Eventually(t, "only what is used is left", func() bool { return len(entries(n)) == 2 })
	if state := n.State(kept.ID); state != grant.Bound {
		t.Errorf("the grant in use is %s", state)
	}
	stays.KillInit()
	rig.Eventually(t, "the last grant is free", func() bool { return len(entries(n)) == 1 })
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("it ends with status %d", code)
	}
	n.CheckSound("after the daemon")
}

// TestDaemonTidiesBesideCreates: containers start and end under a daemon that tidies all the time,
// and each gets its grant.
func TestDaemonTidiesBesideCreates(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: adopts +
		"[daemon]\nlisten = \"\"\ninterval = \"1ms\"\n"})
	d := n.Daemon("--nri", "off")
	for round := range torture(3) {
		results := atOnce(6, func(i int) string {
			g := n.Grant("--memory", "1GiB")
			own := n.Bundle(fmt.Sprintf("own%d-%d", round, i), with(g), rig.Light)
			adopting := n.Bundle(fmt.Sprintf("adopts%d-%d", round, i),
				rig.Identity(fmt.Sprintf("uid-%d", i), "team", "job", "train"),
				allocated("train", "1", "1GiB"), rig.Light)
			for _, b := range []*rig.Bundle{own, adopting} {
				if r := b.Create(); r.Code != 0 {
					return fmt.Sprintf("create %s: %+v", b.ID, r)
				}
				if listed := n.Grants(); !slices.ContainsFunc(listed,
					func(g rig.Listed) bool {
						return len(g.Bindings) == 1 && g.Bindings[0].Container == b.ID
					}) {
					return fmt.Sprintf("%s runs and the ledger lists %+v", b.ID, listed)
				}
				b.KillInit()
			}
			n.Must("release", string(g.ID))
			return ""
		})
		for _, problem := range results {
			if problem != "" {
				t.Fatal(problem)
			}
		}
		// The next round's containers of the same pods would be second ones of their grants, and
		// have no room: a killed process may leave its cgroup a moment after it is a zombie.
		holdsNothing(t, n)
	}
	rig.Eventually(t, "nothing is left", func() bool { return len(entries(n)) == 0 })
	d.End(syscall.SIGKILL)
	n.CheckSound("after a daemon that was killed")
}

func TestDaemonRefreshesTheInventory(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: busy})
	d := n.Daemon("--nri", "off")
	snapshot := n.Dir + "/state/inventory.json"
	usable := func() bool { r := n.CLI("gpus"); return r.Code == 0 && r.Stderr == "" }
	must(t, os.Remove(snapshot))
	rig.Eventually(t, "a snapshot that was missing is there", usable)
	text, err := os.ReadFile(snapshot)
	must(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	old := strings.Replace(string(text), strings.TrimSpace(string(boot)),
		"00000000-0000-0000-0000-000000000000", 1)
	if old == string(text) {
		t.Fatal("the snapshot names no boot")
	}
	must(t, os.WriteFile(snapshot+".new", []byte(old), 0o600))
	must(t, os.Rename(snapshot+".new", snapshot))
	rig.Eventually(t, "a snapshot of another boot is replaced", usable)
	must(t, os.Rename(n.Dir+"/node.json", n.Dir+"/away.json"))
	must(t, os.Remove(snapshot))
	rig.Eventually(t, "a failed refresh is reported", func() bool {
		return strings.Contains(d.Log(), "inventory: cannot refresh the inventory: ")
	})
	must(t, os.Rename(n.Dir+"/away.json", n.Dir+"/node.json"))
	rig.Eventually(t, "it is tried again", usable)
}

func TestDaemonReloadsItsConfiguration(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: busy})
	d := n.Daemon("--nri", "off")
	rig.Eventually(t, "it is started", func() bool { return strings.Contains(d.Log(), "started") })
	good, err := os.ReadFile(n.Config)
	must(t, err)
	write := func(text string) {
		must(t, os.WriteFile(n.Config+".new", []byte(text), 0o600))
		must(t, os.Rename(n.Config+".new", n.Config))
	}
	write(string(good) + "[polisy]\n")
	d.Signal(syscall.SIGHUP)
	rig.Eventually(t, "a mistake is reported", func() bool {
		return strings.Contains(d.Log(), "the configuration stays as it was") &&
			strings.Contains(d.Log(), "unknown key")
	})
	write(strings.Replace(string(good), "10ms", "20ms", 1))
	rig.Eventually(t, "a change is in force", func() bool {
		return strings.Contains(d.Log(), "the configuration has changed and is in force") &&
			strings.Contains(d.Log(), "interval=20ms")
	})
	d.Signal(syscall.SIGHUP)
	rig.Eventually(t, "requests are answered", func() bool {
		return strings.Contains(d.Log(), "the configuration is read again")
	})
	write(strings.Replace(string(good), n.Dir+"/run", n.Dir+"/run2", 1))
	// It writes its pid once it has the lock. Before that, a second daemon could have it.
	rig.Eventually(t, "it has moved to another run directory", func() bool {
		holder, _ := os.ReadFile(n.Dir + "/run2/gpuledgerd.lock")
		return string(holder) == fmt.Sprintln(d.PID())
	})
	if r := rig.Run(n.Command(rig.Binary(t, "gpuledgerd"), "--nri", "off")); r.Code != 1 ||
		!strings.Contains(r.Stderr, "runs already") {
		t.Errorf("a second daemon: %+v", r)
	}
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("it ends with status %d", code)
	}
}

// TestDaemonNotifiesSystemd that it is ready, that it is alive, and that it ends.
func TestDaemonNotifiesSystemd(t *testing.T) {
	short, err := os.MkdirTemp("/tmp", "s-") // a socket's name has 107 bytes at most
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(short)) })
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: short + "/notify", Net: "unixgram"})
	must(t, err)
	defer l.Close()
	n := rig.NewNode(t, rig.Setup{Config: busy})
	n.Env = append(n.Env, "NOTIFY_SOCKET="+short+"/notify", "WATCHDOG_USEC=30000")
	d := n.Daemon("--nri", "off")
	receives := func() string {
		text := make([]byte, 64)
		must(t, l.SetReadDeadline(time.Now().Add(time.Minute)))
		count, err := l.Read(text)
		must(t, err)
		return string(text[:count])
	}
	var beats int
	ready := false
	for beats < 3 || !ready {
		switch word := receives(); word {
		case "READY=1":
			ready = true
		case "WATCHDOG=1":
			beats++
		default:
			t.Fatalf("systemd receives %q", word)
		}
	}
	d.Signal(syscall.SIGTERM)
	last := ""
	for last = receives(); last == "WATCHDOG=1"; last = receives() {
	}
	if code := d.End(0); last != "STOPPING=1" || code != 0 { // a second SIGTERM would kill it
		t.Errorf("systemd receives %q at last, and it ends with status %d", last, code)
	}
}
