package main

import (
	"flag"
	"slices"
	"testing"

	"github.com/urfave/cli/v2"
)

// TestNumbersAreDecimal: a number with a zero in front is not octal.
func TestNumbersAreDecimal(t *testing.T) {
	for _, c := range []struct {
		command *cli.Command
		flag    string
		before  int
	}{{grantCommand(), "gpus", 0}, {grantCommand(), "compute", 0}, {runCommand(), "gpus", 0},
		{runCommand(), "compute", 0}, {simulateCommand(), "gpus", 1}} {
		i := slices.IndexFunc(c.command.Flags, func(f cli.Flag) bool {
			return slices.Contains(f.Names(), c.flag)
		})
		set := flag.NewFlagSet("", flag.ContinueOnError)
		if err := c.command.Flags[i].Apply(set); err != nil {
			t.Fatal(err)
		}
		read := cli.NewContext(nil, set, nil)
		if got := read.Int(c.flag); got != c.before {
			t.Errorf("%s --%s is %d when it is not given", c.command.Name, c.flag, got)
		}
		if err := set.Set(c.flag, "050"); err != nil || read.Int(c.flag) != 50 {
			t.Errorf("%s --%s 050 is %d, %v", c.command.Name, c.flag, read.Int(c.flag), err)
		}
		if err := set.Set(c.flag, "0x10"); err == nil {
			t.Errorf("%s --%s 0x10 is %d", c.command.Name, c.flag, read.Int(c.flag))
		}
	}
}
