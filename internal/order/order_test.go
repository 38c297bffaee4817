package order_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/order"
)

func TestStableSortsAsTheLibraryDoes(t *testing.T) {
	type element struct{ key, place int }
	compare := func(a, b element) int { return a.key - b.key }
	for n := range 200 {
		list := make([]element, n)
		for i := range list {
			list[i] = element{rand.IntN(5), i}
		}
		want := slices.Clone(list)
		slices.SortStableFunc(want, compare)
		order.Stable(list, compare)
		if !slices.Equal(list, want) {
			t.Fatalf("got %v, want %v", list, want)
		}
	}
}
