package userqueue

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// oneGiB is an ask of user for a GiB.
func oneGiB(user uint32) admission.Ask {
	return admission.Ask{Owner: grant.Bearer, Mode: grant.Limit, GPUs: 1, Memory: grant.GiB, User: user,
		Source: "test"}
}

// TestOnlyAUsersFirstRequestIsServed, even if the second would fit. Another user's is.
func TestOnlyAUsersFirstRequestIsServed(t *testing.T) {
	n := newWithGPU(t)
	_, _, err := n.asks(60001, "holds", 4*grant.GiB)
	daemontest.Must(t, err)
	_, first, err := n.asks(60002, "first", 8*grant.GiB)
	if first == nil {
		t.Fatal(err)
	}
	second := n.queued(Request{User: 60002, Ask: oneGiB(60002), Since: time.Now()})
	other := n.queued(Request{User: 60003, Ask: oneGiB(60003)})
	daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
	for w, waits := range map[*Waiter]bool{first: true, second: true, other: false} {
		if place, _ := n.queue.Place(w); (place > 0) != waits {
			t.Errorf("a request of user %d for %s has place %d", w.User, w.Ask.Memory, place)
		}
	}
}

// TestWhoLeavesLeavesAlone: the others keep their places.
func TestWhoLeavesLeavesAlone(t *testing.T) {
	q := &Queue{}
	first, second := enters(t, q, 60001), enters(t, q, 60002)
	if out := q.Leave(first); out != nil {
		t.Errorf("it had %+v", out)
	}
	if place, of := q.Place(second); place != 1 || of != 1 {
		t.Errorf("the other one is at %d of %d", place, of)
	}
}

// TestWhoCannotWait is told why: the request does not wait, or there is no room.
func TestWhoCannotWait(t *testing.T) {
	n := newWithGPU(t)
	_, _, err := n.asks(60001, "holds", 8*grant.GiB)
	daemontest.Must(t, err)
	for range maxWaitingOfUser {
		n.queued(Request{User: 60002, Ask: oneGiB(60002)})
	}
	asks := func(waits bool) (*Waiter, error) {
		_, w, err := n.queue.GrantOrWait(func() *node.Node { return n.Node }, grants.Read,
			Request{User: 60002, Ask: oneGiB(60002), Waits: waits})
		return w, err
	}
	if w, err := asks(true); w != nil || err == nil || !strings.HasPrefix(err.Error(), "cannot wait: 16 ") {
		t.Errorf("without room: %v, %v", w, err)
	}
	for _, w := range slices.Clone(n.queue.waiting) {
		n.queue.Leave(w)
	}
	var r *grant.Refusal
	if w, err := asks(false); w != nil || !errors.As(err, &r) || r.Code != grant.NoCapacity {
		t.Errorf("a request that does not wait: %v, %v", w, err)
	}
}

// TestTheTimeOfARequest is the longest of its user's quota, if it says none. Root has no quota.
func TestTheTimeOfARequest(t *testing.T) {
	n := newWithGPU(t)
	n.Policy.Quotas = []grant.Quota{{User: "60001", TTL: "2h"}}
	for _, c := range []struct {
		source    string
		ttl, want time.Duration
	}{{grant.ByUser, 0, 2 * time.Hour}, {grant.ByUser, time.Hour, time.Hour}, {"cli", 0, 0}} {
		ask, err := InQuota(n.Node, admission.Ask{User: 60001, Source: c.source, TTL: c.ttl})
		if err != nil || ask.TTL != c.want || (ask.Quota != nil) != (c.source == grant.ByUser) {
			t.Errorf("%s, %s: %s, quota %v, %v", c.source, c.ttl, ask.TTL, ask.Quota, err)
		}
	}
	if _, err := InQuota(n.Node, admission.Ask{User: 60009, Source: grant.ByUser}); err == nil {
		t.Error("a user without a quota is not refused")
	}
}

var errGone = &grants.ProgramError{Err: errors.New("the program has ended")}

// gone is a program that has ended when its grant is found.
type gone struct{ goneProgram }

func (gone) Rejoin(*node.Node, grant.Grant) error { return errGone }

// TestAProgramThatCannotRejoin gets that error, at once and from the queue.
func TestAProgramThatCannotRejoin(t *testing.T) {
	n := newWithGPU(t)
	g, _, err := n.asks(60001, "secret", grant.GiB)
	daemontest.Must(t, err)
	ask := oneGiB(60001)
	ask.Secret = "secret"
	found, _, err := n.queue.GrantOrWait(func() *node.Node { return n.Node }, grants.Read,
		Request{User: 60001, Ask: ask, For: gone{}})
	if found.ID != g.ID || !errors.Is(err, errGone) {
		t.Errorf("at once: %s, %v", found.ID, err)
	}
	w := n.queued(Request{User: 60001, Ask: ask, For: gone{}})
	daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
	if out := n.queue.Leave(w); out == nil || out.Grant.ID != g.ID || !errors.Is(out.Err, errGone) {
		t.Errorf("from the queue: %+v", out)
	}
}

// TestWhatIsTakenBackIsRecorded, once.
func TestWhatIsTakenBackIsRecorded(t *testing.T) {
	n := newWithGPU(t)
	n.Policy.Audit.File = t.TempDir() + "/audit.jsonl"
	g, _, err := n.asks(60001, "secret", grant.GiB)
	daemontest.Must(t, err)
	for range 2 {
		TakeBack(n.Node, 60001, g.ID)
	}
	text, err := os.ReadFile(n.Policy.Audit.File)
	if want := fmt.Sprintf(`"grant":%q`, g.ID); err != nil || strings.Count(string(text), "\n") != 1 ||
		!strings.Contains(string(text), want) || !strings.Contains(string(text), `"released"`) {
		t.Errorf("%v, recorded is %q, want %s", err, text, want)
	}
	if left := n.grants(); len(left) != 0 {
		t.Errorf("%+v are left", left)
	}
}

// TestOnlyWhatUsersAskedForIsIdle: root's grant for a user stays, and so does that of a user whose
// quota says nothing.
func TestOnlyWhatUsersAskedForIsIdle(t *testing.T) {
	n := newWithGPU(t)
	n.Policy.Quotas = []grant.Quota{{User: "60001", Idle: "1h"}, {User: "60002"}}
	entered := map[string]grant.ID{}
	for _, c := range []struct {
		user   uint32
		source string
	}{{60001, "cli"}, {60001, grant.ByUser}, {60002, grant.ByUser}} {
		ask := oneGiB(c.user)
		ask.Source = c.source
		g, _, err := grants.Enter(n.Node, ask)
		daemontest.Must(t, err)
		if c.user == 60001 {
			entered[c.source] = g.ID
		}
	}
	now := time.Now()
	unused := func(grant.Inventory, grant.Grant, bool) bool { return false }
	var over []grant.Grant
	for _, after := range []time.Duration{0, time.Hour} {
		var err error
		clock := func() time.Time { return now.Add(after) }
		over, err = n.queue.ReleaseIdle(n.Node, grants.Read, clock, unused)
		daemontest.Must(t, err)
	}
	if len(over) != 1 || over[0].ID != entered[grant.ByUser] || len(n.grants()) != 2 {
		t.Errorf("released are %+v, left are %+v", over, n.grants())
	}
}

// TestALedgerThatCannotBeRead ends a pass with an error, and each request goes on waiting.
func TestALedgerThatCannotBeRead(t *testing.T) {
	n := newWithGPU(t)
	w := n.queued(Request{User: 60001, Ask: oneGiB(60001)})
	host.Simulated = &unreadable{n.Policy.StateDir + "/grants"}
	err := n.queue.Pass(n.Node, grants.Read)
	host.Simulated = nil
	if place, _ := n.queue.Place(w); err == nil || place != 1 {
		t.Errorf("%v, place %d", err, place)
	}
}

// TestWhatCanNeverBeGranted does not wait any more, and says why. It keeps no other from what is
// free.
func TestWhatCanNeverBeGranted(t *testing.T) {
	n := newWithGPU(t)
	n.Policy.Quotas = []grant.Quota{{User: "60001"}}
	without, large, wrong, fits := oneGiB(60002), oneGiB(60003), oneGiB(60004), oneGiB(60005)
	without.Source = grant.ByUser // its quota was taken away while it waited
	large.Memory = 9 * grant.GiB
	wrong.Compute = 101
	for i, ask := range []admission.Ask{without, large, wrong, fits} {
		w := n.queued(Request{User: ask.User, Ask: ask})
		daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
		out := n.queue.Leave(w)
		if out == nil || (out.Err == nil) != (i == 3) || (out.Grant.Memory() > 0) != (i == 3) {
			t.Errorf("request %d has %+v", i, out)
		}
	}
}
