package nodeledger_test

import (
	"os"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/watch"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// TestUsedIsOfNow: a report that is older than a minute says nothing, and one from later than now
// neither: the clock was set back since.
func TestUsedIsOfNow(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "").Open()
	now := n.Host.Now()
	n.Host.Now = func() time.Time { return now } // it stands still between a report and a look
	boot, err := n.Host.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(n.Policy.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for age, known := range map[time.Duration]bool{0: true, 50 * time.Second: true,
		70 * time.Second: false, -70 * time.Second: false} {
		r := watch.Comparison{Taken: now.Add(-age),
			GPUs: []watch.GPUUse{{UUID: "GPU-a", Used: grant.GiB}}}
		if err := watch.Save(n.Policy.RunDir, boot, r); err != nil {
			t.Fatal(err)
		}
		used := nodeledger.Content{Node: n}.Used()
		if (used["GPU-a"] == grant.GiB) != known || !known && used != nil {
			t.Errorf("a report of %v ago: %v", age, used)
		}
	}
}
