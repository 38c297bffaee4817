package dra

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// The kubelet prepares the claims of many pods at once. The ledger decides for each, and gives
// nothing twice.
func TestManyClaimsAtOnce(t *testing.T) {
	s := newSite(t, 2)
	open := s.Driver.Ledger.Open
	s.Driver.Ledger.Open = func() *node.Node {
		n := open()
		n.Ledger.Wait = 5 * time.Minute // the last one waits for the disk forty times
		return n
	}
	var (
		all     sync.WaitGroup
		mu      sync.Mutex
		refused []string
		names   = map[string]int{}
	)
	prepare := func(uid string, gpu int) {
		all.Go(func() {
			c := claim(uid, s.result("gpu", gpu, grant.Limit, "1Gi", "1"))
			results, err := s.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{c})
			mu.Lock()
			defer mu.Unlock()
			switch r := results[c.UID]; {
			case err != nil:
				t.Error(err)
			case r.Err != nil:
				refused = append(refused, r.Err.Error())
			default:
				names[r.Devices[0].CDIDeviceIDs[0]]++
			}
		})
	}
	for i := range 40 { // 16 of them fit on each GPU
		prepare(fmt.Sprint("u-", i), i%2)
	}
	all.Wait()
	if len(names) != 32 || len(refused) != 8 || !strings.Contains(refused[0], "no-capacity") {
		t.Errorf("%d claims are prepared, want 32; refused: %q", len(names), refused)
	}
	for i := range 40 {
		all.Go(func() {
			_, _ = s.UnprepareResourceClaims(context.Background(),
				[]kubeletplugin.NamespacedObject{{UID: types.UID(fmt.Sprint("u-", i))}})
		})
	}
	all.Wait()
	if grants, files := s.Grants(), s.cdiFiles(t); len(grants) > 0 || files > 0 {
		t.Errorf("given up: %d grants and %d CDI files are left", len(grants), files)
	}
	if kept, err := os.ReadDir(s.Dir + "/references"); err != nil || len(kept) > 0 {
		t.Errorf("given up: %v is kept (%v)", kept, err)
	}
	if len(s.locks.claims) > 0 || s.locks.users > 0 {
		t.Errorf("the locks of %d claims are left", len(s.locks.claims))
	}
	clear(names)
	for range 8 { // pods that share a claim
		prepare("u-shared", 0)
	}
	all.Wait()
	if len(names) != 1 || len(s.Grants()) != 1 {
		t.Errorf("a claim that is prepared 8 times at once has the names %v and %d grants, want one", names,
			len(s.Grants()))
	}
}

// A claim that is looked up in a slow API keeps no other from being prepared or given up, and is
// itself not prepared meanwhile.
func TestOtherClaimsDoNotWaitForTheAPI(t *testing.T) {
	s := newSite(t, 1)
	s.has(t, claim("u-gone", s.result("gpu", 0, grant.Limit, "1Gi", "0")))
	prepared := func(uid string) chan struct{} {
		c, done := claim(uid, s.result("gpu", 0, grant.Limit, "1Gi", "0")), make(chan struct{})
		go func() {
			defer close(done)
			r, err := s.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{c})
			if err != nil || r[c.UID].Err != nil {
				t.Error(err, r[c.UID].Err)
			}
		}()
		return done
	}
	var same chan struct{}
	s.Client.(*fake.Clientset).PrependReactor("get", "resourceclaims",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			same = prepared("u-gone")
			select {
			case <-prepared("u-other"):
			case <-time.After(time.Minute):
				t.Error("another claim is not prepared meanwhile")
			}
			select {
			case <-same:
				t.Error("the claim itself is prepared meanwhile")
			default:
			}
			return false, nil, nil
		})
	if err := s.Driver.Reclaim(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-same
	if got, want := s.owners(), []grant.Owner{"claim:u-gone", "claim:u-other"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
