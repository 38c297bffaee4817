package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// execsLeft makes this test binary a process that executes itself this many times, each time from a
// thread that is not its first. Then it waits to be killed.
const execsLeft = "GPULEDGER_TEST_EXECS_LEFT"

func TestMain(m *testing.M) {
	left, err := strconv.Atoi(os.Getenv(execsLeft))
	if err != nil {
		os.Exit(m.Run())
	}
	if left == 0 {
		fmt.Println("done")
		time.Sleep(time.Hour) // until it is killed
	}
	runtime.LockOSThread() // holds the first thread, so that the goroutine gets another
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		failed <- unix.Exec("/proc/self/exe", os.Args, []string{execsLeft + "=" + strconv.Itoa(left-1)})
	}()
	fmt.Println(<-failed)
	os.Exit(1)
}

// TestAProcessRunsWhileItExecs: the wrapper becomes the real runtime by exec, and its binding is
// live all the time.
func TestAProcessRunsWhileItExecs(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{execsLeft + "=300"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	h := Default()
	s, err := h.stat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := grant.Process{PID: cmd.Process.Pid, Start: s.start}
	done := make(chan string)
	go func() {
		line := make([]byte, 16)
		n, _ := out.Read(line)
		done <- string(line[:n])
	}()
	asked := 0
	for execs := ""; execs == ""; asked++ {
		select {
		case execs = <-done:
			if execs != "done\n" {
				t.Fatalf("the process prints %q", execs)
			}
		default:
		}
		if runs, err := h.Runs(p); !runs || err != nil {
			t.Fatalf("in check %d: it runs: %v (%v)", asked, runs, err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for runs := true; runs; { // a zombie: the test has not waited for it
		if runs, err = h.Runs(p); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if runs, err := h.Runs(p); runs || err != nil {
		t.Errorf("it has ended, and runs: %v (%v)", runs, err)
	}
	t.Logf("%d checks", asked)
}

func TestRunsReadsThreads(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	line := func(state, threads string) string {
		return "7 (a ) b) " + state + " 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 555 0 0\n"
	}
	if err := os.Mkdir(filepath.Join(h.Proc, "7"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, line string
		start      uint64
		runs, fail bool
	}{
		{"it runs", line("R", "1"), 555, true, false},
		{"a zombie", line("Z", "1"), 555, false, false},
		{"its first thread has ended, another runs", line("Z", "2"), 555, true, false},
		{"another process of the pid", line("R", "1"), 556, false, false},
		{"neither running nor ended", line("X", "0"), 555, false, true},
		{"garbage", "7 (x) R 1\n", 555, false, true},
	} {
		if err := os.WriteFile(filepath.Join(h.Proc, "7/stat"), []byte(c.line), 0o600); err != nil {
			t.Fatal(err)
		}
		if runs, err := h.Runs(grant.Process{PID: 7, Start: c.start}); runs != c.runs ||
			(err != nil) != c.fail {
			t.Errorf("%s: %v (%v)", c.name, runs, err)
		}
	}
}
