package cmdline

import (
	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Duration is the value of a flag that is a duration, for a cli.GenericFlag: unlike the library's
// own it takes days, and --help shows no default of 0s. Context.Duration reads it; not given it is
// 0.
type Duration struct{ text string }

var _ cli.Generic = (*Duration)(nil)

// Set reads what grant.ParseDuration accepts.
func (d *Duration) Set(text string) error {
	parsed, err := grant.ParseDuration(text)
	d.text = parsed.String()
	return err
}

// String returns the duration as package time reads it; "" if there is none.
func (d *Duration) String() string { return d.text }
