package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// view is what the caller may see of the node: root all of it, another user what gpuledgerd shows.
type view struct {
	grants.Overview
	node   *node.Node      // of root
	asked  *users.NodeView // of another user
	paused *node.Pause
	used   *used
}

// look reads the node: for root from its files, for another user from gpuledgerd.
func look(c *cli.Context) (view, error) {
	if err := noArguments(c); err != nil {
		return view{}, err
	}
	if client, is := asUser(c); is {
		return lookAsUser(client)
	}
	n, err := open(c)
	if err != nil {
		return view{}, err
	}
	v := view{node: n, used: usedOf(n)}
	if p, paused := n.Paused(); paused {
		v.paused = &p
	}
	v.Overview, err = grants.Read(n)
	return v, err
}

func lookAsUser(client users.Client) (view, error) {
	seen, err := client.Look(context.Background())
	if err != nil {
		return view{}, err
	}
	v := view{asked: &seen}
	v.Overview = grants.Overview{View: grant.View{Now: seen.Now, Grants: seen.All()},
		Inventory: grant.Inventory{GPUs: seen.GPUs}, Problem: seen.Problem}
	if seen.Paused != nil {
		v.paused = &node.Pause{Until: *seen.Paused}
	}
	if seen.Used != nil {
		v.used = &used{*seen.Used}
	}
	return v, nil
}

// isMine reports whether a grant is the caller's. gpuledgerd leaves the user out of other users'
// grants, so root of a container has none.
func (v view) isMine(g grant.Grant) bool {
	if v.asked == nil {
		return g.User == uint32(os.Geteuid())
	}
	return v.asked.User != 0 && g.User == v.asked.User
}

func (v view) cards() ([]grants.Card, error) {
	if v.asked != nil {
		return grants.CardsOf(v.Overview, v.asked.Free), nil
	}
	return grants.Cards(v.node, v.Overview)
}

// asUser reports whether the caller must ask gpuledgerd, because it cannot read the ledger itself.
// This includes root of a container or of a user namespace, if the socket is there and the ledger
// cannot be read.
func asUser(c *cli.Context) (users.Client, bool) {
	n := openAnyway(c)
	socket := n.Policy.UsersSocket()
	if socket == "" {
		socket = grant.UsersSocket
	}
	err := unix.Access(n.Policy.StateDir, unix.R_OK|unix.X_OK)
	is := err != nil || n.Broken != nil
	if os.Geteuid() == 0 {
		is = err != nil && unix.Access(socket, unix.F_OK) == nil
	}
	return users.Client{Socket: socket}, is
}

// rootsClient connects to gpuledgerd's socket for root.
func rootsClient(n *node.Node) users.Client { return users.Client{Socket: n.Policy.RootsSocket()} }

// grantRequest asks gpuledgerd for a grant.
type grantRequest func(context.Context, users.GrantRequest, func(place, of int)) (grant.Grant, string, error)

// enterByDaemon asks gpuledgerd for a grant: for a user, or for root with --wait. If it is
// interrupted, it releases the grant. If release is nil, the grant ends with this process.
func enterByDaemon(c *cli.Context, send grantRequest, ask admission.Ask, release releaser) (grant.Grant,
	grant.Reference, string, error) {
	random, err := host.Random()
	if err != nil {
		return grant.Grant{}, grant.Reference{}, "", err
	}
	secret := grant.NewSecret(random)
	ctx, stop := interruptible(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	terms := users.GrantRequest{Terms: users.TermsOf(ask), Secret: secret, Wait: c.Duration("wait"),
		Since: time.Now()}
	g, sentence, err := send(ctx, terms, func(place, of int) {
		if place == 0 {
			fmt.Fprintln(c.App.ErrWriter,
				"gpuledger: gpuledgerd is gone; the request is sent again when it is back")
			return
		}
		fmt.Fprintf(c.App.ErrWriter, "gpuledger: waiting, %d of %d\n", place, of)
	})
	switch {
	case ctx.Err() != nil && g.ID != "" && release != nil: // the grant was made all the same
		err = printOrRelease(g.ID, func() error { return errors.New("interrupted") }, release)
	case ctx.Err() != nil:
		err = errors.New("cannot grant: interrupted, the request does not wait any more")
	case err == nil && !ask.Owner.HasSecret():
		secret = ""
	}
	return g, grant.Reference{ID: g.ID, Secret: secret}, sentence, err
}

// onlyRoot refuses flags that gpuledgerd does not accept from users.
func onlyRoot(c *cli.Context, flags ...string) error {
	for _, flag := range flags {
		if c.IsSet(flag) {
			return usage("--%s is root's: gpuledgerd does not do it for other users", flag)
		}
	}
	return nil
}

// releaseAsUser releases grants of the caller.
func releaseAsUser(c *cli.Context, client users.Client, ids []grant.ID) error {
	if err := onlyRoot(c, "force"); err != nil {
		return err
	}
	return releaseEach(c, ids, func(id grant.ID) (grant.Grant, error) {
		return client.Release(context.Background(), id)
	}, func(grant.ID) error { return nil })
}

// quotaText describes a quota in one line.
func quotaText(q users.Quota) string {
	var parts []string
	add := func(is bool, format string, args ...any) {
		if is {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(q.Memory > 0, "%s of memory", q.Memory)
	add(q.GPUs > 0, "%d GPUs", q.GPUs)
	add(q.Grants > 0, "%d grants", q.Grants)
	modes := make([]string, len(q.Modes))
	for i, m := range q.Modes {
		modes[i] = string(m)
	}
	add(true, "mode %s", strings.Join(modes, " or "))
	add(q.TTL != "", "for at most %s", q.TTL)
	add(q.Idle != "", "released after %s without use", q.Idle)
	return strings.Join(parts, ", ")
}
