package dra

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// paced is a driver whose clock is the test's, and what it has told.
type paced struct {
	site
	*told
	now time.Time
}

func newPaced(t *testing.T) *paced {
	p := &paced{site: newSite(t, 1), told: &told{}, now: time.Now()}
	p.Driver.Book.Open = func() *node.Node {
		h := host.Default()
		h.Now = func() time.Time { return p.now }
		return node.Open(p.Config, h)
	}
	return p
}

// second is one in which so much is used outside the ledger; it returns how often something was told in it.
func (p *paced) second(t *testing.T, outside grant.Bytes) int {
	t.Helper()
	if err := p.Node.Open().Ledger.SetOutside(map[string]grant.Bytes{p.UUID(0): outside}); err != nil {
		t.Fatal(err)
	}
	p.now = p.now.Add(time.Second)
	before := len(p.all)
	if err := p.Publish(context.Background(), p.told); err != nil {
		t.Fatal(err)
	}
	return len(p.all) - before
}

// offered is how much memory of the shared GPU was told of at last.
func (p *paced) offered() grant.Bytes {
	for _, d := range p.all[len(p.all)-1].Pools[pool].Slices[0].Devices {
		if *d.Attributes["mode"].StringValue == string(grant.Limit) {
			c := d.Capacity[memory].Value
			return grant.Bytes(c.Value())
		}
	}
	return 0
}

func TestAmountsAreToldInTheirTime(t *testing.T) {
	p := newPaced(t)
	if p.second(t, grant.GiB) != 1 {
		t.Fatal("the first slices are not told at once")
	}
	count := 0
	for i := range 120 { // a program that takes more and more
		count += p.second(t, grant.GiB+grant.Bytes(i+1)*16*grant.MiB)
	}
	if count != 12 {
		t.Errorf("two minutes of another amount each second are told %d times, want 12", count)
	}
	count = 0
	last := grant.GiB + 120*16*grant.MiB
	for range 20 {
		count += p.second(t, last)
	}
	if free := 16*grant.GiB - last; count != 0 || p.offered() != free {
		t.Errorf("at rest: told %d times, and last of %s, want %s", count, p.offered(), free)
	}
	if p.second(t, last+grant.MiB) != 1 {
		t.Error("after a rest it is not told at once that there is less")
	}
	for i := range 59 {
		if p.second(t, last) != 0 {
			t.Fatalf("a MiB more is told after %d s", i+1)
		}
	}
	if p.second(t, last) != 1 || p.offered() != 16*grant.GiB-last {
		t.Error("a MiB more is not told after a minute")
	}
	for range 9 {
		if p.second(t, grant.GiB) != 0 {
			t.Error("much more is told within ten seconds")
		}
	}
	if p.second(t, grant.GiB) != 1 || p.offered() != 15*grant.GiB {
		t.Error("much more is not told after ten seconds")
	}
}

func TestAWobbleIsNotTold(t *testing.T) {
	p := newPaced(t)
	p.second(t, 2*grant.GiB)
	for i := range 200 { // 100 MiB come and go
		if p.second(t, 2*grant.GiB-grant.Bytes(i%2)*100*grant.MiB) != 0 && i < 58 { // a small rise waits for a minute
			t.Fatalf("told in second %d", i)
		}
	}
	if len(p.all) > 10 {
		t.Errorf("told %d times in 200 s", len(p.all))
	}
}

func TestNewsAreToldAtOnce(t *testing.T) {
	p := newPaced(t)
	health := func(text string) {
		p.SetGPUs(1, 16*grant.GiB, func(all []simulated.GPU) { all[0].Health = text })
	}
	p.second(t, 0)
	if p.second(t, grant.GiB) != 1 {
		t.Error("the taint of a GPU that is used outside the ledger is not told at once")
	}
	p.second(t, 2*grant.GiB)
	health("fell off the bus")
	if p.second(t, 2*grant.GiB) != 1 {
		t.Error("the taint of an unhealthy GPU is not told at once")
	}
	count := 0
	for i := range 60 {
		health([]string{grant.Healthy, "fell off the bus"}[i%2])
		count += p.second(t, 2*grant.GiB)
	}
	if count < urgent-2 || count > 2*urgent {
		t.Errorf("a GPU whose health changes each second is told of %d times a minute", count)
	}
	p.now = p.now.Add(-time.Hour)
	health("is gone")
	if p.second(t, 2*grant.GiB) != 1 {
		t.Error("nothing is told since the clock was set back")
	}
}

// The library tries again, later and later; after an absence of the API's the cluster would go by what was so before for a quarter of an hour.
func TestWhatDidNotArriveIsToldAgain(t *testing.T) {
	p := newPaced(t)
	minute := func() (count int) {
		for range 60 {
			count += p.second(t, grant.GiB)
		}
		return count
	}
	fails := func(err error) { p.HandleError(context.Background(), err, "processing ResourceSlice objects") }
	p.second(t, grant.GiB)
	if count := minute(); count != 0 {
		t.Fatalf("at rest it is told %d times", count)
	}
	count := 0
	for range 120 { // the API is away, and each try fails
		fails(fmt.Errorf("update resource slice: %w", kubeletplugin.ErrRecoverable))
		count += p.second(t, grant.GiB)
	}
	if count != 2 {
		t.Errorf("told %d times in two minutes in which all failed, want once a minute", count)
	}
	if count := minute(); count != 1 {
		t.Errorf("told %d times in the minute after the last failure, want once", count)
	}
	if count := minute(); count != 0 {
		t.Errorf("told %d times in the minute after it was taken", count)
	}
	fails(fmt.Errorf("%w: %w", kubeletplugin.ErrRecoverable, &resourceslice.DroppedFieldsError{}))
	if count := minute(); count != 0 {
		t.Errorf("told %d times to an API that drops a field of it", count)
	}
}
