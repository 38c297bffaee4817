package rootfs

import (
	"testing"

	"pgregory.net/rapid"
)

// libcmp is a literal translation of glibc's _dl_cache_libcmp.
func libcmp(a, b string) int {
	p1, p2 := append([]byte(a), 0), append([]byte(b), 0)
	for p1[0] != 0 {
		switch {
		case isDigit(p1[0]) && isDigit(p2[0]):
			var v1, v2 int32
			for ; isDigit(p1[0]); p1 = p1[1:] {
				v1 = v1*10 + int32(p1[0]-'0')
			}
			for ; isDigit(p2[0]); p2 = p2[1:] {
				v2 = v2*10 + int32(p2[0]-'0')
			}
			if v1 != v2 {
				return int(int64(v1) - int64(v2))
			}
		case isDigit(p1[0]):
			return 1
		case isDigit(p2[0]):
			return -1
		case p1[0] != p2[0]:
			return int(int8(p1[0])) - int(int8(p2[0]))
		default:
			p1, p2 = p1[1:], p2[1:]
		}
	}
	return int(int8(p1[0])) - int(int8(p2[0]))
}

// TestNamesAreComparedAsTheLoaderDoes: skipping a common beginning must not change the result, in
// particular within a number.
func TestNamesAreComparedAsTheLoaderDoes(t *testing.T) {
	name := rapid.StringMatching(`[a.\x80]{0,3}[0-9]{0,3}[a.]{0,2}[0-9]{0,12}`)
	rapid.Check(t, func(t *rapid.T) {
		begin, a, b := name.Draw(t, "begin"), name.Draw(t, "a"), name.Draw(t, "b")
		if got, want := compareNames(begin+a, begin+b), libcmp(begin+a, begin+b); got != want {
			t.Fatalf("%q and %q: %d, the loader %d", begin+a, begin+b, got, want)
		}
	})
}
