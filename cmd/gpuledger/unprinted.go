package main

import (
	"fmt"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// releaser releases a grant.
type releaser func(grant.ID) (grant.Grant, error)

// printOrRelease prints a new grant by print. If that fails it releases the grant, because its
// secret is printed only once. Without SIGPIPE, which would end the program, a write to a closed
// pipe fails like any other.
func printOrRelease(id grant.ID, print func() error, release releaser) error {
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)
	unprinted := print()
	if unprinted == nil {
		return nil
	}
	g, err := release(id)
	if err != nil {
		// the second error is text: its hint and exit status are not those of this command
		return fmt.Errorf("cannot print the answer: %w; %v; grant %s is in the ledger and its reference is "+
			"lost: gpuledger release %s", unprinted, err, id, id)
	}
	_, text := became(id, g)
	return fmt.Errorf("cannot print the answer: %w; grant %s", unprinted, text)
}

// releaseUnprinted releases a grant that root has entered, and takes back its offer to engines.
func releaseUnprinted(c *cli.Context, n *node.Node) releaser {
	return func(id grant.ID) (grant.Grant, error) {
		files, err := cdiFiles(c, n)
		if err == nil {
			err = files.Forget(id)
		}
		if err != nil {
			return grant.Grant{}, err
		}
		return grants.Release(n, id, false)
	}
}
