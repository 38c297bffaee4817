package ledger

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestManyProcessesNeverGrantMoreThanThereIs(t *testing.T) {
	b := newLedger(t)
	outputs := make([]bytes.Buffer, contenders)
	cmds := make([]*exec.Cmd, contenders)
	gates := make([]io.Closer, contenders)
	for i := range cmds {
		cmd := helperCommand(os.Args[0], "grant", filepath.Dir(b.State), i)
		cmd.Stdout = &outputs[i]
		gate, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		cmds[i], gates[i] = cmd, gate
	}
	began := time.Now()
	for _, gate := range gates {
		gate.Close()
	}
	granted := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
		if outputs[i].String() == "granted\n" {
			granted++
		}
	}
	t.Logf("%d processes: %v", contenders, time.Since(began))
	grants, damaged := b.all()
	if want := int(rivalRoom / rivalSize); granted != want || len(grants) != want || len(damaged) != 0 {
		t.Errorf("%d were told granted, %d are in the ledger, %d are damaged; want %d, all that fit", granted,
			len(grants), len(damaged), want)
	}
	inv := &grant.Inventory{GPUs: []grant.GPU{{UUID: gpu0, Memory: rivalRoom}}}
	if report, err := b.Check(capacityOf(inv, 0)); err != nil || len(report.Findings) != 0 {
		t.Errorf("Check: %+v (%v), want no finding", report.Findings, err)
	}
}

// facts is what a reader sees of the ledger, for comparing.
type facts struct {
	Grants   []grant.Grant
	Owners   map[grant.Owner]grant.ID
	Bindings map[string]grant.ID
}

func (b *testLedger) facts() facts {
	b.t.Helper()
	f := facts{Owners: map[grant.Owner]grant.ID{}, Bindings: map[string]grant.ID{}}
	grants, damaged := b.all()
	if len(damaged) > 0 {
		b.t.Errorf("damaged: %+v", damaged)
	}
	for _, g := range grants {
		if g.Draining { // it may be swept already or not
			continue
		}
		for i := range g.Bindings {
			f.Bindings[g.Bindings[i].Container] = g.ID
		}
		g.Bindings = nil
		f.Grants = append(f.Grants, g)
		if found, err := b.byOwner(g.Owner); err == nil {
			f.Owners[g.Owner] = found.ID
		}
	}
	return f
}

// expected runs the story without a kill and gives the facts after each step.
func expected(t *testing.T) []facts {
	b := newLedger(t)
	all := []facts{b.facts()}
	for _, step := range story() {
		b.update(step)
		all = append(all, b.facts())
	}
	return all
}

// TestTorture kills the story at each dangerous line, each time that it passes the line. What was
// acknowledged before must be there. What was under way must be there as a whole or not at all. The
// ledger must be sound, and take a grant.
func TestTorture(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("TORTURE_ROUNDS"))
	binary, want := failpointBinary(t), expected(t)
	for range max(rounds, 1) {
		for _, name := range failpoint.Names {
			if !strings.HasPrefix(name, "ledger/") {
				continue // another package's story
			}
			for pass := 1; tortureOnce(t, binary, name+":"+strconv.Itoa(pass), want); pass++ {
				if rounds == 0 && pass >= 3 {
					break
				}
			}
			if t.Failed() {
				return
			}
		}
		for range 10 {
			tortureAnywhere(t, want)
		}
	}
}

// tortureAnywhere kills the story at any time: a line without a mark may be dangerous too.
func tortureAnywhere(t *testing.T, want []facts) {
	b := ledgerIn(t, t.TempDir())
	cmd := helperCommand(os.Args[0], "story", filepath.Dir(b.State), 0)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	after := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
	time.Sleep(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	done := bytes.Count(out.Bytes(), []byte("done\n"))
	b.afterCrash("after "+after.String(), want[done], want[min(done+1, len(want)-1)])
}

// tortureOnce reports whether the story was killed. If it was not, it passes the mark no more
// often.
func tortureOnce(t *testing.T, binary, point string, want []facts) bool {
	b := ledgerIn(t, t.TempDir())
	cmd := helperCommand(binary, "story", filepath.Dir(b.State), 0)
	cmd.Env = append(cmd.Env, failpoint.Variable+"="+point)
	out, err := cmd.Output()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed {
		t.Errorf("%s: %v", point, err)
		return false
	}
	if !killed && point[len(point)-2:] == ":1" {
		t.Errorf("%s: the story never passes it", point)
	}
	done := bytes.Count(out, []byte("done\n"))
	b.afterCrash(point, want[done], want[min(done+1, len(want)-1)])
	return killed
}

func (b *testLedger) afterCrash(point string, before, after facts) {
	if got := b.facts(); !reflect.DeepEqual(got, before) && !reflect.DeepEqual(got, after) {
		b.t.Errorf("%s: a reader sees\n%+v\nwant\n%+v\nor\n%+v", point, got, before, after)
	}
	report, err := b.Check(nil)
	if err != nil || !report.Sound() {
		b.t.Errorf("%s: Check: %+v (%v), want it sound", point, report, err)
	}
	if got := b.facts(); !reflect.DeepEqual(got, before) && !reflect.DeepEqual(got, after) {
		b.t.Errorf("%s: after Check a reader sees\n%+v\nwant\n%+v\nor\n%+v", point, got, before, after)
	}
	if again, err := b.Check(nil); err != nil || len(again.Findings) != 0 {
		b.t.Errorf("%s: a second Check finds %+v (%v), want nothing", point, again.Findings, err)
	}
	b.traced(point, before)
	b.put(sample(20))
	if g, err := b.byOwner(sample(20).Owner); err != nil || g.ID != id(20) {
		b.t.Errorf("%s: a grant afterwards: %v", point, err)
	}
}

// traced checks that a grant to which a container was bound is known as used, whatever crashed, and
// that no trace is left of a grant that is gone.
func (b *testLedger) traced(point string, before facts) {
	b.t.Helper()
	grants, _ := b.all()
	there := map[grant.ID]bool{}
	for _, g := range grants {
		there[g.ID] = true
	}
	for container, g := range before.Bindings {
		if there[g] && !b.Bindings.Used(g) {
			b.t.Errorf("%s: grant %s counts as unused, and container %q had it", point, g, container)
		}
	}
	traces, err := namesIn(b.files.bindings.byGrant)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, g := range traces {
		if !there[grant.ID(g)] {
			b.t.Errorf("%s: the trace of %s is left", point, g)
		}
	}
}
