package request

import (
	"strings"

	"golang.org/x/sys/unix"
)

// capability is one of those that matter here.
type capability struct {
	name   string
	number int
}

var (
	capDACOverride   = capability{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE}
	capDACReadSearch = capability{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH}
	capSysAdmin      = capability{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}
	capSysModule     = capability{"CAP_SYS_MODULE", unix.CAP_SYS_MODULE}
)

// has reports whether the capability is in any set: a process can raise it from each to the
// effective set.
func (f *containerFacts) has(wanted capability) bool {
	c := f.spec.Process.Capabilities
	if c == nil {
		return false
	}
	for _, set := range [...][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		for _, text := range set {
			if wanted.is(text) {
				return true
			}
		}
	}
	return false
}

// is reports whether a runtime may take a text for the capability. runc knows the exact name only,
// and ignores others. crun uses cap_from_name(3) of libcap, which takes a name in any case up to
// the first character that is neither a letter nor '_', and also a number (measured with libcap
// 2.66).
func (c capability) is(text string) bool {
	if text != "" && '0' <= text[0] && text[0] <= '9' {
		return leadingNumber(text) == c.number
	}
	n := len(c.name)
	return len(text) >= n && strings.EqualFold(text[:n], c.name) && (len(text) == n || !isNameByte(text[n]))
}

func isNameByte(b byte) bool { return b == '_' || 'a' <= b|0x20 && b|0x20 <= 'z' }

// leadingNumber reads the number that a text begins with as strtoul(3) with base 0, which ignores
// what follows. 0b is of C23 (glibc 2.38). Of a number above 63, which is no capability, it may
// leave digits out.
func leadingNumber(text string) (n int) {
	text = strings.ToLower(text)
	base := 10
	switch {
	case strings.HasPrefix(text, "0x"):
		base, text = 16, text[2:]
	case strings.HasPrefix(text, "0b"):
		base, text = 2, text[2:]
	case strings.HasPrefix(text, "0"):
		base = 8
	}
	for _, r := range text {
		digit := strings.IndexRune("0123456789abcdef", r)
		if digit < 0 || digit >= base || n > 63 {
			break
		}
		n = n*base + digit
	}
	return n
}
