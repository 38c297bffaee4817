package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "give grants up",
		ArgsUsage: "ID ...",
		UsageText: "gpuledger release [--force] ID ...",
		Description: "A grant that a container uses is draining from then on: nobody new can use it, and its share is free when the\n" +
			"container has ended. --force frees the share at once although the container still uses it, and drops an entry\n" +
			"that cannot be read.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "do not wait for the container"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			n, err := open(c)
			if err != nil {
				return err
			}
			if c.NArg() == 0 {
				return usage("release which grant? `gpuledger grants` lists them")
			}
			return releaseAll(c, n)
		},
	}
}

// releasedJSON says what became of one grant.
type releasedJSON struct {
	ID    grant.ID `json:"id"`
	State string   `json:"state"` // released | draining
}

// releaseAll releases each that it can and fails with the first that it can't.
func releaseAll(c *cli.Context, n *node.Node) error {
	var first error
	released := []releasedJSON{}
	for _, name := range c.Args().Slice() {
		r, text, err := releaseOne(n, name, c.Bool("force"))
		switch {
		case err == nil:
			released = append(released, r)
			if !c.Bool("json") {
				fmt.Fprintln(c.App.Writer, text)
			}
		case first == nil:
			first = err
		default:
			fmt.Fprintln(c.App.ErrWriter, "gpuledger: "+err.Error())
		}
	}
	if c.Bool("json") {
		return errors.Join(printJSON(c.App.Writer, map[string]any{"released": released}), first)
	}
	return first
}

func releaseOne(n *node.Node, name string, force bool) (releasedJSON, string, error) {
	reference, err := grant.ParseReference(name) // the whole reference is what people have at hand
	if err != nil {
		return releasedJSON{}, "", usage("cannot release: %q is no grant id; `gpuledger grants` lists them", name)
	}
	g, err := n.Release(reference.ID, force)
	switch {
	case err != nil:
		return releasedJSON{}, "", err
	case g.Draining:
		return releasedJSON{reference.ID, "draining"}, fmt.Sprintf("%s is draining: container %s still uses it", reference.ID, containers(g)), nil
	case len(g.Bindings) > 0:
		return releasedJSON{reference.ID, "released"}, fmt.Sprintf("%s is released by force: container %s still reaches its GPUs", reference.ID, containers(g)), nil
	}
	return releasedJSON{reference.ID, "released"}, fmt.Sprintf("%s is released", reference.ID), nil
}
