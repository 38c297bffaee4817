package cmdline

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"
)

// Number is the value of a flag that is a whole number, for a cli.GenericFlag. It is always
// decimal: the library's own reads 050 as 40, in octal. Context.Int reads it; not given it is what
// it was before.
type Number int

var _ cli.Generic = (*Number)(nil)

// Set reads a decimal number.
func (n *Number) Set(text string) error {
	number, err := strconv.Atoi(text)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%q is out of range", text)
	case err != nil:
		return fmt.Errorf("want a whole number, not %q", text)
	}
	*n = Number(number)
	return nil
}

// String returns the number without zeros in front of it, which Context.Int would read as octal.
func (n *Number) String() string { return strconv.Itoa(int(*n)) }
