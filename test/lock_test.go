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
	lockTaken = regexp.MustCompile(`flock\((\d+)<(.*)>, LOCK_EX(\|LOCK_NB)?\) += 0`)
	lockGiven = regexp.MustCompile(`close\((\d+)<(.*)>`)
)

// accessed reads a trace of the wrapper up to the execve of the real runtime. It returns the calls
// with a path in one of dirs while a file of the run directory was locked, and how many there were
// otherwise.
func accessed(t *testing.T, trace, run string, dirs ...string) (locked []string, before int) {
	t.Helper()
	held, times := "", 0
	for line := range strings.Lines(trace) {
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

func inOneOf(line string, dirs []string) bool {
	for _, dir := range dirs {
		if strings.Contains(line, dir) {
			return true
		}
	}
	return false
}
