package node_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
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

// readsOf counts the reads of files whose path has a word.
type readsOf struct {
	word  string
	reads int
}

func (r *readsOf) Random() (random [16]byte) { return random }
func (r *readsOf) After(host.Step, error)    {}
func (r *readsOf) Before(s host.Step) error {
	if s.Kind == host.Reads && strings.Contains(s.Path, r.word) {
		r.reads++
	}
	return nil
}

// TestAGrantIsReadOnceForAllItsReferences: a tenant writes them, and the ledger is locked
// meanwhile.
func TestAGrantIsReadOnceForAllItsReferences(t *testing.T) {
	counted := map[int]int{}
	for _, references := range []int{1, 100} {
		m := newModel(t)
		m.must(os.Mkdir(m.dir+"/none", 0o755))
		g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
		annotations := map[string]string{}
		for i := range references {
			annotations[fmt.Sprint("cdi.k8s.io/", i)] = "gpuledger.dev/grant=" + reference.String()
		}
		text, err := json.Marshal(annotations)
		m.must(err)
		count := &readsOf{word: string(g.ID)}
		host.Simulated = count
		d := m.node.Admit(node.Create{Caller: m.caller("c"), Config: fmt.Appendf(nil, `{"annotations":%s,`+
			`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, text)})
		host.Simulated = nil
		if !d.Bound {
			t.Errorf("%d references: %s (%s) %s", references, d.Kind, d.Code, d.Message)
		}
		counted[references] = count.reads
	}
	if counted[1] == 0 || counted[100] != counted[1] {
		t.Errorf("files of the grant are read %d times for one reference, and %d times for 100", counted[1],
			counted[100])
	}
}
