package ledger

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// startOf reads a process as its creator would read itself.
func startOf(pid int) (grant.Process, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return grant.Process{}, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return grant.Process{PID: pid, Start: start}, err
}

func (b *testLedger) life(of grant.Binding) (got grant.Binding) {
	b.t.Helper()
	err := b.View(func(tx *Tx) (err error) {
		got, err = tx.Bindings.Of(of.RuntimeRoot, of.Container)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

func TestLifeByCreator(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	zombie := exec.Command("/bin/true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startOf(zombie.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	alive, ghost, otherBoot, otherNS := bindingOf(id(1), "alive"), bindingOf(id(1), "zombie"),
		bindingOf(id(1), "boot"), bindingOf(id(1), "ns")
	ghost.Creator = start
	otherBoot.BootID = "00000000-0000-0000-0000-000000000000"
	otherNS.PIDNS = 1
	otherTime := bindingOf(id(1), "time")
	otherTime.TimeNS = 1
	b.bind(alive, ghost, deadBinding(id(1), "reused"), otherBoot, otherNS, otherTime)
	waitFor(t, "the process to become a zombie", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", start.PID))
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
	for container, want := range map[string]grant.Life{
		"alive": grant.Alive, "zombie": grant.Dead, "reused": grant.Dead, "boot": grant.Dead,
		"ns": grant.LifeUnknown, "time": grant.LifeUnknown,
	} {
		if got, err := b.binding(container); err != nil || got.Life != want {
			t.Errorf("%s: life %d (%v), want %d", container, got.Life, err, want)
		}
	}
	_ = zombie.Wait()
	g, err := b.get(id(1))
	if err != nil || len(g.Bindings) != 3 || g.State(noon) != grant.Unknown {
		t.Errorf("the grant has bindings %+v (%v), want those of alive, ns and time", g.Bindings, err)
	}
	b.update(func(tx *Tx) error { return tx.Sweep() })
	root := alive.RuntimeRoot
	if b.Bindings.Has(root, "zombie") || b.Bindings.Has(root, "boot") || !b.Bindings.Has(root, "ns") ||
		!b.Bindings.Has(root, "alive") {
		t.Error("Sweep removed the wrong bindings")
	}
}
