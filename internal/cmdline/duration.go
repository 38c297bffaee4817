package cmdline

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"
)

// Duration is the value of a flag that is a duration, for a cli.GenericFlag: unlike the library's
// own it takes days, and --help shows no default of 0s. Context.Duration reads it; not given it is
// 0.
type Duration struct{ text string }

var _ cli.Generic = (*Duration)(nil)

// Set reads what ParseDuration accepts.
func (d *Duration) Set(text string) error {
	parsed, err := ParseDuration(text)
	d.text = parsed.String()
	return err
}

// String returns the duration as package time reads it; "" if there is none.
func (d *Duration) String() string { return d.text }

// withDays is a duration that begins with days.
var withDays = regexp.MustCompile(`^([0-9]+)d(.*)$`)

// longest are the whole days that a time.Duration can be.
const longest = 106751

// ParseDuration reads what time.ParseDuration does, and days of 24 hours before that: 7d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	days, rest := 0, text
	if part := withDays.FindStringSubmatch(text); part != nil {
		n, err := strconv.Atoi(part[1])
		if err != nil || n > longest {
			return 0, fmt.Errorf("%q is too large", text)
		}
		if days, rest = n, part[2]; rest == "" {
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

// number is one of a duration's numbers.
var number = regexp.MustCompile(`[0-9]+`)

// overflows reports whether a duration cannot be read only because its numbers are too large.
func overflows(text string) bool {
	_, err := time.ParseDuration(number.ReplaceAllString(text, "1"))
	return err == nil
}
