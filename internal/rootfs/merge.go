package rootfs

import (
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/order"
)

// Library is a library that a container gets, by its path in the container.
type Library struct {
	Path string
	Bits int // 64 or 32
}

// merge puts libraries into a cache before the image's own ones of the same name. Those stay behind
// them, for a later start without the libraries. It removes only entries in directories for better
// processors, because the loader would prefer those.
func merge(old []cacheEntry, libraries []Library) []cacheEntry {
	ours := make([]cacheEntry, 0, len(libraries))
	names := make(map[string]bool, len(libraries))
	for _, l := range libraries {
		if flags, known := flagsOf(l.Bits); known {
			ours = append(ours, cacheEntry{flags: flags, name: filepath.Base(l.Path), path: l.Path})
			names[filepath.Base(l.Path)] = true
		}
	}
	kept := slices.DeleteFunc(old, func(e cacheEntry) bool {
		return names[e.name] && slices.ContainsFunc(ours, func(o cacheEntry) bool {
			return o.name == e.name && o.flags == e.flags &&
				(o.path == e.path || e.hwcaps != "" || e.hwcap != 0)
		})
	})
	order.Stable(ours, compare)
	if !slices.IsSortedFunc(kept, compare) {
		order.Stable(kept, compare)
	}
	all := make([]cacheEntry, 0, len(ours)+len(kept))
	for len(ours) > 0 {
		before := slices.IndexFunc(kept, func(e cacheEntry) bool { return compare(ours[0], e) <= 0 })
		if before < 0 {
			before = len(kept)
		}
		all = append(append(all, kept[:before]...), ours[0])
		ours, kept = ours[1:], kept[before:]
	}
	return append(all, kept...)
}

// without removes libraries that no longer exist, and reports whether there were any.
func without(old []cacheEntry, gone map[string]bool) ([]cacheEntry, bool) {
	kept := slices.DeleteFunc(slices.Clone(old), func(e cacheEntry) bool { return gone[e.path] })
	return kept, len(kept) < len(old)
}
