package ledger

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
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

// A container's state is read as its runtime left it, and what can't be understood is never taken
// for "gone".
func TestLifeByState(t *testing.T) {
	self, err := host.Default().Self()
	if err != nil {
		t.Fatal(err)
	}
	runs, gone := fmt.Sprintf("%d, %%q: %d", self.PID, self.Start),
		fmt.Sprintf("%d, %%q: %d", self.PID, self.Start+1)
	runc := func(init, cgroups string) string {
		return `{"init_process_pid": ` + fmt.Sprintf(init, "init_process_start") + `, "cgroup_paths": ` +
			cgroups + `, "config": {"a": 1, "a": 2}}`
	}
	crun := func(init, cgroup string) string {
		return `{"pid": ` + fmt.Sprintf(init, "process-start-time") + `, "cgroup-path": "` + cgroup +
			`", "bundle": "` + "\xff" + `"}`
	}
	for name, row := range map[string]struct {
		file, text string
		want       grant.Life
		pid        int
	}{
		"no directory":                {"", "", grant.Dead, 0},
		"a directory alone":           {"exec.fifo", "", grant.Dead, 0},
		"runc, init runs":             {"state.json", runc(runs, `{}`), grant.Alive, self.PID},
		"crun, init runs":             {"status", crun(runs, ""), grant.Alive, self.PID},
		"runc, cut off":               {"state.json", `{"init_process_pid": 7`, grant.LifeUnknown, 0},
		"runc, empty":                 {"state.json", ``, grant.LifeUnknown, 0},
		"runc, no init":               {"state.json", `{}`, grant.LifeUnknown, 0},
		"crun, no init":               {"status", `{"pid": 0}`, grant.LifeUnknown, 0},
		"crun, garbage":               {"status", `pid 7`, grant.LifeUnknown, 0},
		"runc, no cgroup":             {"state.json", runc(gone, `{}`), grant.LifeUnknown, 0},
		"crun, no cgroup":             {"status", crun(gone, ""), grant.LifeUnknown, 0},
		"crun, everybody's cgroup":    {"status", crun(gone, "/"), grant.LifeUnknown, 0},
		"runc, cgroup not to be seen": {"state.json", runc(gone, `{"devices": "/nowhere/x"}`), grant.LifeUnknown, 0},
		"runc, cgroup is no cgroup":   {"state.json", runc(gone, `{"": "/etc"}`), grant.LifeUnknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(t)
			b.put(sample(1))
			binding := deadBinding(id(1), "c")
			binding.RuntimeRoot = t.TempDir()
			if row.file != "" {
				path := filepath.Join(binding.RuntimeRoot, "c", row.file)
				if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700),
					os.WriteFile(path, []byte(row.text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			b.bind(binding)
			got := b.life(binding)
			if got.Life != row.want || got.PID != row.pid {
				t.Errorf("life %d, pid %d; want %d, %d", got.Life, got.PID, row.want, row.pid)
			}
		})
	}
}

func (b *book) life(of grant.Binding) (got grant.Binding) {
	b.t.Helper()
	err := b.View(func(tx *Tx) (err error) {
		got, err = tx.Binding(of.RuntimeRoot, of.Container)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

func TestAStateThatIsADirectoryIsUnknown(t *testing.T) {
	b := newBook(t)
	b.put(sample(1))
	binding := deadBinding(id(1), "c")
	binding.RuntimeRoot = t.TempDir()
	if err := os.MkdirAll(filepath.Join(binding.RuntimeRoot, "c", "state.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.bind(binding)
	if got := b.life(binding); got.Life != grant.LifeUnknown {
		t.Errorf("life %d, want unknown", got.Life)
	}
}

func TestLifeByCreator(t *testing.T) {
	b := newBook(t)
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
	if b.HasBinding(root, "zombie") || b.HasBinding(root, "boot") || !b.HasBinding(root, "ns") ||
		!b.HasBinding(root, "alive") {
		t.Error("Sweep removed the wrong bindings")
	}
}
