package runtime

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// slackOf is a thread's, in nanoseconds.
func slackOf(t *testing.T, thread string) string {
	text, err := os.ReadFile("/proc/" + thread + "/timerslack_ns")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// calmEnv has TestTheRealRuntimesTimersAreTheEngines be the wrapper in a second process.
const calmEnv = "GPULEDGER_TEST_CALM"

// TestTheRealRuntimesTimersAreTheEngines: only Go's monitor wakes up late, and what is run by exec has the timers that the engine has set.
func TestTheRealRuntimesTimersAreTheEngines(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes CAP_SYS_NICE")
	}
	const engines = 70_000
	if os.Getenv(calmEnv) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), calmEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != strconv.Itoa(engines)+"\n" {
			t.Errorf("%q (%v), want %d", out, err, engines)
		}
		return
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, engines, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	monitor := monitorsThread()
	if before := slackOf(t, monitor); before == restful || monitor == strconv.Itoa(unix.Gettid()) {
		t.Fatalf("thread %s of %d has %s ns before", monitor, os.Getpid(), before)
	}
	calm()
	if after := slackOf(t, monitor); after != restful {
		t.Fatalf("the monitor's thread has %s ns", after)
	}
	t.Fatal(unix.Exec("/bin/cat", []string{"cat", "/proc/self/timerslack_ns"}, os.Environ()))
}

func TestOurOwnTimersStay(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := strconv.Itoa(unix.Gettid())
	before := slackOf(t, own)
	rest(own)
	if after := slackOf(t, own); after != before || after == restful {
		t.Errorf("%s ns, and %s before", after, before)
	}
}

// TestWhoIsCalmStaysOnItsThread: another one may have the monitor's timers.
func TestWhoIsCalmStaysOnItsThread(t *testing.T) {
	moved := func(first func()) bool {
		answer := make(chan bool)
		go func() {
			first()
			thread, ping := unix.Gettid(), make(chan bool)
			for range 2000 {
				go func() { ping <- true }()
				<-ping
				runtime.Gosched()
				if unix.Gettid() != thread {
					answer <- true
					return
				}
			}
			answer <- false
		}()
		return <-answer
	}
	if moved(calm) {
		t.Error("it is on another thread")
	}
}
