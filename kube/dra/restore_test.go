package dra

import (
	"context"
	"os"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The kubelet does not prepare a prepared claim again, so its containers could not be restarted.
func TestARemovedCDIFileIsRestored(t *testing.T) {
	s := newSite(t, 1)
	live, over := claim("u-1", s.result("gpu", 0, grant.Limit, "1Gi", "0")), claim("u-2",
		s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	s.Client = fake.NewClientset(live, over)
	name := s.has(t, live)
	s.has(t, over)
	for _, g := range s.Grants() {
		if g.Owner == "claim:u-2" { // released by hand while a container uses it
			defer s.Use(g.ID, grant.Identity{})()
			if err := s.Release(g.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.RemoveAll(s.Dir + "/cdi"); err != nil {
		t.Fatal(err)
	}
	if err := s.Reclaim(context.Background()); err != nil {
		t.Fatal(err)
	}
	if files := s.cdiFiles(t); files != 1 {
		t.Errorf("there are %d CDI files, want that of the claim that is not over", files)
	}
	if again := s.has(t, live); again != name {
		t.Errorf("its name is %q, want %q again", again, name)
	}
}
