package node_test

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// drivenModel is a node with a grant of 4 GiB, whose container the driver limits, and the socket of
// a gpuledgerd that answers this many requests and none after them. Each connection that then waits
// for an answer is sent to the channel.
func drivenModel(t *testing.T, answers int) (m *model, id grant.ID, silent chan net.Conn) {
	m = newModel(t)
	g, _, err := grants.Enter(m.node, admission.Ask{Mode: grant.Limit, Owner: grant.Bearer,
		Memory: 4 * grant.GiB})
	m.must(err)
	self, err := m.node.Host.Self()
	m.must(err)
	m.must(m.node.Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: g.ID, RuntimeRoot: m.dir + "/runc", Container: "c",
			Creator: self, Driven: true})
	}))
	m.node.Policy.RunDir, err = os.MkdirTemp("/tmp", "s-") // a socket's name has 107 bytes at most
	m.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(m.node.Policy.RunDir) })
	l, err := net.Listen("unix", m.node.Policy.LimitSocket())
	m.must(err)
	t.Cleanup(func() { _ = l.Close() })
	silent = make(chan net.Conn, 8)
	go func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			if i >= answers {
				silent <- conn
				continue
			}
			_, _ = conn.Write([]byte(`{"version":1}` + "\n"))
			_ = conn.Close()
		}
	}()
	return m, g.ID, silent
}

func (m *model) resize(id grant.ID, memory grant.Bytes) chan error {
	done := make(chan error, 1)
	go func() {
		_, err := grants.Update(m.node, id, grants.Change{Memory: &memory})
		done <- err
	}()
	return done
}

// waits returns the connection on which a change waits for gpuledgerd.
func (m *model) waits(silent chan net.Conn, done chan error) net.Conn {
	m.t.Helper()
	select {
	case conn := <-silent:
		return conn
	case err := <-done:
		m.t.Fatalf("it has not waited: %v", err)
		return nil
	}
}

// wants compares the grant's memory in the ledger.
func (m *model) wants(id grant.ID, memory grant.Bytes) {
	m.t.Helper()
	m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		if err == nil && g.Memory() != memory {
			m.t.Errorf("the grant has %s, want %s", g.Memory(), memory)
		}
		return err
	}))
}

// TestAHangingGPUledgerdBlocksNoOtherCaller: a caller that waits for it has not locked the ledger,
// or only for a short time if gpuledgerd begins to hang then.
func TestAHangingGPUledgerdBlocksNoOtherCaller(t *testing.T) {
	t.Run("from the start", func(t *testing.T) {
		m, id, silent := drivenModel(t, 0)
		done := m.resize(id, 2*grant.GiB)
		conn := m.waits(silent, done)
		free := *m.node.Ledger
		free.Wait = time.Nanosecond // the lock is free
		m.must(free.Update(func(*ledger.Tx) error { return nil }))
		_ = conn.Close()
		if err := <-done; err == nil || !strings.Contains(err.Error(),
			"gpuledgerd does not answer: it has hung up; see that gpuledgerd runs") {
			t.Errorf("the change: %v", err)
		}
		m.wants(id, 4*grant.GiB)
		if len(silent) > 0 {
			t.Error("it gets another request after the one that failed")
		}
	})
	t.Run("with the ledger locked", func(t *testing.T) {
		t.Parallel() // it waits as long as it may
		m, id, silent := drivenModel(t, 1)
		done := m.resize(id, 2*grant.GiB)
		defer m.waits(silent, done).Close()
		other := *m.node.Ledger
		other.Wait = 2 * ledger.DefaultWait // a busy machine is slow
		m.must(other.Update(func(*ledger.Tx) error { return nil }))
		if err := <-done; err == nil || !strings.Contains(err.Error(), "timed out") {
			t.Errorf("the change: %v", err)
		}
		m.wants(id, 4*grant.GiB)
		_ = (<-silent).Close() // the request that undoes what it may have done
	})
}

// TestGPUledgerdChangesTheDriversLimits: changes of other fields send it no request.
func TestGPUledgerdChangesTheDriversLimits(t *testing.T) {
	m, id, silent := drivenModel(t, 2)
	if err := <-m.resize(id, 2*grant.GiB); err != nil {
		t.Error(err)
	}
	m.wants(id, 2*grant.GiB)
	ttl := time.Hour
	if _, err := grants.Update(m.node, id, grants.Change{TTL: &ttl}); err != nil || len(silent) > 0 {
		t.Errorf("another time to live: %v, it gets %d requests", err, len(silent))
	}
}

// TestNoLedgerIsAheadOfTheDriver: what a smaller grant frees is granted to no other before the
// driver keeps its containers from it, and what a larger one gains is counted before they have it.
func TestNoLedgerIsAheadOfTheDriver(t *testing.T) {
	for _, c := range []struct{ to, meanwhile grant.Bytes }{
		{2 * grant.GiB, 4 * grant.GiB}, {8 * grant.GiB, 8 * grant.GiB}} {
		m, id, silent := drivenModel(t, 1)
		done := m.resize(id, c.to)
		conn := m.waits(silent, done)
		m.wants(id, c.meanwhile)
		_, _ = conn.Write([]byte(`{"version":1}` + "\n"))
		_ = conn.Close()
		if err := <-done; err != nil || len(silent) > 0 {
			t.Errorf("to %s: %v, and it gets %d more requests", c.to, err, len(silent))
		}
		m.wants(id, c.to)
	}
}
