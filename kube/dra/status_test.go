package dra

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestTheStatusOfAClaimsDevices: each device of a claim says what its grant is, and another
// driver's device stays as it was.
func TestTheStatusOfAClaimsDevices(t *testing.T) {
	s := newSite(t, 2)
	c := claim("both", s.result("one", 0, grant.Limit, "4Gi", "30"), s.result("two", 1, grant.Exclusive))
	other := s.result("nic", 0, grant.Limit)
	other.Driver = "nic.example.com"
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, other)
	api := fake.NewClientset(c)
	s.Client = api
	plugin{Driver: s.Driver}.report(c)
	if n := len(api.Actions()); n != 0 {
		t.Errorf("before it is prepared there are %d calls", n)
	}
	s.prepares(t, c)
	plugin{Driver: s.Driver}.report(c)
	after, err := api.ResourceV1().ResourceClaims(c.Namespace).Get(t.Context(), c.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, d := range after.Status.Devices {
		said = append(said, d.Driver+" "+d.Conditions[0].Type+" "+d.Conditions[0].Message)
	}
	want := "gpuledger.dev Ready 4GiB and 30% of the compute in mode limit, strength none; " +
		"gpuledger.dev Ready a whole GPU in mode exclusive, strength none"
	if got := strings.Join(said, "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestAStatusThatMayNotBeWritten: with the role of an older version the driver asks in vain, and
// works as before.
func TestAStatusThatMayNotBeWritten(t *testing.T) {
	s := newSite(t, 1)
	c := claim("share", s.result("gpu", 0, grant.Limit, "4Gi"))
	api := fake.NewClientset(c)
	api.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaims"}, c.Name,
			errors.New("no"))
	})
	s.Client = api
	s.prepares(t, c)
	plugin{Driver: s.Driver}.report(c)
	plugin{Driver: s.Driver}.report(c)
	if len(s.Grants()) != 1 {
		t.Errorf("got %+v", s.Grants())
	}
}
