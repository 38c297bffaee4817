package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestASecondCreateScansProcessesOnce: the second create after a crash, of a container whose spec
// names no cgroup, with the same id or another. Package ledger tests that the ledger is not locked
// meanwhile.
func TestASecondCreateScansProcessesOnce(t *testing.T) {
	for _, next := range []string{"c", "d"} {
		m := newModel(t)
		for name, text := range map[string]string{"1/cgroup": "0::/init.scope\n",
			"77/cgroup": "0::/other\n"} {
			path := filepath.Join(m.dir, "proc", name)
			m.must(os.MkdirAll(filepath.Dir(path), 0o755))
			m.must(os.WriteFile(path, []byte(text), 0o644))
		}
		m.must(os.Mkdir(m.dir+"/none", 0o755))
		g, reference, err := grants.Enter(m.node, admission.Ask{
			Mode: grant.Timeslice, Owner: grant.Bearer, GPUs: 1, Memory: grant.GiB, Source: "test"})
		m.must(err)
		crashed := m.caller("c").Container
		m.must(m.node.Ledger.Update(func(tx *ledger.Tx) error {
			return tx.Bind(grant.Binding{Grant: g.ID, RuntimeRoot: crashed.RuntimeRoot, Container: crashed.ID,
				Bundle: crashed.Bundle, Creator: grant.Process{PID: 1 << 30, Start: 1}})
		}))

		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		m.must(err)
		// the kernel merges equal events that follow each other
		_, err = unix.InotifyAddWatch(fd, m.dir+"/proc/77/cgroup", unix.IN_OPEN|unix.IN_CLOSE)
		m.must(err)
		d := m.node.Admit(node.Create{Caller: m.caller(next),
			Config: fmt.Appendf(nil, `{"process":{"env":["GPULEDGER_GRANT=%s"]},`+
				`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, reference)})
		if d.Kind != grant.Admit || !d.Bound {
			t.Errorf("%s: %s (%s) %s", next, d.Kind, d.Code, d.Message)
		}
		events := make([]byte, 1<<12)
		n, _ := unix.Read(fd, events)
		unix.Close(fd)
		if looks := n / int(2*unsafe.Sizeof(unix.InotifyEvent{})); looks != 1 {
			t.Errorf("%s: it scanned all processes %d times", next, looks)
		}
	}
}
