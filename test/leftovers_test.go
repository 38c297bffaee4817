package test

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// leftovers is a shell script that runs under leftovers.sh, as make test runs go test.
func leftovers(script string, args ...string) *exec.Cmd {
	// In the background of a shell these tests, and what they run, would ignore SIGINT.
	run := []string{"--default-signal=INT", "rig/leftovers.sh", "sh", "-c", script, "sh"}
	return exec.Command("env", append(run, args...)...)
}

// leaves is leftovers where something stays behind, for which there is no need to wait long.
func leaves(script string, args ...string) *exec.Cmd {
	cmd := leftovers(script, args...)
	cmd.Env = append(os.Environ(), "LEFTOVERS_TRIES=10")
	return cmd
}

// cgroupRoots are the roots of the cgroup hierarchies that this test sees.
func cgroupRoots(t *testing.T) []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	files, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if len(files) == 0 {
		t.Fatal("no cgroup hierarchy below /sys/fs/cgroup")
	}
	var roots []string
	for _, file := range files {
		roots = append(roots, filepath.Dir(file))
	}
	return roots
}

// otherEngine is what other programs have on the machine: a cgroup in each hierarchy, state in
// crun's directory, a mount, a container of runc's at its usual path.
type otherEngine struct {
	container *rig.Bundle
	dirs      []string
	mount     string
}

func newOtherEngine(t *testing.T, n *rig.Node, name string) otherEngine {
	o := otherEngine{container: n.Bundle(name, rig.Light), mount: n.Dir + "/" + name,
		dirs: []string{"/run/crun/" + name}}
	for _, root := range cgroupRoots(t) {
		o.dirs = append(o.dirs, root+"/gpuledger-"+name)
	}
	must(t, os.MkdirAll(o.mount, 0o755))
	return o
}

func (o otherEngine) come() error {
	for _, dir := range o.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := syscall.Mount("tmpfs", o.mount, "tmpfs", 0, ""); err != nil {
		return err
	}
	return exec.Command("runc", "run", "--detach", "--bundle", o.container.Dir, o.container.ID).Run()
}

func (o otherEngine) goAway() error {
	if err := exec.Command("runc", "delete", "--force", o.container.ID).Run(); err != nil {
		return err
	}
	if err := syscall.Unmount(o.mount, syscall.MNT_DETACH); err != nil {
		return err
	}
	for _, dir := range o.dirs {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// churn creates and removes it until it is stopped.
func (o otherEngine) churn(done <-chan bool) error {
	for {
		select {
		case <-done:
			return nil
		default:
			if err := cmp.Or(o.come(), o.goAway()); err != nil {
				return err
			}
		}
	}
}

// Other programs create and remove things on the machine, and the run succeeds all the same.
func TestLeftoversOfOthersDoNotCount(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	stays, goes := newOtherEngine(t, n, "stays"), newOtherEngine(t, n, "goes")
	must(t, goes.come())

	done, ended := make(chan bool), make(chan error, 1)
	go func() { ended <- newOtherEngine(t, n, "busy").churn(done) }()

	// What the run itself made, at the same paths, is removed; the run ends while the others change
	// things.
	n.Bundle("own", rig.Light, rig.Shell("exit 0"))
	cmd := leftovers(`cd "$1" && runc run --bundle bundles/own own && mkdir -p /run/crun/own && rmdir /run/crun/own /run/crun /run/runc &&
		rmdir $(ls -d /sys/fs/cgroup/gpuledger-* /sys/fs/cgroup/*/gpuledger-* 2>/dev/null); ls /run >seen
		while [ ! -e changed ]; do sleep 0.01; done`, n.Dir)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	status := make(chan error, 1)
	go func() { status <- cmd.Wait() }()
	rig.Eventually(t, "the run has done its work", func() bool {
		_, err := os.Stat(n.Dir + "/seen")
		return err == nil
	})
	must(t, stays.come(), goes.goAway())
	n.Write("changed", "")
	if err := <-status; err != nil {
		t.Errorf("leftovers.sh beside others: %v\n%s", err, output.String())
	}
	close(done)
	must(t, <-ended, stays.goAway())
	if seen := strings.Fields(read(t, n.Dir+"/seen")); slices.Contains(seen, "crun") ||
		slices.Contains(seen, "runc") {
		t.Errorf("the run sees state of the machine's runtimes: %v", seen)
	}
}

// What the run itself leaves makes it fail, and is removed afterwards.
func TestLeftoversOfTheRunItselfCount(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	n.Bundle("c", rig.Light)
	cgroups, wantCgroups := "", []string{}
	for _, root := range cgroupRoots(t) {
		cgroups += "mkdir -p " + root + "/left/deep\n"
		wantCgroups = append(wantCgroups, "cgroup "+root+"/left", "cgroup "+root+"/left/deep")
	}
	for name, c := range map[string]struct {
		script string
		status int
		want   []string // lines, all of them
	}{
		"nothing":   {"true", 0, nil},
		"cgroups":   {cgroups, 1, wantCgroups},
		"files":     {`: >"$TMPDIR/f"; mkdir -p /run/crun/c /run/gpuledger`, 1, []string{"file $TMPDIR/f", "file /run/crun", "file /run/crun/c", "file /run/gpuledger"}},
		"a failure": {`: >"$TMPDIR/f"; exit 3`, 3, []string{"file $TMPDIR/f"}},
		"mounts":    {`mount -t tmpfs tmpfs /mnt; mount -t tmpfs tmpfs "$TMPDIR"; mount -t tmpfs tmpfs /run`, 1, []string{"mount $TMPDIR", "mount /mnt", "mount /run"}},
		"no /proc":  {"mount -t tmpfs tmpfs /proc", 1, []string{"what there is cannot be listed"}},
		"a process": {"sleep 1000 & echo $! >$2.pid", 1, []string{"process PID sleep"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			note := filepath.Join(t.TempDir(), "tmpdir")
			r := rig.Run(leaves(`echo "$TMPDIR" >"$2"; `+c.script, n.Dir, note))
			tmp := strings.TrimSpace(read(t, note))
			var got []string
			for _, line := range strings.Split(r.Stderr, "\n") {
				if line, ok := strings.CutPrefix(line, "  "); ok {
					got = append(got, strings.ReplaceAll(line, tmp, "$TMPDIR"))
				}
			}
			if name == "a process" {
				c.want[0] = strings.Replace(c.want[0], "PID", strings.TrimSpace(read(t, note+".pid")), 1)
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if r.Code != c.status || !slices.Equal(got, c.want) {
				t.Errorf("status %d, want %d and %q\n%s", r.Code, c.status, c.want, r.Stderr)
			}
			wantNothingOf(t, tmp)
		})
	}
}

// A signal to the run alone ends all that the run has started, as one to its process group does.
func TestAKilledRunEndsWhatItRuns(t *testing.T) {
	for signal, status := range map[syscall.Signal]int{
		syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGKILL: -1,
	} {
		t.Run(signal.String(), func(t *testing.T) {
			fifo := filepath.Join(t.TempDir(), "fifo")
			must(t, syscall.Mkfifo(fifo, 0o600))
			cmd := leftovers(`exec 3>"$1"; echo "$TMPDIR" >&3; setsid sleep 1000`, fifo)
			must(t, cmd.Start())
			inside, err := os.Open(fifo)
			must(t, err)
			defer inside.Close()
			must(t, inside.SetReadDeadline(time.Now().Add(time.Minute)))
			lines := bufio.NewReader(inside)
			tmp, err := lines.ReadString('\n')
			must(t, err)
			tmp = strings.TrimSpace(tmp)
			must(t, cmd.Process.Signal(signal))
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != status {
				t.Errorf("status %d, want %d", got, status)
			}
			if _, err := lines.ReadByte(); err != io.EOF { // the last that has it open has ended
				t.Errorf("what the run has started goes on: %v", err)
			}
			if signal == syscall.SIGKILL { // the run could not remove its cgroups
				for _, root := range cgroupRoots(t) {
					removeTree(t, filepath.Join(root, filepath.Base(tmp)))
				}
				must(t, os.RemoveAll(tmp))
			}
			wantNothingOf(t, tmp)
		})
	}
}

// removeTree removes a cgroup and those below, the last processes of which are just ending.
func removeTree(t *testing.T, cgroup string) {
	rig.Eventually(t, cgroup+" is removed", func() bool {
		return exec.Command("find", cgroup, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run() == nil
	})
}

// A directory that all share, as /tmp, keeps its mode.
func TestAnotherModeCounts(t *testing.T) {
	rig.Mount(t, "tmpfs", "/home", "tmpfs", 0, "mode=1777")
	r := rig.Run(leaves("chmod 755 /home"))
	if want := "  mode 755 of /home\n"; r.Code != 1 || !strings.HasSuffix(r.Stderr, want) {
		t.Errorf("status %d, want 1 and %q\n%s", r.Code, want, r.Stderr)
	}
}

// A container that is left is found by each of its parts: its process, its state, its cgroups.
func TestLeftContainersCount(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	n.Bundle("c", rig.Light)
	r := rig.Run(leaves(`runc run --detach --bundle "$1/bundles/c" c >/dev/null 2>&1 </dev/null`, n.Dir))
	for _, want := range []string{"process ", "file /run/runc/c\n", "/c\n"} {
		if r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("a container is left: status %d, want 1 and %q\n%s", r.Code, want, r.Stderr)
		}
	}
}

// wantNothingOf checks the machine for what a run of leftovers.sh made: its TMPDIR, and the cgroups
// of the same name.
func wantNothingOf(t *testing.T, tmp string) {
	t.Helper()
	for _, place := range append(cgroupRoots(t), filepath.Dir(tmp)) {
		if _, err := os.Stat(filepath.Join(place, filepath.Base(tmp))); !os.IsNotExist(err) {
			t.Errorf("%s in %s is left: %v", filepath.Base(tmp), place, err)
		}
	}
}
