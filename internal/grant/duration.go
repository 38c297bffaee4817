package grant

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// longestDays are the whole days that a time.Duration can be.
const longestDays = 106751

// ParseDuration reads what time.ParseDuration does, and days of 24 hours before that: 7d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	days, rest := 0, text
	if tail := strings.TrimLeft(text, "0123456789"); tail != text && strings.HasPrefix(tail, "d") {
		n, err := strconv.Atoi(text[:len(text)-len(tail)])
		if err != nil || n > longestDays {
			return 0, fmt.Errorf("%q is too large", text)
		}
		if days, rest = n, tail[1:]; rest == "" {
			rest = "0s"
		}
	}
	d, err := time.ParseDuration(rest)
	sum := time.Duration(days)*24*time.Hour + d
	switch {
	case err != nil && overflows(rest), err == nil && sum < d && days > 0:
		return 0, fmt.Errorf("%q is too large", text)
	case err != nil, days > 0 && d < 0:
		return 0, fmt.Errorf("want a duration with its unit, as 90s, 30m, 12h or 7d, not %q", text)
	}
	return sum, nil
}

// overflows reports whether a duration with its unit cannot be read only because its numbers are
// too large.
func overflows(text string) bool {
	_, err := time.ParseDuration(strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '0'
		}
		return r
	}, text))
	return err == nil && strings.TrimRight(text, "0123456789") == text
}
