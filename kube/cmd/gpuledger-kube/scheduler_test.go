package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Of several processes that serve one kube-scheduler one binds. If it ends, another one does.
func TestOneProcessHasTheLease(t *testing.T) {
	client := fake.NewClientset()
	first, endFirst := context.WithCancelCause(t.Context())
	one, err := lead(first, endFirst, client, "gpuledger-system/scheduler")
	must(t, err)
	eventually(t, "the first leads", func() string { return "" }, one)
	second, endSecond := context.WithCancelCause(t.Context())
	defer endSecond(nil)
	two, err := leadAs(second, endSecond, client, "gpuledger-system/scheduler", "another")
	must(t, err)
	if two() {
		t.Error("both lead")
	}
	endFirst(nil)
	eventually(t, "the second leads", func() string { return "" }, two)
	if one() {
		t.Error("the first still leads")
	}
	if _, err := lead(t.Context(), endSecond, client, "scheduler"); err == nil {
		t.Error("a lease without a namespace")
	}
}

// TestALeaseThatIsNotRenewedIsLost: while the API does not answer, the library cannot tell of the
// end. A process that is stopped, or whose Lease has run out, leads no more all the same.
func TestALeaseThatIsNotRenewedIsLost(t *testing.T) {
	for name, stops := range map[string]bool{"stopped": true, "run out": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, answers := fake.NewClientset(), make(chan bool)
				ctx, end := context.WithCancelCause(t.Context())
				leads, err := leadAs(ctx, end, client, "gpuledger-system/scheduler", "one")
				must(t, err)
				if synctest.Wait(); !leads() {
					t.Fatal("it does not lead")
				}
				client.PrependReactor("update", "leases",
					func(clienttesting.Action) (bool, runtime.Object, error) {
						<-answers
						return false, nil, nil
					})
				if stops {
					end(nil)
				} else if time.Sleep(9 * time.Second); !leads() {
					t.Error("it leads no more before its lease has run out")
				} else {
					time.Sleep(9 * time.Second)
				}
				if leads() {
					t.Error("it still leads")
				}
				close(answers)
				end(nil)
				synctest.Wait()
			})
		})
	}
}
