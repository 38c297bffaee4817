package mps

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// dismiss tells the daemon to end, unless it has clients: to end it under a client that has work on
// the GPU can hang all of its clients, and clients of other daemons too (seen up to CUDA 13.5).
func (d *daemon) dismiss(ctx context.Context, p grant.Process) error {
	began := d.now()
	ctx, cancel := context.WithTimeout(ctx, allAnswers)
	defer cancel()
	again := !d.toldToEnd.IsZero()
	err := d.tellToEnd(ctx, p)
	d.putOff(err, d.now().Sub(began))
	if err == nil && again {
		err = notEnded(d.state.GPUs, d.toldToEnd)
	}
	return err
}

// notEnded is the error of a daemon that was told to end and has not.
func notEnded(gpus []string, told time.Time) error {
	return fmt.Errorf("the MPS daemon of %v was asked to end at %s and still runs", gpus,
		told.UTC().Format(time.RFC3339))
}

// noGrant is the problem of a daemon that was told to end. Its end is expected, and the next one
// can come in a moment.
const noGrant = "its last grant is gone"

// tellToEnd tells the daemon to end if its own socket answers and it has no clients.
func (d *daemon) tellToEnd(ctx context.Context, p grant.Process) error {
	before, err := d.socketStamps(ctx)
	if err != nil {
		return fmt.Errorf("the MPS daemon of %v has no grant any more and cannot be ended: %w",
			d.state.GPUs, err)
	}
	own, _, err := d.ownSockets(p)
	if err != nil {
		return fmt.Errorf("the MPS daemon of %v has no grant any more and cannot be ended: %w",
			d.state.GPUs, err)
	}
	// its processes use the GPU until they end
	if err := d.writeState(grant.MPSDaemon{GPUs: d.state.GPUs, Daemon: p, Servers: d.state.Servers,
		Socket: own.control, Privileged: own.privileged, Problem: noGrant}); err != nil {
		return err
	}
	if isWanted, err := isWantedAgain(d.node, d.name); isWanted || err != nil {
		return err
	}
	c, err := d.control()
	if err != nil {
		return err
	}
	clients, err := c.clients(ctx)
	switch {
	case err != nil:
		return err
	case len(clients) > 0:
		return fmt.Errorf("the MPS daemon of %v has no grant any more and serves processes %v, so it stays "+
			"until they end", d.state.GPUs, clients)
	}
	if err := d.stillThere(own, before, p); err != nil {
		return err
	}
	if err := c.quit(ctx); err != nil {
		return err
	}
	d.toldAgain = d.now()
	if !d.toldToEnd.IsZero() {
		return nil
	}
	d.toldToEnd = d.toldAgain
	d.log.WithField("gpus", d.state.GPUs).Info("ending the MPS daemon: its last grant is gone")
	return nil
}

// isWantedAgain reports whether a grant needs the daemon that was written down as ending. A create
// that found it ready before has its grant once the ledger's lock was free, and later ones wait for
// the next daemon.
func isWantedAgain(n *node.Node, daemon string) (bool, error) {
	o, err := grants.ReadAfterChanges(n)
	_, isWanted := wants(o.Grants)[daemon]
	return isWanted, err
}
