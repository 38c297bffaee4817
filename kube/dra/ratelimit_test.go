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
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// pacedSite is a driver whose clock the test sets, and what it has published.
type pacedSite struct {
	site
	*recorder
	now time.Time
}

func newPaced(t *testing.T) *pacedSite {
	p := &pacedSite{site: newSite(t, 1), recorder: &recorder{}, now: time.Now()}
	p.Driver.Ledger.Open = func() *node.Node {
		h := host.Default()
		h.Now = func() time.Time { return p.now }
		return node.Open(p.Config, h)
	}
	return p
}

// second lets one second pass with this much memory used outside the ledger. It returns the number
// of publishings.
func (p *pacedSite) second(t *testing.T, outside grant.Bytes) int {
	t.Helper()
	found := map[string]grant.Bytes{p.UUID(0): outside}
	if err := p.SimulatedNode.Open().Ledger.SetFound(ledger.Found{Outside: found}); err != nil {
		t.Fatal(err)
	}
	p.now = p.now.Add(time.Second)
	before := len(p.all)
	if err := p.Publish(context.Background(), p.recorder); err != nil {
		t.Fatal(err)
	}
	return len(p.all) - before
}

// offered returns the last published memory of the shared GPU.
func (p *pacedSite) offered() grant.Bytes {
	for _, d := range p.all[len(p.all)-1].Pools[pool].Slices[0].Devices {
		if *d.Attributes["mode"].StringValue == string(grant.Limit) {
			c := d.Capacity[memory].Value
			return grant.Bytes(c.Value())
		}
	}
	return 0
}

func TestAmountsArePublishedAfterAWait(t *testing.T) {
	p := newPaced(t)
	if p.second(t, grant.GiB) != 1 {
		t.Fatal("the first slices are not published at once")
	}
	count := 0
	for i := range 120 { // a program that allocates more and more
		count += p.second(t, grant.GiB+grant.Bytes(i+1)*16*grant.MiB)
	}
	if count != 12 {
		t.Errorf("two minutes of another amount each second are published %d times, want 12", count)
	}
	count = 0
	last := grant.GiB + 120*16*grant.MiB
	for range 20 {
		count += p.second(t, last)
	}
	if free := 16*grant.GiB - last; count != 0 || p.offered() != free {
		t.Errorf("without changes: published %d times, at last %s, want %s", count, p.offered(), free)
	}
	if p.second(t, last+grant.MiB) != 1 {
		t.Error("after a time without changes a smaller amount is not published at once")
	}
	for i := range 59 {
		if p.second(t, last) != 0 {
			t.Fatalf("a MiB more is published after %d s", i+1)
		}
	}
	if p.second(t, last) != 1 || p.offered() != 16*grant.GiB-last {
		t.Error("a MiB more is not published after a minute")
	}
	for range 9 {
		if p.second(t, grant.GiB) != 0 {
			t.Error("much more is published within ten seconds")
		}
	}
	if p.second(t, grant.GiB) != 1 || p.offered() != 15*grant.GiB {
		t.Error("much more is not published after ten seconds")
	}
}

func TestRepeatedSmallChangesAreNotPublished(t *testing.T) {
	p := newPaced(t)
	p.second(t, 2*grant.GiB)
	for i := range 200 { // 100 MiB are allocated and freed
		// a small rise waits for a minute
		if p.second(t, 2*grant.GiB-grant.Bytes(i%2)*100*grant.MiB) != 0 && i < 58 {
			t.Fatalf("published in second %d", i)
		}
	}
	if len(p.all) > 10 {
		t.Errorf("published %d times in 200 s", len(p.all))
	}
}

func TestTaintsArePublishedAtOnce(t *testing.T) {
	p := newPaced(t)
	health := func(text string) {
		p.SetGPUs(1, 16*grant.GiB, func(all []simulated.GPUDescription) { all[0].Health = text })
	}
	p.second(t, 0)
	if p.second(t, grant.GiB) != 1 {
		t.Error("the taint of a GPU that is used outside the ledger is not published at once")
	}
	p.second(t, 2*grant.GiB)
	health("fell off the bus")
	if p.second(t, 2*grant.GiB) != 1 {
		t.Error("the taint of an unhealthy GPU is not published at once")
	}
	count := 0
	for i := range 60 {
		health([]string{grant.Healthy, "fell off the bus"}[i%2])
		count += p.second(t, 2*grant.GiB)
	}
	if count < maxShapeChanges-2 || count > 2*maxShapeChanges {
		t.Errorf("a GPU whose health changes each second is published %d times a minute", count)
	}
	p.now = p.now.Add(-time.Hour)
	health("is gone")
	if p.second(t, 2*grant.GiB) != 1 {
		t.Error("nothing is published since the clock was set back")
	}
}

// The library waits longer and longer between its tries. After an outage of the API, the cluster
// would use old slices for a quarter of an hour.
func TestFailedPublishingsAreRepeated(t *testing.T) {
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
		t.Fatalf("without changes it is published %d times", count)
	}
	count := 0
	for range 120 { // the API is down, and each try fails
		fails(fmt.Errorf("update resource slice: %w", kubeletplugin.ErrRecoverable))
		count += p.second(t, grant.GiB)
	}
	if count != 2 {
		t.Errorf("published %d times in two minutes in which all failed, want once a minute", count)
	}
	if count := minute(); count != 1 {
		t.Errorf("published %d times in the minute after the last failure, want once", count)
	}
	if count := minute(); count != 0 {
		t.Errorf("published %d times in the minute after it was accepted", count)
	}
	fails(fmt.Errorf("%w: %w", kubeletplugin.ErrRecoverable, &resourceslice.DroppedFieldsError{}))
	if count := minute(); count != 0 {
		t.Errorf("published %d times to an API that drops a field of it", count)
	}
}
