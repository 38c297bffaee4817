package dra

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// choice is the mode that the labels of the Node choose.
type choice struct {
	mode    grant.Mode
	unknown error // an unknownLabel: the labels that were read first choose none
}

// unknownLabel says of the node that it has a label whose value is not known.
type unknownLabel struct{ error }

// SameNode calls Broken if the cluster's Node of this name is another than at the first call. It
// also reads which mode the Node's labels choose. Slices belong to a Node by its UID, which the
// library looks up once. Slices of the old Node are garbage-collected each time they are made.
func (d *Driver) SameNode(ctx context.Context) error {
	d.nodeLock.Lock()
	defer d.nodeLock.Unlock()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	n, err := d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell whether node %s is the same: %w", d.Node, err)
	case d.node == "":
		d.node = n.UID
	case d.node != n.UID && d.Broken != nil:
		d.Broken(fmt.Errorf("the cluster has another node %s, and slices belong to the one that it had",
			d.Node))
	}
	mode, err := nodestate.ModeOf(n.Labels)
	if err != nil {
		err = unknownLabel{fmt.Errorf("the node %w", err)}
		if before := d.chosen.Load(); before == nil || before.unknown != nil {
			d.chosen.Store(&choice{unknown: err})
		}
		return err // and a mode that was chosen before stays
	}
	d.chosen.Store(&choice{mode: mode})
	return nil
}
