package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// fake is a manager that reports each call, and returns the errors that it was given, then none.
type fake struct {
	name   string
	ensure chan int // the number of each call
	calls  int
	errs   []error
	hang   bool
	stops  int
}

func (f *fake) Name() string { return f.name }
func (f *fake) Stop()        { f.stops++ }

func (f *fake) Ensure(ctx context.Context) error {
	f.calls++
	select {
	case f.ensure <- f.calls:
	case <-ctx.Done():
	}
	if f.hang {
		<-ctx.Done()
	}
	if f.calls <= len(f.errs) {
		return f.errs[f.calls-1]
	}
	return nil
}

func TestRunEnsuresUntilItIsStopped(t *testing.T) {
	bad := errors.New("no engine")
	flaky := &fake{name: "flaky", ensure: make(chan int),
		errs: []error{bad, bad, nil, bad, errors.New("another"), errors.New("another")}}
	stuck := &fake{name: "stuck", ensure: make(chan int), hang: true}
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	loop := &Loop{Interval: func() time.Duration { return time.Millisecond }, Log: log}
	done.Go(func() { loop.Run(ctx, flaky, stuck) })
	<-stuck.ensure
	for range 8 {
		<-flaky.ensure
	}
	during := loop.Passes()
	stop()
	done.Wait()
	if flaky.stops != 1 || stuck.stops != 1 || stuck.calls != 1 {
		t.Errorf("stopped %d and %d times, want once each; the one that hangs was called %d times",
			flaky.stops, stuck.stops, stuck.calls)
	}
	passes := loop.Passes()
	if len(passes) != 2 || passes[0].Name != "flaky" || passes[0].Errors != 5 || passes[0].Passes < 7 ||
		passes[0].Error != "" || passes[0].Last.IsZero() {
		t.Errorf("the passes are logged as %+v", passes)
	}
	if hanging := during[len(during)-1]; hanging.Name != "stuck" || hanging.Passes != 0 ||
		hanging.Last.IsZero() {
		t.Errorf("of the manager that hung in its first pass was logged %+v", during)
	}
	if first, second := strings.Count(out.String(), "flaky: no engine"),
		strings.Count(out.String(), "flaky: another"); first != 2 || second != 1 {
		t.Errorf("of two failures with a pause between, and another twice, the log has %d and %d lines:\n%s",
			first, second, out.String())
	}
}

func TestASecondDaemonDoesNotStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	first, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockRunDir(dir); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("the second gets %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockRunDir(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	_ = again.Close()
	if _, err := lockRunDir("/proc/nowhere"); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("where no directory can be made: %v", err)
	}
}

// TestASuccessorWaitsForAnOrphan: a child that a killed daemon has just forked has the lock until
// it executes its program, which takes a while on a busy machine.
func TestASuccessorWaitsForAnOrphan(t *testing.T) {
	dir := t.TempDir()
	orphan, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lockPath(dir), fmt.Appendln(nil, ended.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*lockTime, func() { _ = orphan.Close() })
	successor, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = successor.Close()
}

// TestALockThatIsRemovedIsTakenAgain: if another daemon has taken it meanwhile, the first one ends.
func TestALockThatIsRemovedIsTakenAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	open := func() *node.Node {
		h := host.Default()
		p := policy.Default()
		p.RunDir = dir
		return &node.Node{Policy: p, Host: h, Ledger: ledger.Open(ledger.Options{
			State: dir, Run: dir, Host: h})}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	s, err := newConfigManager(open, filepath.Join(t.TempDir(), "config.toml"), log)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ended := false
	s.end = func() { ended = true }
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(t.Context()); err != nil || ended {
		t.Fatalf("it does not take it again: %v", err)
	}
	if _, err := lockRunDir(dir); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("then a second one gets %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	second, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := s.Ensure(t.Context()); err == nil || !ended || s.Err() == nil ||
		!strings.Contains(s.Err().Error(), "another gpuledgerd runs already") {
		t.Errorf("if another daemon has it, the first one goes on: %v, %v", err, s.Err())
	}
}

func TestNotifyWritesToSystemd(t *testing.T) {
	path := filepath.Join(daemontest.ShortDir(t), "notify")
	listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	notify("READY=1")
	text := make([]byte, 64)
	if n, err := listener.Read(text); err != nil || string(text[:n]) != "READY=1" {
		t.Errorf("systemd receives %q (%v)", text[:n], err)
	}
	t.Setenv("NOTIFY_SOCKET", path+"-gone")
	notify("READY=1") // without a socket it does nothing
}
