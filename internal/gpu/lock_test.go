package gpu

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestOneProcessTakesTheInventory: the second waits until the first has written, and an error names
// the first if that takes too long.
func TestOneProcessTakesTheInventory(t *testing.T) {
	path := Path(t.TempDir())
	unlock, err := Lock(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if _, err := Lock(path, time.Millisecond); !errors.As(err, &held) ||
		!strings.Contains(err.Error(), fmt.Sprintf("process %d has", os.Getpid())) {
		t.Errorf("the second returns %v", err)
	}
	released := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(released); unlock() })
	again, err := Lock(path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	again()
	select {
	case <-released:
	default:
		t.Error("both hold it")
	}
}

// TestNoLockWhereThereCanBeNone: what is wrong with the directory is Write's to say, and a missing
// one stays missing until there is something to write.
func TestNoLockWhereThereCanBeNone(t *testing.T) {
	dir := t.TempDir() + "/state"
	unlock, err := Lock(Path(dir), 0)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
}
