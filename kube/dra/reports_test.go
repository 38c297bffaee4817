package dra

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStatusesAreWrittenOneAfterAnother: in the order in which the claims were prepared, and none
// while another one is written.
func TestStatusesAreWrittenOneAfterAnother(t *testing.T) {
	var r reports
	begun, goOn := make(chan string), make(chan struct{})
	report := func(w waitingReport) { begun <- w.claim.Name; <-goOn }
	names := []string{"a", "b", "c"}
	for _, name := range names {
		r.add(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}, report)
	}
	var got []string
	for range names {
		got = append(got, <-begun)
		select {
		case other := <-begun:
			t.Errorf("%s is written beside %s", other, got[len(got)-1])
		default:
		}
		goOn <- struct{}{}
	}
	if !slices.Equal(got, names) {
		t.Errorf("they are written as %v", got)
	}
}

// TestAClaimThatIsPreparedIsBusy: from the lock of the first claim to the end of the last.
func TestAClaimThatIsPreparedIsBusy(t *testing.T) {
	s := newSite(t, 1)
	if s.locks.busy() {
		t.Error("it is busy with nothing")
	}
	one, err := s.lockClaim("one")
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.lockClaim("two")
	if err != nil {
		t.Fatal(err)
	}
	one()
	if !s.locks.busy() {
		t.Error("it is idle, and a claim is being prepared")
	}
	if two(); s.locks.busy() {
		t.Error("it is still busy")
	}
}
