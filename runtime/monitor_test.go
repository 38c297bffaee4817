package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asWrapperEnv makes the test's program call the named function in an init function, as the wrapper
// does.
const asWrapperEnv = "GPULEDGER_TEST_AS_WRAPPER"

func init() {
	act := map[string]func() error{"rests": delaysAndExecs, "stays": stays,
		"another": onAnotherThread}[os.Getenv(asWrapperEnv)]
	if act == nil {
		return
	}
	if err := act(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func asWrapper(what string) (string, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asWrapperEnv+"="+what)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// slackOf returns a thread's timer slack in nanoseconds.
func slackOf(thread string) string {
	text, err := os.ReadFile("/proc/" + thread + "/timerslack_ns")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

const enginesSlack = 70_000

// TestTheRealRuntimesTimersAreTheEngines: only Go's monitor wakes late. A program started by exec
// has the timer slack that the engine set.
func TestTheRealRuntimesTimersAreTheEngines(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes CAP_SYS_NICE: that the monitor rests, and nobody else, is not shown")
	}
	if out, err := asWrapper("rests"); err != nil || out != strconv.Itoa(enginesSlack)+"\n" {
		t.Errorf("%q (%v), want %d", out, err, enginesSlack)
	}
}

func delaysAndExecs() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, enginesSlack, 0, 0, 0); err != nil {
		return err
	}
	monitor := monitorThread()
	if before := slackOf(monitor); before == monitorSlack || monitor == strconv.Itoa(unix.Gettid()) {
		return fmt.Errorf("thread %s of %d has %s ns before", monitor, os.Getpid(), before)
	}
	delayMonitor()
	if after := slackOf(monitor); after != monitorSlack {
		return fmt.Errorf("the monitor's thread has %s ns", after)
	}
	return unix.Exec("/bin/cat", []string{"cat", "/proc/self/timerslack_ns"}, os.Environ())
}

func TestOurOwnTimersStay(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := strconv.Itoa(unix.Gettid())
	before := slackOf(own)
	setSlack(own)
	if after := slackOf(own); after != before || after == monitorSlack {
		t.Errorf("%s ns, and %s before", after, before)
	}
}

// TestAnInitFunctionStaysOnTheFirstThread: another thread may have the monitor's timer slack; so
// the wrapper is an init function.
func TestAnInitFunctionStaysOnTheFirstThread(t *testing.T) {
	if out, err := asWrapper("stays"); err != nil {
		t.Errorf("%s (%v)", out, err)
	}
	moved := make(chan bool)
	go func() { moved <- isMoved() }()
	if !<-moved {
		t.Skip("here no other goroutine moves either: that one in an init function does not says little")
	}
}

func stays() error {
	if unix.Gettid() != os.Getpid() || isMoved() {
		return fmt.Errorf("an init function of %d is on thread %d", os.Getpid(), unix.Gettid())
	}
	return nil
}

// isMoved reports whether a goroutine changes its thread during many waits.
func isMoved() bool {
	thread, ping := unix.Gettid(), make(chan bool)
	for range 2000 {
		go func() { ping <- true }()
		<-ping
		runtime.Gosched()
		if unix.Gettid() != thread {
			return true
		}
	}
	return false
}

func TestOnAnotherThreadNothingChanges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes CAP_SYS_NICE: that another thread lets the monitor be is not shown")
	}
	if out, err := asWrapper("another"); err != nil {
		t.Errorf("%s (%v)", out, err)
	}
}

// onAnotherThread calls delayMonitor on a thread other than the first; the init function has the
// first.
func onAnotherThread() error {
	answer := make(chan error)
	go func() {
		runtime.LockOSThread()
		monitor := monitorThread()
		before := slackOf(monitor)
		delayMonitor()
		switch after := slackOf(monitor); {
		case unix.Gettid() == os.Getpid():
			answer <- errors.New("it is the first thread")
		case before != after || after == monitorSlack:
			answer <- fmt.Errorf("the monitor's thread has %s ns, and had %s", after, before)
		default:
			answer <- nil
		}
	}()
	return <-answer
}
