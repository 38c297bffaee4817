package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// manCommand prints the manual page from the same texts as --help. `make man` and packages call it.
func manCommand() *cli.Command {
	return &cli.Command{
		Name:      "man",
		Usage:     "print the manual page, in roff",
		UsageText: "gpuledger man >/usr/local/share/man/man8/gpuledger.8",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			describe(c.App.Commands)
			page, err := c.App.ToManWithSection(8)
			if err == nil {
				_, err = fmt.Fprint(c.App.Writer, page)
			}
			return err
		},
	}
}

// describe adds each command's Description to the page: the library prints only Usage.
func describe(commands []*cli.Command) {
	for _, c := range commands {
		if c.Description != "" {
			c.Usage += "\n\n" + c.Description
		}
		describe(c.Subcommands)
	}
}
