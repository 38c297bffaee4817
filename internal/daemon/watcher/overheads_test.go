package watcher

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Offsets of shim/record.h, which package limits checks against the compiler's: where the first
// device's overhead is in the limits, the head's highest slot and the first slot in the region.
const (
	overheadAt = 64 + 24
	highAt     = 64
	slotAt     = 4096
)

// TestOverhead: what is used and not counted by the shim counts against the grant.
func TestOverhead(t *testing.T) {
	const uuid, id = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", grant.ID("g-aaaaaaaaaaaa")
	run := t.TempDir()
	dir := filepath.Join(run, "limits", string(id))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := limits.Ensure(dir, []grant.Share{{UUID: uuid, Memory: 4 * grant.GiB}}, 0, nil); err != nil {
		t.Fatal(err)
	}
	region, err := os.OpenFile(filepath.Join(dir, grant.RegionFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	counts := func(b grant.Bytes) {
		for at, value := range map[int64]uint64{highAt: 1, slotAt: uint64(b)} {
			if _, err := region.WriteAt(binary.NativeEndian.AppendUint64(nil, value), at); err != nil {
				t.Fatal(err)
			}
		}
	}
	owner := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1} // another process has the slot
	if err := unix.FcntlFlock(region.Fd(), unix.F_OFD_SETLK, &owner); err != nil {
		t.Fatal(err)
	}
	overhead := func() grant.Bytes {
		text, err := os.ReadFile(filepath.Join(dir, grant.LimitsFile))
		if err != nil {
			t.Fatal(err)
		}
		return grant.Bytes(binary.NativeEndian.Uint64(text[overheadAt:]))
	}
	n := &node.Node{Policy: grant.Policy{RunDir: run}}
	var o overheadWriter
	now := time.Now()
	for _, c := range []struct {
		name                    string
		after                   time.Duration
		used, unlisted, counted grant.Bytes
		want                    grant.Bytes
	}{
		{"a context", 0, 3*grant.GiB + 300*grant.MiB, 0, 3 * grant.GiB, 300 * grant.MiB},
		{"the account is moving", 0, 3*grant.GiB + 300*grant.MiB, 0, 2 * grant.GiB, 300 * grant.MiB},
		{"it no longer moves", 0, 3*grant.GiB + 300*grant.MiB, 0, 2 * grant.GiB, grant.GiB + 300*grant.MiB},
		{"the truth has not moved", time.Second, 3*grant.GiB + 300*grant.MiB, 0, grant.GiB,
			grant.GiB + 300*grant.MiB},
		{"for some time", overheadEvery, 3*grant.GiB + 300*grant.MiB, 0, grant.GiB,
			grant.GiB + 300*grant.MiB},
		{"and the account does not move", 0, 3*grant.GiB + 300*grant.MiB, 0, grant.GiB,
			2*grant.GiB + 300*grant.MiB},
		{"the truth has moved", 0, 2*grant.GiB + 300*grant.MiB, 0, 2 * grant.GiB, grant.GiB + 300*grant.MiB},
		{"and it is sure", 0, 2*grant.GiB + 300*grant.MiB, 0, 2 * grant.GiB, 300 * grant.MiB},
		{"listed for no process", time.Second, 2*grant.GiB + 300*grant.MiB, grant.GiB, 2 * grant.GiB,
			grant.GiB + 300*grant.MiB},
		{"it is counted now", overheadEvery, 2*grant.GiB + 300*grant.MiB, 0, 2 * grant.GiB, 300 * grant.MiB},
		{"allocated after the measurement", 0, 4*grant.GiB + 300*grant.MiB, 0, 6 * grant.GiB,
			300 * grant.MiB},
		{"that is measured", 0, 6*grant.GiB + 300*grant.MiB, 0, 6 * grant.GiB, 300 * grant.MiB},
		{"freed after the measurement", 0, 6*grant.GiB + 400*grant.MiB, 0, grant.GiB, 400 * grant.MiB},
		{"that is measured, too", 0, grant.GiB + 300*grant.MiB, 0, grant.GiB, 300 * grant.MiB},
		{"less than is counted", 0, grant.GiB, 0, 2 * grant.GiB, 0},
	} {
		counts(c.counted)
		now = now.Add(c.after)
		o.update(n, watch.Comparison{Taken: now, Grants: []watch.GrantUse{
			{ID: id, GPU: uuid, Used: c.used, Unlisted: c.unlisted},
			{ID: "g-bbbbbbbbbbbb", GPU: uuid, Used: c.used}}})
		if got := overhead(); got != c.want {
			t.Errorf("%s: the overhead is %s, want %s", c.name, got, c.want)
		}
	}
}

// TestContextsAreLearned: the least that a process has beyond its allocations, once neither
// changes. Later limits have it, and their processes count it.
func TestContextsAreLearned(t *testing.T) {
	const uuid = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"
	n := &node.Node{Policy: grant.Policy{RunDir: t.TempDir()}}
	var o overheadWriter
	now := time.Now()
	ids := 0
	sees := func(used grant.Bytes, processes int, want grant.Bytes) {
		t.Helper()
		ids++
		g := watch.GrantUse{ID: grant.NewID([16]byte{byte(ids)}), GPU: uuid, Used: used, Processes: processes}
		dir, each := n.Policy.LimitsDir(g.ID), limits.ReadContexts(n.Policy.ContextsFile())[uuid]
		daemontest.Must(t, os.MkdirAll(dir, 0o700),
			limits.Ensure(dir, []grant.Share{{UUID: uuid, Memory: grant.GiB}}, 0,
				func(string) grant.Bytes { return each }))
		o.used = func(*limits.Account, string) (grant.Bytes, int, error) { // as the shim counts contexts
			return each * grant.Bytes(processes), processes, nil
		}
		for _, used := range []grant.Bytes{32 * grant.MiB, used, used} { // at first the context is being made
			g.Used = used
			now = now.Add(time.Second)
			o.update(n, watch.Comparison{Taken: now, Grants: []watch.GrantUse{g}})
		}
		if got := limits.ReadContexts(n.Policy.ContextsFile())[uuid]; got != want {
			t.Errorf("after %s of %d processes: %s is known, want %s", used, processes, got, want)
		}
	}
	sees(0, 0, 0)
	sees(4*grant.MiB, 1, 0) // no context is so small
	sees(700*grant.MiB, 1, 700*grant.MiB)
	sees(1200*grant.MiB, 2, 600*grant.MiB)
	sees(900*grant.MiB, 1, 600*grant.MiB)
	sees(590*grant.MiB, 1, 600*grant.MiB) // too little less to be news
	o = overheadWriter{}                  // another gpuledgerd
	sees(650*grant.MiB, 1, 600*grant.MiB)
	sees(500*grant.MiB, 1, 500*grant.MiB)
}

// TestAnIdleGrantIsReset: while a process runs, what a context counts stays as it is, so that what
// was counted tells what contexts take. Then the next process begins without overhead, and with
// what is known by now. So it is at the start of gpuledgerd, and not while a GPU does not answer.
func TestAnIdleGrantIsReset(t *testing.T) {
	const uuid = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"
	n := &node.Node{Policy: grant.Policy{RunDir: t.TempDir()}}
	id := grant.ID("g-aaaaaaaaaaaa")
	dir := n.Policy.LimitsDir(id)
	daemontest.Must(t, os.MkdirAll(dir, 0o700),
		limits.Contexts{uuid: 500 * grant.MiB}.Save(n.Policy.ContextsFile()),
		limits.Ensure(dir, []grant.Share{{UUID: uuid, Memory: 4 * grant.GiB}}, 0,
			func(string) grant.Bytes { return 600 * grant.MiB }))
	counted := 600 * grant.MiB
	now := time.Now()
	var o overheadWriter
	passes := func(health grant.Bytes, used ...grant.Bytes) {
		r := watch.Comparison{GPUs: []watch.GPUUse{{UUID: uuid, Total: health}}}
		for _, bytes := range used {
			r.Grants = append(r.Grants, watch.GrantUse{ID: id, GPU: uuid, Used: bytes, Processes: 1})
		}
		for range 5 {
			now = now.Add(overheadEvery)
			r.Taken = now
			o.used = func(*limits.Account, string) (grant.Bytes, int, error) { return counted, 1, nil }
			o.update(n, r)
		}
	}
	is := func(what string, overhead, context grant.Bytes) {
		t.Helper()
		a, err := limits.OpenAccount(dir)
		daemontest.Must(t, err)
		defer a.Close()
		if o, c, err := a.Published(uuid); err != nil || o != overhead || c != context {
			t.Errorf("%s: the overhead is %s and a context %s, want %s and %s (%v)", what, o, c, overhead,
				context, err)
		}
	}
	passes(80*grant.GiB, 900*grant.MiB)
	is("a process with code", 300*grant.MiB, 600*grant.MiB)
	passes(80*grant.GiB, 520*grant.MiB) // again and again: nothing is learned from what was learned
	is("one without", 0, 600*grant.MiB)
	if known := limits.ReadContexts(n.Policy.ContextsFile())[uuid]; known != 500*grant.MiB {
		t.Errorf("a context takes %s", known)
	}
	passes(80*grant.GiB, 900*grant.MiB)
	passes(0)
	is("a GPU that does not answer", 300*grant.MiB, 600*grant.MiB)
	passes(80*grant.GiB, 900*grant.MiB)
	passes(80 * grant.GiB)
	is("idle", 0, 500*grant.MiB)
	counted = 0
	passes(80*grant.GiB, 900*grant.MiB)
	o.closeAll()
	o = overheadWriter{}
	passes(80 * grant.GiB)
	is("gpuledgerd begins", 0, 500*grant.MiB)
}

// TestAGrantIsResetOnceItsGPUsAnswer: its process ends, or gpuledgerd begins, while a GPU does not
// answer. If that is one of the grant, its processes are not known until it answers.
func TestAGrantIsResetOnceItsGPUsAnswer(t *testing.T) {
	const own, second, other = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7",
		"GPU-ec6f3a93-0db3-4679-0464-05f9944454e8", "GPU-ec6f3a93-0db3-4679-0464-05f9944454e9"
	n := &node.Node{Policy: grant.Policy{RunDir: t.TempDir()}}
	id := grant.ID("g-aaaaaaaaaaaa")
	dir := n.Policy.LimitsDir(id)
	daemontest.Must(t, os.MkdirAll(dir, 0o700), limits.Ensure(dir, []grant.Share{
		{UUID: own, Memory: 4 * grant.GiB}, {UUID: second, Memory: 4 * grant.GiB}}, 0, nil))
	now := time.Now()
	begin := func() overheadWriter {
		return overheadWriter{
			used: func(*limits.Account, string) (grant.Bytes, int, error) { return grant.GiB, 1, nil }}
	}
	o := begin()
	looks := func(count int, silent string, used grant.Bytes) {
		for range count {
			now = now.Add(overheadEvery)
			r := watch.Comparison{Taken: now}
			for _, uuid := range []string{own, second, other} {
				g := watch.GPUUse{UUID: uuid, Total: 80 * grant.GiB}
				if uuid == silent {
					g.Total = 0
				}
				r.GPUs = append(r.GPUs, g)
			}
			if used > 0 {
				r.Grants = []watch.GrantUse{{ID: id, GPU: own, Used: used, Processes: 1}}
			}
			o.update(n, r)
		}
	}
	is := func(what string, want grant.Bytes) {
		t.Helper()
		a, err := limits.OpenAccount(dir)
		daemontest.Must(t, err)
		defer a.Close()
		if overhead, _, err := a.Published(own); err != nil || overhead != want {
			t.Errorf("%s: the overhead is %s (%v), want %s", what, overhead, err, want)
		}
	}
	for what, restarts := range map[string]bool{"its process ends": false, "gpuledgerd begins": true} {
		for _, silent := range []string{other, second} {
			looks(5, "", 2*grant.GiB)
			is("it runs", grant.GiB)
			if restarts {
				o.closeAll()
				o = begin()
			}
			looks(1, silent, 0)
			if silent == other {
				is(what+" while a GPU of others is silent", 0)
				continue
			}
			is(what+" while a GPU of its own is silent", grant.GiB)
			looks(1, "", 0)
			is(what+" and its GPU answers again", 0)
		}
	}
	looks(5, "", 2*grant.GiB)
	looks(1, second, 0)
	looks(1, "", 2*grant.GiB)
	is("its process was there all the time", grant.GiB)
	looks(1, second, 0)
	daemontest.Must(t, limits.Remove(dir))
	if looks(1, second, 0); len(o.idle) != 0 {
		t.Errorf("a grant that is over is remembered: %v", o.idle)
	}
}

// TestAnIdleGPUOfAGrantHasNoOverhead: a process ends, and another one of the grant runs on another
// GPU. What the first one had is free for the next process on its GPU.
func TestAnIdleGPUOfAGrantHasNoOverhead(t *testing.T) {
	const first, second = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7",
		"GPU-ec6f3a93-0db3-4679-0464-05f9944454e8"
	n := &node.Node{Policy: grant.Policy{RunDir: t.TempDir()}}
	id := grant.ID("g-aaaaaaaaaaaa")
	dir := n.Policy.LimitsDir(id)
	daemontest.Must(t, os.MkdirAll(dir, 0o700), limits.Ensure(dir, []grant.Share{
		{UUID: first, Memory: 4 * grant.GiB}, {UUID: second, Memory: 4 * grant.GiB}}, 0,
		func(string) grant.Bytes { return 300 * grant.MiB }))
	now := time.Now()
	begin := func() overheadWriter {
		return overheadWriter{
			used: func(*limits.Account, string) (grant.Bytes, int, error) { return grant.GiB, 1, nil }}
	}
	o := begin()
	looks := func(silent string, busy ...string) {
		for range 5 {
			now = now.Add(overheadEvery)
			r := watch.Comparison{Taken: now}
			for _, uuid := range []string{first, second} {
				g := watch.GPUUse{UUID: uuid, Total: 80 * grant.GiB}
				if uuid == silent {
					g.Total = 0
				}
				r.GPUs = append(r.GPUs, g)
			}
			for _, uuid := range busy {
				r.Grants = append(r.Grants,
					watch.GrantUse{ID: id, GPU: uuid, Used: 2 * grant.GiB, Processes: 1})
			}
			o.update(n, r)
		}
	}
	is := func(what, uuid string, want grant.Bytes) {
		t.Helper()
		a, err := limits.OpenAccount(dir)
		daemontest.Must(t, err)
		defer a.Close()
		if overhead, context, err := a.Published(uuid); err != nil || overhead != want ||
			context != 300*grant.MiB {
			t.Errorf("%s: the overhead of %s is %s (%v) and a context %s, want %s and 300 MiB", what, uuid,
				overhead, err, context, want)
		}
	}
	for what, restarts := range map[string]bool{"its process ends": false, "gpuledgerd begins": true} {
		looks("", first, second)
		is("both run", first, grant.GiB)
		if restarts {
			o.closeAll()
			o = begin()
		}
		looks(first, second)
		is(what+" while the GPU is silent", first, grant.GiB)
		looks("", second)
		is(what, first, 0)
		is(what, second, grant.GiB)
	}
	o.closeAll()
}

// TestKeptAccounts: an account stays open while its grant is used, and is opened again if its files
// were replaced. There are no more open accounts than allowed.
func TestKeptAccounts(t *testing.T) {
	const uuid = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"
	run := t.TempDir()
	n := &node.Node{Policy: grant.Policy{RunDir: run}}
	o := overheadWriter{maxOpen: 20}
	defer o.closeAll()
	var r watch.Comparison
	for i := range o.maxOpen + 3 {
		g := watch.GrantUse{ID: grant.NewID([16]byte{byte(i % 26), byte(i / 26)}), GPU: uuid, Used: grant.GiB}
		r.Grants = append(r.Grants, g)
		daemontest.Must(t, os.MkdirAll(n.Policy.LimitsDir(g.ID), 0o700),
			limits.Ensure(n.Policy.LimitsDir(g.ID), []grant.Share{{UUID: uuid, Memory: grant.GiB}}, 0, nil))
	}
	overhead := func(i int) grant.Bytes {
		text, err := os.ReadFile(filepath.Join(n.Policy.LimitsDir(r.Grants[i].ID), grant.LimitsFile))
		daemontest.Must(t, err)
		return grant.Bytes(binary.NativeEndian.Uint64(text[overheadAt:]))
	}
	wantsOverhead := func(used grant.Bytes) {
		t.Helper()
		for i := range r.Grants {
			r.Grants[i].Used = used
		}
		o.update(n, r)
		for i := range r.Grants {
			if got := overhead(i); got != used {
				t.Errorf("grant %d: the overhead is %s, want %s", i, got, used)
			}
		}
	}
	wantsOverhead(grant.GiB)
	wantsOverhead(2 * grant.GiB)
	if len(o.accounts) != o.maxOpen {
		t.Errorf("%d accounts are kept, of %d grants", len(o.accounts), len(r.Grants))
	}
	first := n.Policy.LimitsDir(r.Grants[0].ID)
	daemontest.Must(t, limits.Remove(first), os.MkdirAll(first, 0o700),
		limits.Ensure(first, []grant.Share{{UUID: uuid, Memory: grant.GiB}}, 0, nil))
	wantsOverhead(3 * grant.GiB)
	r.Grants = r.Grants[:5]
	wantsOverhead(4 * grant.GiB)
	if len(o.accounts) != 5 || len(o.written) != 5 {
		t.Errorf("of 5 grants %d accounts are kept, and %d remembered", len(o.accounts), len(o.written))
	}
	var usual overheadWriter
	defer usual.closeAll()
	if usual.update(n, r); len(usual.accounts) != len(r.Grants) {
		t.Errorf("by itself it keeps %d of %d", len(usual.accounts), len(r.Grants))
	}
}

// TestASlowAccountIsNotRead: for a while, because its container makes every reading slow. The
// grant's other GPUs have the same account.
func TestASlowAccountIsNotRead(t *testing.T) {
	const uuid, slow, other = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", grant.ID("g-aaaaaaaaaaaa"),
		grant.ID("g-bbbbbbbbbbbb")
	n := &node.Node{Policy: grant.Policy{RunDir: t.TempDir()}}
	r := watch.Comparison{Taken: time.Now(), Grants: []watch.GrantUse{
		{ID: slow, GPU: uuid}, {ID: slow, GPU: "its other"}, {ID: other, GPU: uuid}}}
	for _, id := range []grant.ID{slow, other} {
		daemontest.Must(t, os.MkdirAll(n.Policy.LimitsDir(id), 0o700),
			limits.Ensure(n.Policy.LimitsDir(id), []grant.Share{{UUID: uuid, Memory: 4 * grant.GiB}}, 0, nil))
	}
	asked := map[grant.ID]int{}
	o := overheadWriter{}
	defer o.closeAll()
	o.used = func(a *limits.Account, _ string) (grant.Bytes, int, error) {
		if a == o.accounts[slow].Account {
			asked[slow]++
			return 0, 0, fmt.Errorf("cannot read it: %w", limits.ErrSlow)
		}
		asked[other]++
		return 0, 0, nil
	}
	for _, c := range []struct {
		after       time.Duration
		slow, other int
	}{{0, 1, 1}, {overheadEvery, 1, 2}, {slowEvery - overheadEvery - 1, 1, 3}, {1, 2, 3},
		{overheadEvery, 2, 4}, {-time.Hour, 3, 5}} { // at last the clock is set back
		r.Taken = r.Taken.Add(c.after)
		if o.update(n, r); asked[slow] != c.slow || asked[other] != c.other {
			t.Errorf("after %s more the slow one was read %d times, the other %d; want %d and %d", c.after,
				asked[slow], asked[other], c.slow, c.other)
		}
	}
	r.Taken, r.Grants = r.Taken.Add(slowEvery), nil
	if o.update(n, r); len(o.slow) != 0 {
		t.Errorf("a grant that is over is remembered: %v", o.slow)
	}
}

// TestASteadyAccountIsReadSeldom: use that changes by less than a step in each pass does not make
// the account be read in each pass. A change by more, and a change of the account, do.
func TestASteadyAccountIsReadSeldom(t *testing.T) {
	const uuid, id = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", grant.ID("g-aaaaaaaaaaaa")
	n := &node.Node{Policy: grant.Policy{RunDir: t.TempDir()}}
	dir := n.Policy.LimitsDir(id)
	daemontest.Must(t, os.MkdirAll(filepath.Dir(dir), 0o700),
		limits.Ensure(dir, []grant.Share{{UUID: uuid, Memory: 4 * grant.GiB}}, 0, nil))
	read, counted := 0, grant.GiB
	o := overheadWriter{used: func(*limits.Account, string) (grant.Bytes, int, error) {
		read++
		return counted, 1, nil
	}}
	defer o.closeAll()
	now := time.Now()
	passes := func(count int, used ...grant.Bytes) (reads int) {
		before := read
		for i := range count {
			now = now.Add(time.Second)
			o.update(n, watch.Comparison{Taken: now, Grants: []watch.GrantUse{{ID: id, GPU: uuid,
				Granted: 4 * grant.GiB, Used: used[i%len(used)]}}})
		}
		return read - before
	}
	passes(5, grant.GiB)
	if got := passes(20, grant.GiB, grant.GiB+grant.MiB); got > 5 {
		t.Errorf("in 20 s of small changes the account was read %d times", got)
	}
	if got := passes(2, 2*grant.GiB); got != 2 {
		t.Errorf("after a change by a GiB the account was read %d times in two passes", got)
	}
	passes(5, 2*grant.GiB)
	counted = 2 * grant.GiB
	if got := passes(6, 2*grant.GiB, 2*grant.GiB+grant.MiB); got < 2 || got > 3 {
		t.Errorf("when the account had changed it was read %d times in six passes", got)
	}
}
