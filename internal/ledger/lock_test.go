package ledger

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (b *testLedger) hold() (release func()) {
	b.t.Helper()
	unlock, err := lock(b.files.lock, b.Wait)
	if err != nil {
		b.t.Fatal(err)
	}
	return unlock
}

func TestAHeldLockIsGivenUpOn(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	holder := helper(t, "hold", b)
	b.Wait = 30 * time.Millisecond
	var locked *LockError
	err := b.Update(func(*Tx) error { t.Error("the function ran without the lock"); return nil })
	if !errors.As(err, &locked) || err.Error() != "cannot lock the ledger within 30ms: "+b.files.lock+
		" is held by another process" {
		t.Errorf("Update: %v", err)
	}
	if _, err := b.get(id(1)); err != nil { // a reader never waits
		t.Errorf("Get beside a writer: %v", err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	b.Wait = time.Minute
	// The goroutine that gave up is still in the queue: it must hand the lock on.
	b.update(func(*Tx) error { return nil })
}

func TestAWaiterGetsTheLockWhenItIsFree(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.Wait = time.Minute
	release := b.hold()
	done := make(chan error)
	go func() { done <- b.Update(func(*Tx) error { return nil }) }()
	select {
	case err := <-done:
		t.Errorf("Update did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAReplacedLockFileGuardsNothing(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.Wait = time.Minute
	release := b.hold()
	done := make(chan error)
	entered := make(chan struct{})
	untilBlocked(t, 0)
	go func() { done <- b.Update(func(*Tx) error { close(entered); return nil }) }()
	untilBlocked(t, 1) // for the old file
	if err := os.Remove(b.files.lock); err != nil {
		t.Fatal(err)
	}
	releaseNew := b.hold()
	release()
	select {
	case <-entered:
		t.Error("a writer that waited for the old file entered beside the holder of the new one")
	case <-time.After(50 * time.Millisecond):
	}
	releaseNew()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheLockIsNotInherited(t *testing.T) {
	b := newLedger(t)
	b.update(func(*Tx) error { return nil })
	fd, err := lockFile(b.files.lock)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x (%v): the real runtime would keep the lock over its exec", flags, err)
	}
}

func TestALockThatCannotBeMade(t *testing.T) {
	b := newLedger(t)
	b.update(func(*Tx) error { return nil })
	if err := errors.Join(os.Remove(b.files.lock), os.Mkdir(b.files.lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(func(*Tx) error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "cannot lock the ledger") {
		t.Errorf("Update with a directory as lock: %v", err)
	}
	if err := os.Remove(b.files.lock); err != nil {
		t.Fatal(err)
	}
}

// TestFewThreadsWaitForALock: each goroutine in flock(2) keeps a thread and a descriptor, also
// after its time is over.
func TestFewThreadsWaitForALock(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	release := b.hold()
	b.Wait = time.Millisecond
	for range 2 * maxBlocked {
		var locked *LockError
		if err := b.Update(func(*Tx) error { return nil }); !errors.As(err, &locked) {
			t.Fatalf("Update: %v", err)
		}
	}
	if n := blocked.Load(); n != maxBlocked {
		t.Errorf("%d goroutines wait, want %d", n, maxBlocked)
	}
	b.Wait = time.Minute
	done := make(chan error)
	go func() { done <- b.Update(func(*Tx) error { return nil }) }() // polls
	time.Sleep(2 * pollEvery)
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	untilBlocked(t, 0)
}

// untilBlocked waits until this many goroutines wait for a lock.
func untilBlocked(t *testing.T, want int32) {
	t.Helper()
	for end := time.Now().Add(time.Minute); blocked.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines wait for a lock, want %d", blocked.Load(), want)
		}
	}
}
