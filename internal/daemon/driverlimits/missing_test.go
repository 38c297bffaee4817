package driverlimits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// lostRecord is a fakeDriver with one container that has limits, and without a record of them.
type lostRecord struct {
	*fakeDriver
	at      cgroupGPU
	runtime string
}

func newLostRecord(t *testing.T) *lostRecord {
	s := newFakeDriver(t)
	l := &lostRecord{fakeDriver: s, at: cgroupGPU{s.n.Host.Sys + "/fs/cgroup/c", "GPU-0"},
		runtime: t.TempDir()}
	s.n.Host.Proc = t.TempDir()
	s.n.Ledger = ledger.Open(ledger.Options{State: s.n.Policy.StateDir,
		Run: s.n.Policy.RunDir, Host: s.n.Host})
	for path, text := range map[string]string{
		s.n.Host.Proc + "/sys/kernel/random/boot_id":            "boot\n",
		s.n.Host.Proc + "/self/ns/pid":                          "",
		fmt.Sprintf("%s/%d/cgroup", s.n.Host.Proc, os.Getpid()): "0::/daemon\n",
		s.n.Host.Proc + "/4242/stat":                            "4242 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n",
		s.n.Host.Proc + "/4242/cgroup":                          "0::/c\n",
		l.at.cgroup + "/cgroup.events":                          "populated 1\n",
		l.at.cgroup + "/cgroup.procs":                           "4242\n",
		l.runtime + "/c/status":                                 `{"pid":4242,"process-start-time":77,"cgroup-path":"/c"}`,
	} {
		daemontest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
	}
	daemontest.Must(t, s.n.Ledger.Update(func(tx *ledger.Tx) error {
		g := grant.Grant{ID: "g-cccccccccccc", Owner: grant.Bearer, Mode: grant.Limit,
			Strength: grant.StrengthDriver, GPUs: []grant.Share{
				{UUID: "GPU-0", Memory: grant.GiB}, {UUID: "GPU-1", Memory: grant.GiB}},
			Secret: grant.SecretHash(strings.Repeat("a", 32)), Created: time.Now()}
		return errors.Join(tx.Put(g), tx.Bind(grant.Binding{
			Grant: g.ID, RuntimeRoot: l.runtime, Container: "c", Creator: grant.Process{PID: 4243, Start: 1},
			Driven: true, Strength: grant.StrengthDriver}))
	}))
	s.has[l.at], s.has[cgroupGPU{l.at.cgroup, "GPU-1"}] = grant.GiB, grant.GiB
	// afterwards an observer has seen all of the container
	for end := time.Now().Add(time.Minute); !s.n.Ledger.Stamp().Before(time.Now()); {
		if time.Now().After(end) {
			t.Fatal("the ledger is always of this moment")
		}
	}
	return l
}

// pass is a pass of gpuledgerd.
func (l *lostRecord) pass() error {
	_, err := l.fakeDriver.check(context.Background(), l.n, true)
	return errors.Join(err, l.limitMissing(context.Background(), l.n))
}

// is compares the ledger and the driver's limit with what they should be.
func (l *lostRecord) is(what string, driven bool, limit grant.Bytes) {
	l.t.Helper()
	daemontest.Must(l.t, l.n.Ledger.View(func(tx *ledger.Tx) error {
		b, err := tx.Bindings.Of(l.runtime, "c")
		if b.Driven != driven || l.has[l.at] != limit {
			l.t.Errorf("%s: it is driven: %v, and limited to %s", what, b.Driven, l.has[l.at])
		}
		return err
	}))
}

// TestLimitsStayWhileNVMLDoesNotAnswer: if NVML does not answer, or nothing can be recorded, a
// container without a record keeps its limit, and is recorded in the next pass.
func TestLimitsStayWhileNVMLDoesNotAnswer(t *testing.T) {
	for name, c := range map[string]struct{ begins, ends func(*lostRecord) }{
		"NVML does not answer": {func(l *lostRecord) {
			l.hung = true
		}, func(l *lostRecord) { l.hung = false }},
		"nothing can be written down": {
			func(l *lostRecord) {
				daemontest.Must(t, os.MkdirAll(l.n.Policy.RunDir+"/"+recordName+"/in the way", 0o700))
			},
			func(l *lostRecord) { daemontest.Must(t, os.RemoveAll(l.n.Policy.RunDir+"/"+recordName)) }},
		"its first process cannot be inspected": {
			func(l *lostRecord) {
				daemontest.Must(t, os.Rename(l.n.Host.Proc+"/4242/cgroup", l.n.Host.Proc+"/4242/away"))
			},
			func(l *lostRecord) {
				daemontest.Must(t, os.Rename(l.n.Host.Proc+"/4242/away", l.n.Host.Proc+"/4242/cgroup"))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLostRecord(t)
			c.begins(l)
			for range 2 {
				if err := l.pass(); err == nil || !strings.Contains(err.Error(),
					`cannot have the driver hold container "c" again: `) {
					t.Errorf("reported is %v", err)
				}
				l.is("meanwhile", true, grant.GiB)
			}
			if l.logs("found") > 0 || len(l.known) > 0 {
				t.Errorf("it is reported %d times, and known is %+v", l.logs("found"), l.known)
			}
			c.ends(l)
			for range 2 {
				daemontest.Must(t, l.pass())
				l.is("afterwards", true, grant.GiB)
			}
			if len(l.known) != 1 || l.sets != 2 {
				t.Errorf("they are set %d times, and known is %+v", l.sets, l.known)
			}
		})
	}
}

// TestARefusedLimitIsNotRecordedAsSet: the ledger does not say that the driver limits a container
// that it cannot limit.
func TestARefusedLimitIsNotRecordedAsSet(t *testing.T) {
	for name, c := range map[string]struct {
		begins func(*lostRecord)
		why    string
		other  grant.Bytes // the limit on another GPU
	}{
		"the driver answers an error": {func(l *lostRecord) { l.fakeDriver.lost["GPU-0"] = true },
			"GPU is lost", grant.NoLimit},
		"its first process is elsewhere": {func(l *lostRecord) {
			daemontest.Must(t, os.WriteFile(l.n.Host.Proc+"/4242/cgroup", []byte("0::/elsewhere\n"), 0o600))
		}, "its first process is in the cgroup /elsewhere, and its runtime recorded", grant.GiB},
		"its cgroup holds other processes": {func(l *lostRecord) {
			daemontest.Must(t, os.WriteFile(l.n.Host.Proc+"/4242/cgroup", []byte("0::/\n"), 0o600))
		}, "which is not its own", grant.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLostRecord(t)
			c.begins(l)
			if err := l.pass(); err == nil || !strings.Contains(err.Error(), c.why) || l.logs("found") != 1 {
				t.Errorf("reported is %v, %d times", err, l.logs("found"))
			}
			l.is("at once", false, grant.GiB)
			if other := l.has[cgroupGPU{l.at.cgroup, "GPU-1"}]; other != c.other {
				t.Errorf("its other GPU is limited to %s", other)
			}
		})
	}
}
