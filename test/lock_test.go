package test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestTheLockHolderOpensNoPathOfATenant: while a create holds the ledger's lock, it accesses no
// path in the container's image or in what the container mounts. Such a path may lead into a file
// system that never answers, and then no container of the node would start any more. strace shows
// the paths.
func TestTheLockHolderOpensNoPathOfATenant(t *testing.T) {
	rig.Need(t, "strace", "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	recorder(t, n) // strace would wait for the container's processes
	for _, c := range []struct {
		name string
		args []string
	}{
		{"shared", []string{"--memory", "4GiB"}},
		{"limit", []string{"--mode", "limit", "--memory", "4GiB"}},
		{"exclusive", []string{"--mode", "exclusive"}},
	} {
		tenants := t.TempDir()
		reference := n.Grant(c.args...)
		b := n.Bundle(c.name, rig.Env("GPULEDGER_GRANT="+reference.String()),
			rig.Env("LD_LIBRARY_PATH=/data:/lib"), func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Source: tenants, Type: "bind",
					Options: []string{"rbind", "ro"}})
			})
		dynamic(t, b)
		trace := filepath.Join(n.Dir, c.name+".trace")
		create := n.Wrapper("create", "--bundle", b.Dir, b.ID)
		args := append([]string{"-f", "-qq", "-y", "-e", "trace=%file,%desc", "-o", trace, create.Path},
			create.Args[1:]...)
		if r := rig.Run(n.Command("strace", args...)); r.Code != 7 {
			t.Fatalf("%s: %+v", c.name, r)
		}
		locked, before := accessed(t, read(t, trace), filepath.Join(n.Dir, "run"), b.Dir, tenants)
		for _, line := range locked {
			t.Errorf("%s: with the ledger locked: %s", c.name, line)
		}
		if before == 0 {
			t.Errorf("%s: no path of the tenant was accessed: the test sees nothing", c.name)
		}
	}
}

var (
	lockTaken = regexp.MustCompile(`flock\((\d+)<([^>]*)>, LOCK_EX(\|LOCK_NB)?\) += 0`)
	lockGiven = regexp.MustCompile(`close\((\d+)<([^>]*)>`)
	// A call during which strace has shown one of another thread is in two lines.
	lockBegun = regexp.MustCompile(`^(\d+) +(flock\(.*) <unfinished \.\.\.>`)
	lockEnded = regexp.MustCompile(`^(\d+) +<\.\.\. flock resumed>(.*)`)
)

// accessed reads a trace of the wrapper up to the execve of the real runtime. It returns the calls
// with a path in one of dirs while a file of the run directory was locked, and how many there were
// otherwise.
func accessed(t *testing.T, trace, run string, dirs ...string) (locked []string, before int) {
	t.Helper()
	held, times, begun := "", 0, map[string]string{} // the last by thread
	for line := range strings.Lines(trace) {
		if call := lockBegun.FindStringSubmatch(line); call != nil {
			begun[call[1]] = call[2]
		}
		if end := lockEnded.FindStringSubmatch(line); end != nil {
			line = begun[end[1]] + end[2]
		}
		switch taken, given := lockTaken.FindStringSubmatch(line), lockGiven.FindStringSubmatch(line); {
		case taken != nil && strings.HasPrefix(taken[2], run):
			held = taken[2]
			times++
		case given != nil && given[2] == held:
			held = ""
		case strings.Contains(line, "execve(") && times > 0:
			return locked, before
		case !inOneOf(line, dirs):
		case held == "":
			before++
		default:
			locked = append(locked, strings.TrimSuffix(line, "\n"))
		}
	}
	t.Fatalf("the ledger was locked %d times, and no real runtime was called:\n%s", times, trace)
	return nil, 0
}

// TestACallInTwoLinesIsRead: on a slow machine strace shows a call of another thread, or a signal,
// while the lock is taken or given back.
func TestACallInTwoLinesIsRead(t *testing.T) {
	const trace = `7 openat(AT_FDCWD</>, "/b/rootfs", O_PATH) = 5</b/rootfs>
7 flock(6</n/run/lock>, LOCK_EX|LOCK_NB <unfinished ...>
8 epoll_pwait(4<anon_inode:[eventpoll]>,  <unfinished ...>
7 <... flock resumed>)                = 0
8 <... epoll_pwait resumed>[], 128, 0, NULL, 0) = 0
7 openat(AT_FDCWD</>, "/b/rootfs/etc", O_PATH) = 5</b/rootfs/etc>
7 close(6</n/run/lock> <unfinished ...>
8 --- SIGURG {si_signo=SIGURG, si_code=SI_TKILL, si_pid=7, si_uid=0} ---
7 <... close resumed>)                = 0
7 openat(AT_FDCWD</>, "/b/rootfs/lib", O_PATH) = 5</b/rootfs/lib>
7 execve("/usr/bin/runc", ["runc"], 0x1 /* 2 vars */ <unfinished ...>
`
	if locked, before := accessed(t, trace, "/n/run", "/b"); len(locked) != 1 ||
		!strings.Contains(locked[0], "/b/rootfs/etc") || before != 2 {
		t.Errorf("with the lock: %q, without it: %d calls", locked, before)
	}
}

func inOneOf(line string, dirs []string) bool {
	for _, dir := range dirs {
		if strings.Contains(line, dir) {
			return true
		}
	}
	return false
}
