package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "release grants",
		ArgsUsage: "ID ...",
		UsageText: "gpuledger release [--force] ID ...",
		Description: "A grant that a container uses becomes draining: no other container can use it, " +
			"and its share is free when the container has ended. --force frees the share at once " +
			"although the container still uses it, and drops an entry that cannot be read.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "do not wait for the container"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			client, byDaemon := asUser(c)
			n := openAnyway(c)
			if n.Broken != nil && !byDaemon {
				return n.Broken
			}
			if c.NArg() == 0 {
				return usage("release which grant? `gpuledger grants` lists them")
			}
			ids, err := idsOf(c.Args().Slice())
			switch {
			case err != nil:
				return err
			case byDaemon:
				return releaseAsUser(c, client, ids)
			}
			return releaseAll(c, n, ids)
		},
	}
}

// releasedJSON says what became of one grant.
type releasedJSON struct {
	ID    grant.ID `json:"id"`
	State string   `json:"state"` // released | draining
}

// idsOf reads all the arguments before anything is done.
func idsOf(names []string) ([]grant.ID, error) {
	ids := make([]grant.ID, len(names))
	for i, name := range names {
		reference, err := grant.ParseReference(name) // people often paste the whole reference
		if err != nil {
			return nil, usage("cannot release: %q is no grant id; `gpuledger grants` lists them",
				typedID(name))
		}
		ids[i] = reference.ID
	}
	return ids, nil
}

// typedID returns what was typed as a grant's id or reference, without what may be a secret.
func typedID(text string) string {
	id, _, _ := strings.Cut(text, ".")
	if id == "" || strings.Contains(text, "/") { // no reference
		id = text
	}
	return grant.Printable(id)
}

// releaseAll releases all grants that it can, and returns the first error.
func releaseAll(c *cli.Context, n *node.Node, ids []grant.ID) error {
	files, err := cdiFiles(c, n)
	if err != nil {
		return err
	}
	force := c.Bool("force")
	return releaseEach(c, ids, func(id grant.ID) (grant.Grant, error) { return grants.Release(n, id, force) },
		files.Forget)
}

func releaseEach(c *cli.Context, ids []grant.ID, release func(grant.ID) (grant.Grant, error),
	after func(grant.ID) error) error {
	var first error
	failed := func(err error) { // the first one is what the command returns
		switch {
		case err == nil:
		case first == nil:
			first = err
		default:
			fmt.Fprintln(c.App.ErrWriter, "gpuledger: "+err.Error())
		}
	}
	released := []releasedJSON{}
	for _, id := range ids {
		g, err := release(id)
		r, text := became(id, g)
		switch {
		case err == nil:
			released = append(released, r)
			if !c.Bool("json") {
				fmt.Fprintln(c.App.Writer, text)
			}
			failed(after(id))
		default:
			failed(err)
		}
	}
	if c.Bool("json") {
		return errors.Join(printJSON(c.App.Writer, map[string]any{"released": released}), first)
	}
	return first
}

// became says what became of a released grant.
func became(id grant.ID, g grant.Grant) (releasedJSON, string) {
	switch {
	case g.Draining:
		return releasedJSON{id, "draining"}, fmt.Sprintf("%s is draining: container %s still uses it", id,
			containers(g))
	case len(g.Bindings) > 0:
		return releasedJSON{id, "released"}, fmt.Sprintf(
			"%s is released by force: container %s still reaches its GPUs", id, containers(g))
	}
	return releasedJSON{id, "released"}, fmt.Sprintf("%s is released", id)
}
