package grant

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 7 * day, "1d12h": 36 * time.Hour,
		"0": 0, "0d": 0, "-1h": -time.Hour, "106751d": longestDays * day,
	} {
		if got, err := ParseDuration(text); got != want || err != nil {
			t.Errorf("%s is %s, want %s (%v)", text, got, want, err)
		}
	}
	const unit = "want a duration with its unit, as 90s, 30m, 12h or 7d, not "
	for text, want := range map[string]string{
		"": unit + `""`, "5": unit + `"5"`, "d": unit + `"d"`, "1.5d": unit + `"1.5d"`,
		"1h1d": unit + `"1h1d"`, "7days": unit + `"7days"`, "1d-1h": unit + `"1d-1h"`, "-1d": unit + `"-1d"`,
		"999999999h": `"999999999h" is too large`, "106752d": `"106752d" is too large`,
		"99999999999999999999d": `"99999999999999999999d" is too large`,
		"106751d25h":            `"106751d25h" is too large`,
	} {
		if got, err := ParseDuration(text); err == nil || err.Error() != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
}
