package ledger

import (
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// model is what the ledger should say, kept in maps.
type model struct {
	grants   map[grant.ID]grant.Grant
	bindings map[string]grant.ID // by container; all alive
	used     map[grant.ID]bool   // that have been bound
}

func (m model) owned(o grant.Owner, now time.Time) (found grant.ID, live bool) {
	for id, g := range m.grants {
		g.Bindings = m.bound(id)
		if g.Owner == o && g.Live(now) {
			return id, true
		}
	}
	return "", false
}

func (m model) bound(id grant.ID) (bindings []grant.Binding) {
	for _, of := range m.bindings {
		if of == id {
			bindings = append(bindings, grant.Binding{})
		}
	}
	return bindings
}

// Any sequence of operations leaves what the model says, and a sound ledger. As the node's
// admission does, an owner gets a second grant only when it has no live one.
func TestModel(t *testing.T) {
	defer func() { syncDir = host.SyncDir }()
	syncDir = func(string) error { return nil } // another test checks what is durable
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		b := ledgerIn(t, dir)
		m := model{grants: map[grant.ID]grant.Grant{}, bindings: map[string]grant.ID{},
			used: map[grant.ID]bool{}}
		ids := rapid.Map(rapid.IntRange(0, 4), id)
		containers := rapid.SampledFrom([]string{"c", "d", "e"})
		rt.Repeat(map[string]func(*rapid.T){
			"put":    func(rt *rapid.T) { m.put(b, drawGrant(rt, ids.Draw(rt, "id"))) },
			"delete": func(rt *rapid.T) { m.remove(rt, b, ids.Draw(rt, "id")) },
			"bind": func(rt *rapid.T) {
				m.bind(rt, b, ids.Draw(rt, "id"), containers.Draw(rt, "container"))
			},
			"unbind": func(rt *rapid.T) { m.unbind(b, containers.Draw(rt, "container")) },
			"sweep":  func(rt *rapid.T) { m.sweep(b) },
			"wait": func(rt *rapid.T) {
				b.now = b.now.Add(time.Duration(rapid.IntRange(1, 30).Draw(rt, "hours")) * time.Hour)
			},
			"": func(rt *rapid.T) { m.compare(rt, b) },
		})
	})
}

func drawGrant(rt *rapid.T, id grant.ID) grant.Grant {
	g := sample(0)
	g.ID = id
	g.Owner = rapid.SampledFrom([]grant.Owner{grant.Bearer, "claim:a", "pod:u/a", "pod:u/b"}).Draw(rt,
		"owner")
	g.GPUs = nil
	for _, uuid := range rapid.SampledFrom([][]string{{gpu0}, {gpu1}, {gpu0, gpu1}}).Draw(rt, "gpus") {
		g.GPUs = append(g.GPUs, grant.Share{UUID: uuid, Memory: grant.GiB})
	}
	g.For = rapid.SampledFrom([][]grant.Tie{nil, {"pod:u"}, {"namespace:n", "pod:u", "pod:v"}}).Draw(rt,
		"for")
	g.User = rapid.SampledFrom([]uint32{0, 1000, 1<<32 - 2}).Draw(rt, "user")
	if hours := rapid.IntRange(0, 40).Draw(rt, "ttl"); hours > 0 {
		g.Expires = noon.Add(time.Duration(hours) * time.Hour)
	}
	g.Draining = rapid.Bool().Draw(rt, "draining")
	return g
}

func (m model) put(b *testLedger, g grant.Grant) {
	if id, live := m.owned(g.Owner, b.now); live && id != g.ID && hasLink(g.Owner) {
		return
	}
	b.put(g)
	m.grants[g.ID] = g
}

func (m model) remove(rt *rapid.T, b *testLedger, id grant.ID) {
	_, found := m.grants[id]
	if err := b.Update(func(tx *Tx) error { return tx.Delete(id) }); errors.Is(err, ErrNotFound) == found {
		rt.Fatalf("Delete(%s): %v, want found %v", id, err, found)
	}
	delete(m.grants, id)
	delete(m.used, id)
	maps.DeleteFunc(m.bindings, func(_ string, of grant.ID) bool { return of == id })
}

func (m model) bind(rt *rapid.T, b *testLedger, id grant.ID, container string) {
	g, found := m.grants[id]
	if g.Bindings = m.bound(id); found && !g.Live(b.now) {
		return // an admission refuses it: a binding would make it live, beside its owner's next grant
	}
	if err := b.Update(func(tx *Tx) error {
		return tx.Bind(bindingOf(id, container))
	}); errors.Is(err, ErrNotFound) == found {
		rt.Fatalf("Bind(%s): %v, want found %v", id, err, found)
	}
	if found {
		m.bindings[container], m.used[id] = id, true
	}
}

func (m model) unbind(b *testLedger, container string) {
	b.update(func(tx *Tx) error { return tx.Unbind(bindingOf("", "").RuntimeRoot, container) })
	delete(m.bindings, container)
}

func (m model) sweep(b *testLedger) {
	b.update(func(tx *Tx) error { return tx.Sweep() })
	maps.DeleteFunc(m.grants, func(id grant.ID, g grant.Grant) bool {
		over := g.Draining || !g.Expires.IsZero() && !b.now.Before(g.Expires.Add(24*time.Hour))
		return over && len(m.bound(id)) == 0
	})
	for id, g := range m.grants {
		g.Over = g.Over || len(m.bound(id)) == 0 && g.Expired(b.now)
		m.grants[id] = g
	}
	maps.DeleteFunc(m.used, func(id grant.ID, _ bool) bool { _, there := m.grants[id]; return !there })
}

func (m model) compare(rt *rapid.T, b *testLedger) {
	grants, damaged := b.all()
	got, users := map[grant.ID]grant.Grant{}, map[string]grant.ID{}
	for _, g := range grants {
		for _, binding := range g.Bindings {
			users[binding.Container] = g.ID
		}
		g.Bindings = nil
		got[g.ID] = g
	}
	if !reflect.DeepEqual(got, m.grants) || !reflect.DeepEqual(users, m.bindings) || len(damaged) > 0 {
		rt.Fatalf("the ledger has %+v, %v, %v; want %+v, %v", got, users, damaged, m.grants, m.bindings)
	}
	for n := range 5 {
		if b.Bindings.Used(id(n)) != m.used[id(n)] {
			rt.Fatalf("%s has been used: %v, want %v", id(n), b.Bindings.Used(id(n)), m.used[id(n)])
		}
	}
	for _, o := range slices.Sorted(maps.Keys(map[grant.Owner]bool{
		"claim:a": true, "pod:u/a": true, "pod:u/b": true})) {
		if want, live := m.owned(o, b.now); live {
			if found, err := b.byOwner(o); err != nil || found.ID != want {
				rt.Fatalf("ByOwner(%s): %s (%v), want %s", o, found.ID, err, want)
			}
		}
	}
	if report, err := b.Check(nil); err != nil || !report.Sound() {
		rt.Fatalf("Check: %+v, %v", report, err)
	}
}
