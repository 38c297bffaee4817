package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

func grantCommand() *cli.Command {
	return &cli.Command{
		Name:  "grant",
		Usage: "enter a grant into the ledger, or change one",
		UsageText: "gpuledger grant --memory 8GiB --gpus 2                            4GiB on each " +
			"of two GPUs\n" +
			"gpuledger grant --memory 4GiB --compute 30 --owner pod:UID/train\n" +
			"gpuledger grant --mode exclusive --gpu 1 --ttl 2h\n" +
			"gpuledger grant --memory 2GiB --for namespace:team               any pod of that namespace " +
			"with the reference\n" +
			"gpuledger grant --mode mig --profile 1g.10gb                     an existing MIG device\n" +
			"gpuledger grant --update g-abcdefghijkl --memory 6GiB",
		Description: "Prints the reference on standard output. It is not shown again, because the " +
			"ledger keeps only a hash of the secret in a bearer's or claim's reference. A container " +
			"uses the grant by the annotation gpuledger.dev/grant, the variable GPULEDGER_GRANT or, " +
			"with --cdi, the CDI device gpuledger.dev/grant=REFERENCE. A container that owns the grant " +
			"(pod:UID/CONTAINER) needs none of these.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "memory", Usage: "memory over all GPUs, for example 4GiB or 512MiB"},
			&cli.GenericFlag{Name: "gpus", Value: new(cmdline.Number), Usage: "number of GPUs", DefaultText: "1"},
			&cli.GenericFlag{Name: "compute", Value: new(cmdline.Number), Usage: "`PERCENT` of each GPU's compute, 1 to 100; with --update 0 removes the share", DefaultText: "no share"},
			&cli.StringFlag{Name: "mode", Usage: "exclusive, timeslice, limit, mps, mig", Value: string(grant.Limit)},
			&cli.StringFlag{Name: "profile", Usage: "in mode mig: MIG devices of this `PROFILE`, for example 1g.10gb"},
			&cli.StringFlag{Name: "place", Usage: "binpack or spread, when no GPU is named"},
			&cli.StringSliceFlag{Name: "gpu", Usage: "exactly this GPU, by `UUID|INDEX`, or MIG device, for example 0:1; may be given again"},
			&cli.StringFlag{Name: "owner", Usage: "pod:UID/CONTAINER, claim:UID or bearer", Value: string(grant.Bearer)},
			&cli.StringSliceFlag{Name: "for", Usage: "tie it: only containers of this `TIE`, pod:UID or namespace:NAME, may use its reference; may be given again"},
			&cli.StringFlag{Name: "user", Usage: "the `USER` of this node to whom it belongs, by name or uid"},
			&cli.StringFlag{Name: "label", Usage: "free text to remember it by"},
			&cli.StringFlag{Name: "app", Usage: "the application, for example a UID of a ReplicaSet: spread places its grants on different GPUs, if possible"},
			&cli.GenericFlag{Name: "ttl", Value: new(cmdline.Duration), DefaultText: "no end", Usage: "how long it lasts, for example 90m or 7d; with --update counted from now, 0 for no end"},
			waitFlag(),
			&cli.BoolFlag{Name: "cdi", Usage: "offer it to engines as the CDI device gpuledger.dev/grant=REFERENCE, until it is released"},
			&cli.StringFlag{Name: "update", Usage: "change the grant of this `ID`: its memory, compute or ttl"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := checkWait(c); err != nil {
				return err
			}
			if client, is := asUser(c); is {
				if c.IsSet("update") {
					return changeAsUser(c, client)
				}
				if err := onlyRoot(c, "user", "owner", "for", "cdi"); err != nil {
					return err
				}
				return enterAsUser(c, client)
			}
			n, err := openAlone(c)
			switch {
			case err != nil:
				return err
			case c.IsSet("update"):
				return change(c, n)
			}
			return enter(c, n)
		},
	}
}

func waitFlag() cli.Flag {
	return &cli.GenericFlag{Name: "wait", Value: new(cmdline.Duration), Usage: "wait in the queue of " +
		"gpuledgerd until it can be granted, for this long at most, for example 30m; 7d is the most"}
}

func checkWait(c *cli.Context) error {
	switch {
	case c.IsSet("wait") && c.IsSet("update"):
		return usage("--wait is only for a new grant")
	case c.IsSet("wait") && c.Duration("wait") <= 0:
		return usage("--wait: want a duration above 0, as 30m, not %s", c.Duration("wait"))
	case c.Duration("wait") > users.MaxWait:
		return usage("--wait: want at most 7d, not %s", c.Duration("wait"))
	}
	return nil
}

func enter(c *cli.Context, n *node.Node) error {
	ask, err := askFrom(c)
	if err != nil {
		return err
	}
	g, reference, err := grantAndOffer(c, n, ask)
	if err != nil {
		return err
	}
	return printOrRelease(g.ID, func() error {
		return printGranted(c, g, reference, grants.Sentence(n, "granted", g), n.Host.Now())
	}, releaseUnprinted(c, n))
}

func enterAsUser(c *cli.Context, client users.Client) error {
	ask, err := askFrom(c)
	if err == nil {
		err = noArguments(c)
	}
	if err != nil {
		return err
	}
	release := func(id grant.ID) (grant.Grant, error) { return client.Release(context.Background(), id) }
	g, reference, sentence, err := enterByDaemon(c, client.Grant, ask, release)
	if err != nil {
		return err
	}
	return printOrRelease(g.ID, func() error {
		return printGranted(c, g, reference, sentence, time.Now())
	}, release)
}

func printGranted(c *cli.Context, g grant.Grant, reference grant.Reference, sentence string,
	now time.Time) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, struct {
			grantJSON
			Reference string `json:"reference"`
			CDI       string `json:"cdi,omitempty"`
		}{grantToJSON(g, now), reference.String(), cdiName(c, reference)})
	}
	fmt.Fprintln(c.App.ErrWriter, sentence)
	_, err := fmt.Fprintln(c.App.Writer, reference)
	return err
}

// grantAndOffer enters the grant and, with --cdi, offers it to engines: both or nothing.
func grantAndOffer(c *cli.Context, n *node.Node, ask admission.Ask) (g grant.Grant,
	reference grant.Reference, err error) {
	enter := func() (grant.Grant, grant.Reference, error) { return grants.Enter(n, ask) }
	if c.IsSet("wait") {
		enter = func() (grant.Grant, grant.Reference, error) {
			g, reference, _, err := enterByDaemon(c, rootsClient(n).Grant, ask,
				func(id grant.ID) (grant.Grant, error) { return grants.Release(n, id, false) })
			return g, reference, err
		}
	}
	if !c.Bool("cdi") {
		return enter()
	}
	files, err := cdiFiles(c, n)
	if err == nil {
		err = files.Ready()
	}
	if err != nil {
		return g, reference, err
	}
	if g, reference, err = enter(); err != nil {
		return g, reference, err
	}
	if _, err = files.Expose(reference); err != nil {
		_, e := grants.Release(n, g.ID, true) // it was not printed yet
		err = errors.Join(err, e)
	}
	return g, reference, err
}

// cdiName returns the grant's CDI name if --cdi is given.
func cdiName(c *cli.Context, reference grant.Reference) string {
	if !c.Bool("cdi") {
		return ""
	}
	return grant.CDIKindGrant + "=" + reference.String()
}

// askFrom reads the flags of a new grant.
func askFrom(c *cli.Context) (ask admission.Ask, err error) {
	ask = admission.Ask{GPUs: c.Int("gpus"), Compute: c.Int("compute"), Names: c.StringSlice("gpu"),
		Label: c.String("label"), App: c.String("app"), TTL: c.Duration("ttl"),
		Profile: c.String("profile"), Source: "cli"}
	switch {
	case c.IsSet("gpus") && ask.GPUs < 1:
		return ask, usage("--gpus: want at least 1, not %d", ask.GPUs)
	case c.IsSet("compute") && (ask.Compute < 1 || ask.Compute > 100):
		return ask, usage("--compute: want a percentage from 1 to 100, not %d", ask.Compute)
	case c.IsSet("ttl") && ask.TTL <= 0:
		return ask, usage("--ttl: want a duration above 0, not %s", ask.TTL)
	}
	if err := grant.CheckText(ask.Label); err != nil {
		return ask, usage("--label: %v", err)
	}
	if err := grant.CheckText(ask.App); err != nil {
		return ask, usage("--app: %v", err)
	}
	if ask.Mode, err = grant.ParseMode(c.String("mode")); err != nil {
		return ask, usage("--mode: %v", err)
	}
	if !c.IsSet("mode") && (c.IsSet("profile") || slices.ContainsFunc(ask.Names, isMIG)) {
		ask.Mode = grant.MIG
	}
	if ask.Owner, err = grant.ParseOwner(c.String("owner")); err != nil {
		return ask, usage("--owner: %v", err)
	}
	for _, text := range c.StringSlice("for") {
		tie, err := grant.ParseTie(text)
		if err != nil {
			return ask, usage("--for: %v", err)
		}
		if !slices.Contains(ask.For, tie) {
			ask.For = append(ask.For, tie)
		}
	}
	if c.IsSet("user") {
		if ask.User, err = users.UID(c.String("user")); err != nil {
			return ask, err
		}
	}
	if c.IsSet("place") {
		if err := ask.Place.UnmarshalText([]byte(c.String("place"))); err != nil {
			return ask, usage("--place: %v", err)
		}
	}
	if c.IsSet("memory") {
		ask.Memory, err = size(c, "memory")
	}
	return ask, err
}

// isMIG reports whether a name can only be a MIG device's.
func isMIG(name string) bool { return strings.HasPrefix(name, "MIG-") || strings.Contains(name, ":") }

func usage(format string, args ...any) error {
	return &grant.UsageError{Message: fmt.Sprintf(format, args...)}
}

// fixed lists the flags that --update refuses: a container may already use the GPUs.
var fixed = []string{"gpus", "gpu", "profile", "mode", "place", "owner", "for", "user", "label", "app", "cdi",
	"wait"}

func change(c *cli.Context, n *node.Node) error {
	id, what, err := changeFrom(c)
	if err != nil {
		return err
	}
	g, err := grants.Update(n, id, what)
	if err != nil {
		return err
	}
	return printChanged(c, g, grants.Sentence(n, "changed", g), n.Host.Now())
}

func changeAsUser(c *cli.Context, client users.Client) error {
	id, what, err := changeFrom(c)
	if err == nil {
		err = noArguments(c)
	}
	if err != nil {
		return err
	}
	g, sentence, err := client.Update(context.Background(),
		users.UpdateRequest{ID: id, Memory: what.Memory, Compute: what.Compute, TTL: what.TTL})
	if err != nil {
		return err
	}
	return printChanged(c, g, sentence, time.Now())
}

func printChanged(c *cli.Context, g grant.Grant, sentence string, now time.Time) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, grantToJSON(g, now))
	}
	fmt.Fprintln(c.App.Writer, sentence)
	return nil
}

// changeFrom reads the flags of a change.
func changeFrom(c *cli.Context) (id grant.ID, what grants.Change, err error) {
	// people often paste the whole reference
	reference, err := grant.ParseReference(c.String("update"))
	if err != nil {
		return "", what, usage("--update: %v", err)
	}
	for _, flag := range fixed {
		if c.IsSet(flag) {
			return "", what, usage("--%s cannot be changed of a grant that exists; release it and grant anew",
				flag)
		}
	}
	if c.IsSet("memory") {
		memory, err := size(c, "memory")
		if err != nil {
			return "", what, err
		}
		what.Memory = &memory
	}
	if c.IsSet("compute") {
		compute := c.Int("compute")
		if compute < 0 || compute > 100 {
			return "", what, usage("--compute: want a percentage from 1 to 100, or 0 for no share, not %d",
				compute)
		}
		what.Compute = &compute
	}
	if c.IsSet("ttl") {
		ttl := c.Duration("ttl")
		if ttl < 0 {
			return "", what, usage("--ttl: want a duration, or 0 for no end, not %s", ttl)
		}
		what.TTL = &ttl
	}
	if what == (grants.Change{}) {
		return "", what, usage("--update: say what to change: --memory, --compute or --ttl")
	}
	return reference.ID, what, nil
}
