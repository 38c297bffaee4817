package nvmlchild

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// asked answers each line with the content of the file beside it.
const asked = `while read -r line; do
  case $(cat "$1/does") in
    sample) cat "$1/sample" ;;
    hang) exec sleep 1000 ;;
    fail) echo 'gpuledger: cannot count the GPUs: ERROR_GPU_IS_LOST' >&2; exit 1 ;;
    end) exit 0 ;;
    crash) kill -SEGV $$ ;;
    garbage) echo '{"gpus": 17' ;;
    leave) sleep 1000 </dev/null >/dev/null & echo $! >"$1/left"; exit 0 ;;
    leave-all) sleep 1000 & echo $! >"$1/left"; exit 0 ;;
    pid) echo '{"gpus":[{"uuid":"GPU-0","index":0,"health":"'"$(cat "$1/health")"'","total":1000000000,'\
      '"used":'$$',"processes":[]}]}' ;;
    twice) cat "$1/sample" "$1/sample" ;;
  esac
done`

// fakeNVML is a Sampler with a shell script in place of the process that calls NVML.
type fakeNVML struct {
	t   *testing.T
	dir string
	m   *Sampler
}

func newFakeNVML(t *testing.T) *fakeNVML {
	t.Helper()
	dir := t.TempDir()
	n := &fakeNVML{t, dir, &Sampler{Child: Child{command: []string{"/bin/sh", "-c", asked, "sh", dir},
		inventory:   func() host.Stamp { return host.StampOf(dir + "/inventory") },
		firstAnswer: time.Minute, laterAnswer: time.Minute}}}
	t.Cleanup(func() {
		n.m.Close()
		n.eventually("every child has ended", func() bool { return n.m.stuck.Load() == 0 })
	})
	n.sample(1)
	return n
}

// sample makes it report this many GPUs.
func (n *fakeNVML) sample(gpus int) {
	var list []string
	for i := range gpus {
		list = append(list, fmt.Sprintf(`{"uuid":"GPU-%d","index":%d,"health":"ok","total":16,"used":%d,`+
			`"processes":[]}`, i, i, i))
	}
	n.answer(`{"gpus":[` + strings.Join(list, ",") + "]}")
	n.does("sample")
}

func (n *fakeNVML) answer(text string) { n.put("sample", text+"\n") }
func (n *fakeNVML) does(what string)   { n.put("does", what) }

func (n *fakeNVML) put(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		n.t.Fatal(err)
	}
}

func (n *fakeNVML) ask() (int, error) {
	s, err := n.m.Sample(context.Background(), grant.Source{Source: grant.NVML}, false)
	return len(s.GPUs), err
}

// hurries has the present process answer within a moment. The question may take longer: the test
// can stand still between two lines.
func (n *fakeNVML) hurries() {
	n.m.laterAnswer = 100 * time.Millisecond
	n.m.current.in = undated{n.m.current.in}
}

// undated is a standard input without deadlines.
type undated struct{ io.WriteCloser }

// eventually bounds how long a failure takes.
func (n *fakeNVML) eventually(what string, is func() bool) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("never came true: %s", what)
		}
	}
}

// TestSamplerOutlivesNVML: each failure of NVML is reported, and the next sample comes from a new
// process.
func TestSamplerOutlivesNVML(t *testing.T) {
	for what, want := range map[string]string{
		"hang":    "NVML has not answered for 100ms",
		"fail":    "cannot count the GPUs: ERROR_GPU_IS_LOST",
		"end":     "the process that asks NVML has ended",
		"crash":   "the process that asks NVML has ended",
		"garbage": "NVML's answer cannot be understood",
	} {
		t.Run(what, func(t *testing.T) {
			n := newFakeNVML(t)
			if gpus, err := n.ask(); gpus != 1 || err != nil {
				t.Fatalf("%d GPUs, %v", gpus, err)
			}
			n.does(what)
			if what == "hang" {
				n.hurries()
			}
			if _, err := n.ask(); err == nil || !strings.HasPrefix(err.Error(),
				"cannot tell what is used of the GPUs: "+want) {
				t.Errorf("it returns %v", err)
			}
			if _, err := n.ask(); err == nil {
				t.Error("it samples again at once")
			}
			n.m.laterAnswer = time.Minute
			n.sample(2)
			n.eventually("it is asked again", func() bool {
				gpus, err := n.ask()
				return err == nil && gpus == 2
			})
		})
	}
}

// TestSamplerFollowsChanges: GPUs appear and disappear, and another source has another process.
func TestSamplerFollowsChanges(t *testing.T) {
	n := newFakeNVML(t)
	for _, want := range []int{1, 8, 0, 3} {
		n.sample(want)
		if gpus, err := n.ask(); gpus != want || err != nil {
			t.Errorf("%d GPUs, want %d (%v)", gpus, want, err)
		}
	}
	before := n.m.current.cmd.Process.Pid
	if _, err := n.m.Sample(context.Background(), grant.Source{
		Source: grant.NVML, DriverRoot: "/elsewhere"}, false); err != nil ||
		n.m.current.cmd.Process.Pid == before {
		t.Errorf("another driver root is read through the same process (%v)", err)
	}
}

// TestANewNVMLForOtherGPUs: a process that has loaded NVML does not find a GPU that was added, and
// one that comes back can stay lost to it.
func TestANewNVMLForOtherGPUs(t *testing.T) {
	n := newFakeNVML(t)
	n.does("pid")
	pid := func(health string) int {
		t.Helper()
		n.put("health", health)
		s, err := n.m.Sample(context.Background(), grant.Source{}, false)
		if err != nil || len(s.GPUs) != 1 || s.GPUs[0].Health != health {
			t.Fatalf("%+v, %v", s, err)
		}
		n.m.Renew(health != grant.Healthy)
		return int(s.GPUs[0].Used)
	}
	first := pid(grant.Healthy)
	if again := pid(grant.Healthy); again != first {
		t.Errorf("process %d answers after process %d, and nothing has changed", again, first)
	}
	ended := func() {
		t.Helper()
		n.eventually("the killed child has ended", func() bool { return n.m.stuck.Load() == 0 })
	}
	n.put("inventory", "another one")
	second := pid(grant.Healthy)
	if second == first {
		t.Error("the inventory is another one, and the same process answers")
	}
	ended()
	if pid("lost") != second || n.m.rest != firstBackoff {
		t.Errorf("the next process is to stay for %s, want %s", n.m.rest, firstBackoff)
	}
	ended()
	n.m.renewed = time.Now().Add(time.Hour) // the test may be slow
	third := pid("lost")
	if third == second {
		t.Error("a GPU does not answer, and the same process is asked again")
	}
	if pid("lost") != third || pid(grant.Healthy) != third || pid("lost") != third {
		t.Error("each sample has another process while a GPU does not answer")
	}
	n.m.renewed = time.Now().Add(-n.m.rest)
	n.m.stuck.Store(1)
	for range 2 {
		if pid("lost") != third {
			t.Error("another process is started while one hangs")
		}
	}
	n.m.stuck.Store(0)
	last, next := pid("lost"), pid("lost")
	if last != third || next == third || n.m.rest < 2*firstBackoff {
		t.Errorf("the same process is asked again, or the next is to stay only for %s", n.m.rest)
	}
	n.m.renewed = time.Now().Add(-2 * lastBackoff)
	if pid(grant.Healthy); n.m.rest != 0 {
		t.Errorf("all GPUs have answered for long, and a process is to stay for %s", n.m.rest)
	}
}

// TestSamplerRefusesImpossibleAnswers, and returns an error for each.
func TestSamplerRefusesImpossibleAnswers(t *testing.T) {
	for text, want := range map[string]string{
		`{"gpus":[{"uuid":"GPU-0","health":"ok","total":16,"used":17}]}`:                                             "of GPU 0",
		`{"gpus":[{"uuid":"GPU-0","health":"ok","total":18446744073709551615,"used":1}]}`:                            "of GPU 0",
		`{"gpus":[{"uuid":"GPU-0","health":"ok"},{"uuid":"GPU-0","health":"ok","index":1}]}`:                         `GPU 1 has the UUID "GPU-0"`,
		`{"gpus":[{"uuid":"","health":"ok"}]}`:                                                                       `GPU 0 has the UUID ""`,
		`{"gpus":[{"uuid":"GPU-0","health":"ok","total":16,"processes":[{"pid":0,"memory":1}]}]}`:                    "process 0 uses",
		`{"gpus":[{"uuid":"GPU-0","health":"ok","total":16,"processes":[{"pid":7,"memory":18446744073709551615}]}]}`: "process 7 uses",
	} {
		n := newFakeNVML(t)
		n.answer(text)
		if _, err := n.ask(); err == nil || !strings.Contains(err.Error(), "NVML's answer cannot be true: "+
			want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestSamplerStartsFewChildrenThatHang: no more are started while two children hang that no signal
// reaches.
func TestSamplerStartsFewChildrenThatHang(t *testing.T) {
	n := newFakeNVML(t)
	n.m.stuck.Store(maxStuck)
	if _, err := n.ask(); err == nil || !strings.Contains(err.Error(),
		"2 processes that asked NVML hang in the driver and cannot be ended") || n.m.current != nil {
		t.Errorf("it returns %v", err)
	}
	n.m.stuck.Store(0)
	n.eventually("it is asked when they have ended", func() bool { _, err := n.ask(); return err == nil })
}

// TestSamplerWaitsForItsChildAlone: a process that a child leaves behind, with the child's pipes,
// does not prevent the next sample.
func TestSamplerWaitsForItsChildAlone(t *testing.T) {
	for does, want := range map[string]string{"leave": "the process that asks NVML has ended",
		"leave-all": "NVML has not answered for 100ms"} {
		t.Run(does, func(t *testing.T) {
			n := newFakeNVML(t)
			if _, err := n.ask(); err != nil {
				t.Fatal(err)
			}
			n.does(does)
			if does == "leave-all" {
				n.hurries()
			}
			var left int
			leaves := func() { // before the time is over, at which the child is killed
				n.eventually("it has left one behind", func() bool {
					text, _ := os.ReadFile(filepath.Join(n.dir, "left"))
					_, err := fmt.Sscanln(string(text), &left)
					return err == nil && strings.HasSuffix(string(text), "\n")
				})
				t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
			}
			_, err := n.m.Sample(stalled{context.Background(), sync.OnceFunc(leaves)},
				grant.Source{Source: grant.NVML}, false)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("it returns %v", err)
			}
			n.eventually("the child is not waited for any more", func() bool { return n.m.stuck.Load() == 0 })
			if err := syscall.Kill(left, 0); err != nil {
				t.Errorf("the process that it left behind ended too: %v", err)
			}
		})
	}
}

// TestALateAnswerIsStillRead: an answer that has arrived is used, though the time is over because
// this process was stopped. The clock is the bubble's. If both channels are ready, select takes
// either: hence the hundred rounds.
func TestALateAnswerIsStillRead(t *testing.T) {
	for name, c := range map[string]struct {
		comes func(answer func())
		taken bool
	}{
		"both are there":        {func(answer func()) { answer(); time.Sleep(3 * laterSample) }, true},
		"the answer comes next": {func(answer func()) { time.Sleep(3 * laterSample); time.AfterFunc(gracePeriod-1, answer) }, true},
		"the answer is late":    {func(answer func()) { time.Sleep(3 * laterSample); time.AfterFunc(gracePeriod+1, answer) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				synctest.Test(t, func(t *testing.T) {
					child := &process{lines: make(chan []byte, 1), in: unreadPipe{}}
					m := &Child{current: child, laterAnswer: laterSample}
					answer := func() { child.lines <- []byte("{}") }
					line, err := m.roundTrip(stalled{context.Background(),
						sync.OnceFunc(func() { c.comes(answer) })}, nil)
					if taken := err == nil && string(line) == "{}"; taken != c.taken {
						t.Fatalf("got %q, %v; want it taken: %t", line, err, c.taken)
					}
				})
			}
		})
	}
}

// unreadPipe is a standard input that no process reads.
type unreadPipe struct{}

func (unreadPipe) Write(b []byte) (int, error) { return len(b), nil }
func (unreadPipe) Close() error                { return nil }

// stalled is the context of a process that is stopped once it has begun to wait.
type stalled struct {
	context.Context
	still func()
}

func (s stalled) Done() <-chan struct{} { s.still(); return nil }

// TestSamplerEndsWithItsContext: also while NVML hangs.
func TestSamplerEndsWithItsContext(t *testing.T) {
	n := newFakeNVML(t)
	n.does("hang")
	ctx, stop := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, stop)
	if _, err := n.m.Sample(ctx, grant.Source{}, false); err == nil {
		t.Error("there is a sample")
	}
}

// TestMonotonic: times of samples are by a clock that cannot be set.
func TestMonotonic(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name     string
		taken    time.Time
		wall, by time.Duration // before now, by the clock on the wall, and by the steady one
	}{
		{"a moment ago", now.Round(0).Add(-time.Second), time.Second, time.Second},
		{"the clock was set back since", now.Round(0).Add(time.Hour), 0, 0},
		{"the clock was set forward since", now.Round(0).Add(-time.Hour), 0, 0},
		{"returns no time", time.Time{}, 0, 0},
	} {
		got := monotonic(c.taken, now)
		if now.Sub(got) != c.by || now.Round(0).Sub(got.Round(0)) != c.wall || got == got.Round(0) {
			t.Errorf("%s: %v before now, %v by the wall's clock, %v", c.name, now.Sub(got),
				now.Round(0).Sub(got.Round(0)), got)
		}
	}
	n := newFakeNVML(t)
	s, err := n.m.Sample(context.Background(), grant.Source{}, false)
	if err != nil || s.Taken == s.Taken.Round(0) {
		t.Errorf("a sample is of %v (%v)", s.Taken, err)
	}
}
