package inject

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// madeCgroup is a stand-in for a container with a cgroup of version 1, below a directory.
type madeCgroup struct {
	*testing.T
	proc, cgroup string
	container    *container
}

const itsList, itsStat = "c 136:* rwm\n", "42 (runc:[2:INIT]) S 7 42 42 0"

func newCgroup(t *testing.T) madeCgroup {
	dir := t.TempDir()
	m := madeCgroup{T: t, proc: dir + "/proc/42", cgroup: dir + "/sys/fs/cgroup/devices/pods/1"}
	m.write(m.proc+"/stat", itsStat)
	m.write(m.proc+"/cgroup", "1:devices:/pods/1\n")
	m.write(dir+"/proc/self/cgroup", "1:devices:/runtime\n")
	m.make("42\n")
	proc, err := unix.Open(m.proc, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.container = &container{Target: Target{Host: host.Host{Proc: dir + "/proc", Sys: dir + "/sys"},
		PID: 42, Parent: 7}, proc: proc, rootfs: -1, dev: -1}
	t.Cleanup(m.container.close)
	return m
}

func (m madeCgroup) write(path, text string) {
	m.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
}

// make makes the cgroup with the processes of a container.
func (m madeCgroup) make(processes string) {
	m.Helper()
	for file, text := range map[string]string{"cgroup.procs": processes, "devices.list": itsList,
		"devices.allow": "", "devices.deny": ""} {
		m.write(m.cgroup+"/"+file, text)
	}
}

// makeAnew takes the cgroup away and makes that of another container at the same path.
func (m madeCgroup) makeAnew() {
	m.Helper()
	if err := os.Rename(m.cgroup, m.cgroup+"-of-old"); err != nil {
		m.Fatal(err)
	}
	m.make("99\n")
}

// allowed is what was written into a cgroup.
func (m madeCgroup) allowed(cgroup string) string {
	m.Helper()
	text, err := os.ReadFile(cgroup + "/devices.allow")
	if err != nil {
		m.Fatal(err)
	}
	return string(text)
}

var opensGPU = Change{Allow: rulesOf(true, "c 195:1 rw")}

// TestACgroupMadeAnewIsAnothers: a late hook opens nothing in the cgroup that another container has
// at the same path.
func TestACgroupMadeAnewIsAnothers(t *testing.T) {
	m := newCgroup(t)
	if err := m.container.findRules(opensGPU); err != nil {
		t.Fatal(err)
	}
	m.makeAnew()
	// the kernel would refuse, because the old cgroup is removed; of the stand-in it is the file
	err := m.container.rules.set(opensGPU, saved{})
	if there := m.allowed(m.cgroup); there != "" || err != nil {
		t.Errorf("the other container's cgroup got %q, %v", there, err)
	}
	if there := m.allowed(m.cgroup + "-of-old"); there != "c 195:1 rw" {
		t.Errorf("the container's own got %q", there)
	}
}

// TestAnInitThatChangesMeanwhile: nothing is opened if the init is not what it was when its cgroup
// was found.
func TestAnInitThatChangesMeanwhile(t *testing.T) {
	for name, row := range map[string]struct{ file, text, want string }{
		"it stays":                {"stat", itsStat, ""},
		"it is gone":              {"cgroup", "", "no such"},
		"its runtime was killed":  {"stat", "42 (runc:[2:INIT]) S 1 42 42 0", "no child of process 7"},
		"it waits for its parent": {"stat", "42 (runc:[2:INIT]) Z 7 42 42 0", "it has ended"},
		"it is in another cgroup": {"cgroup", "1:devices:/pods/2\n", "has left its cgroup"},
		"its cgroup was removed":  {"cgroup", "1:devices:/pods/1 (deleted)\n", "has left its cgroup"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newCgroup(t)
			if err := m.container.findRules(opensGPU); err != nil {
				t.Fatal(err)
			}
			if m.write(m.proc+"/"+row.file, row.text); row.text == "" {
				_ = os.Remove(m.proc + "/" + row.file)
			}
			err := m.container.setRules(opensGPU)
			if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("setRules returns %v", err)
			}
			if there := m.allowed(m.cgroup); (there == "") != (row.want != "") {
				t.Errorf("its cgroup got %q", there)
			}
		})
	}
}

// TestACgroupThatIsTakenWhileItIsFound: systemd answers late, and the container is made anew
// meanwhile.
func TestACgroupThatIsTakenWhileItIsFound(t *testing.T) {
	m := newCgroup(t)
	m.cgroup += "/x-1.scope"
	m.write(m.proc+"/cgroup", "1:devices:/pods/1/x-1.scope\n")
	m.make("") // the new container's init comes next
	asked := &manager{group: "/pods/1/x-1.scope", policy: "strict", odd: func(answer message) message {
		_ = os.Remove(m.proc + "/cgroup")
		return answer
	}}
	m.container.Socket = asked.listen(t)
	if err := m.container.findRules(opensGPU); err == nil || m.container.rules != nil {
		t.Errorf("findRules returns %v", err)
	}
}

// TestAUnitOfAnothersIsNotChanged: systemd knows a unit by its name alone, and takes its time.
func TestAUnitOfAnothersIsNotChanged(t *testing.T) {
	for _, late := range []bool{false, true} {
		m := newCgroup(t)
		asked := &manager{group: "/pods/1", policy: "strict"}
		end := func() { _ = os.Remove(m.proc + "/stat") }
		asked.odd = func(answer message) message {
			if len(asked.set) > 0 {
				end()
			}
			return answer
		}
		if err := m.container.findRules(opensGPU); err != nil {
			t.Fatal(err)
		}
		var err error
		if m.container.unit, err = openUnit(asked.listen(t), "x-1.scope", "/pods/1"); err != nil {
			t.Fatal(err)
		}
		if !late {
			end()
		}
		if err := m.container.setRules(opensGPU); err == nil || (len(asked.set) > 0) != late {
			t.Errorf("the init ends late: %v; systemd was told %v, %v", late, asked.set, err)
		}
		if there := m.allowed(m.cgroup); there != "" {
			t.Errorf("the init ends late: %v; the cgroup got %q", late, there)
		}
	}
}
