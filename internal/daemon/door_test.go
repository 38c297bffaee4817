package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logs "github.com/sirupsen/logrus/hooks/test"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestASocketThatIsRemovedIsMadeAgain, and one of somebody else's in its place is left to him.
func TestASocketThatIsRemovedIsMadeAgain(t *testing.T) {
	path := filepath.Join(shortDir(t), "limit.sock")
	var d requestSocket
	answer := func(context.Context, cgmem.Request, int) error { return nil }
	listens := func(when string) {
		t.Helper()
		must(t, d.open(path, answer))
		if err := cgmem.Ask(path, cgmem.Request{Op: cgmem.Clear}, ioTime); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	listens("first")
	must(t, os.Remove(path))
	listens("removed")
	must(t, os.Remove(path))
	other, err := net.Listen("unix", path)
	must(t, err)
	if err := d.open(path, answer); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("another's in its place: %v", err)
	}
	must(t, other.Close())
	listens("the other is gone")
	d.close()
}

// TestTheListenersSocketIsMadeAgain, announced by the name that is configured.
func TestTheListenersSocketIsMadeAgain(t *testing.T) {
	path := filepath.Join(shortDir(t), "status.sock")
	n := &node.Node{Policy: grant.Policy{Daemon: grant.Daemon{Listen: "unix:" + path}}}
	log, said := logs.NewNullLogger()
	s := &HTTPManager{statusView: &statusView{node: func() *node.Node { return n }}, log: log}
	defer s.Stop()
	for times := 1; times <= 2; times++ {
		for range 2 { // the second time it is there
			must(t, s.Ensure(context.Background()))
		}
		conn, err := net.Dial("unix", path)
		must(t, err)
		_ = conn.Close()
		if got := said.AllEntries(); len(got) != times || got[0].Level != logrus.InfoLevel || fmt.Sprint(got[0].Data["address"]) != path {
			t.Errorf("%d times it is said: %+v", times, got)
		}
		must(t, os.Remove(path))
	}
}

// TestLeavesThatCannotBeRead: who reads the refusal learns what to do.
func TestLeavesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		`{"version":2,"boot_id":"b"}`: "its version is 2 and this gpuledgerd knows 1; start the gpuledgerd that wrote it, or remove it when no container with strength driver runs",
		"{":                           "; remove it when no container with strength driver runs",
	} {
		must(t, os.WriteFile(filepath.Join(dir, recordName), []byte(text), 0o600))
		if _, err := loadRecord(dir, "b"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
