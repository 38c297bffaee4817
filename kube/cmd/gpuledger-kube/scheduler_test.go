package main

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
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
