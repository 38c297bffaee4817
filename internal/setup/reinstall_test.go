package setup

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// boots does what a boot does on a node: systemd-tmpfiles removes what it is told, and /run is
// empty.
func (s machine) boots() {
	s.Helper()
	text, _ := os.ReadFile(s.dir + "/node" + atBoot)
	for line := range strings.Lines(string(text)) {
		if path, is := strings.CutPrefix(strings.TrimSpace(line), "r! "); is {
			_ = os.Remove(s.dir + "/node" + path) // a directory that is not empty stays
		}
	}
	for _, mark := range []string{removedInThisBoot, restartDue + "crio"} {
		_ = os.Remove(s.dir + "/node" + mark)
	}
}

// TestPowerLossInAReinstallation: a node is set up again in the boot in which it was removed, and
// loses power before all files are there. Then install and remove both go on.
func TestPowerLossInAReinstallation(t *testing.T) {
	for _, next := range []string{"install", "remove"} {
		for _, c := range []struct {
			name string
			lose func(s machine)
		}{
			{"half of the files are there", func(s machine) {
				s.write("node/usr/lib/gpuledger/shim-1", "in the way of a directory")
				if status, out := s.run("install", "--engine=crio"); status != 1 {
					t.Fatalf("status %d\n%s", status, out)
				}
				if !exists(s.dir + "/node" + program) {
					t.Fatal("it has ended before it has written a program")
				}
				if err := os.Remove(s.dir + "/node/usr/lib/gpuledger/shim-1"); err != nil {
					t.Fatal(err)
				}
			}},
			{"no file is written yet", func(s machine) {
				if err := os.Remove(s.dir + "/node" + atBoot); err != nil {
					t.Fatal(err)
				}
			}},
		} {
			s := newMachine(t)
			s.must("install", "--engine=crio")
			s.must("remove", "--engine=crio")
			c.lose(s)
			s.boots()
			if status, out := s.run(next, "--engine=crio"); status != 0 {
				t.Errorf("%s, then %s: status %d\n%s", c.name, next, status, out)
			}
			if next == "remove" {
				s.boots() // until then the wrapper stays
			}
			for _, name := range []string{program, wrapper, record} {
				if exists(s.dir+"/node"+name) != (next == "install") {
					t.Errorf("%s, then %s: the node has %q", c.name, next, s.on())
				}
			}
		}
	}
}

// TestPackageAfterARemoval: a package is installed in the boot in which gpuledger-setup was
// removed. No boot and no removal by gpuledger-setup takes its files.
func TestPackageAfterARemoval(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	packages := []string{program, wrapper, "/usr/lib/gpuledger/shim-1/libcuda.so.1"}
	for _, name := range packages {
		s.write("node"+name, "the package's")
	}
	s.postinstall()
	for _, gone := range []string{atBoot, record} {
		if exists(s.dir + "/node" + gone) {
			t.Errorf("%s is left", gone)
		}
	}
	s.boots()
	s.must("remove", "--engine=crio")
	for _, name := range packages {
		if text, err := os.ReadFile(s.dir + "/node" + name); string(text) != "the package's" {
			t.Errorf("%s has %q (%v)", name, text, err)
		}
	}
	if status, out := s.run("install", "--engine=crio"); status != 1 ||
		!strings.Contains(out, "was not put there by gpuledger-setup") {
		t.Errorf("install over the package: status %d\n%s", status, out)
	}
}

// postinstall runs the package's script on the node, as dpkg does.
func (s machine) postinstall() {
	s.Helper()
	script, err := os.ReadFile("../../packaging/scripts/postinstall.sh")
	if err != nil {
		s.Fatal(err)
	}
	s.write("node/postinstall.sh", string(script))
	for _, applet := range []string{"sh", "rm"} {
		s.link("node/bin/"+applet, "busybox")
	}
	s.write("node/dev/null", "")
	cmd := exec.Command("/bin/sh", "/postinstall.sh", "configure")
	cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Chroot: s.dir + "/node"}, "/"
	cmd.Env = []string{"PATH=/bin:/usr/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("the package's script: %v\n%s", err, out)
	}
}
