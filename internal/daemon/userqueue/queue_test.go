package userqueue

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// enters has a user enter the queue, and says whether it was let in.
func enters(t *testing.T, q *Queue, user uint32) *Waiter {
	t.Helper()
	w, err := q.enter(Request{User: user})
	if err != nil && !strings.HasPrefix(err.Error(), "cannot wait: ") {
		t.Errorf("no sentence: %v", err)
	}
	return w
}

// TestQueueIsBounded: no user takes the room of others, and all of them no more than there is.
func TestQueueIsBounded(t *testing.T) {
	q := &Queue{}
	for range 16 {
		if enters(t, q, 1000) == nil {
			t.Fatal("a user's first 16 requests wait")
		}
	}
	if enters(t, q, 1000) != nil {
		t.Fatal("a user's 17th request waits")
	}
	first := enters(t, q, 1001)
	if first == nil {
		t.Fatal("another user has no room beside a user with all of its requests")
	}
	for user := uint32(1002); len(q.waiting) < 256; user++ {
		if enters(t, q, user) == nil {
			t.Fatalf("no room for request %d", len(q.waiting)+1)
		}
	}
	if enters(t, q, 5000) != nil || len(q.waiting) != 256 {
		t.Fatalf("%d requests wait", len(q.waiting))
	}
	q.Leave(first)
	if enters(t, q, 5000) == nil {
		t.Error("a request that left still takes room")
	}
}

// TestOrder: users take turns, from the one after the last that was served, and a user's requests
// are in the order in which they began to wait, whenever they came.
func TestOrder(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	waiter := func(user uint32, since time.Time, number uint64) *Waiter {
		return &Waiter{Request: Request{User: user, Since: since}, number: number}
	}
	waiting := []*Waiter{waiter(7, at(2), 1), waiter(7, at(1), 2), waiter(3, at(9), 3), waiter(0, at(9), 4),
		waiter(3, at(9), 5)}
	for last, want := range map[uint32][]uint64{0: {3, 2, 4, 5, 1}, 3: {2, 4, 3, 1, 5}, 7: {4, 3, 2, 5, 1},
		99: {4, 3, 2, 5, 1}} {
		var got []uint64
		for _, w := range order(waiting, last) {
			got = append(got, w.number)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after user %d: %v, want %v", last, got, want)
		}
	}
}
