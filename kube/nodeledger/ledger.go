// Package nodeledger gives the cluster's agents access to the node's ledger. The ledger decides
// last: an allocation of the scheduler is entered only if it fits.
package nodeledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/cdi"
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Ledger is a node's ledger with its CDI files.
type Ledger struct {
	Open   func() *node.Node // opens the node with its present configuration
	Config string            // absolute path of the configuration, for the hook in CDI files

	References string // directory of references that survive a boot; "": none is kept

	// Batch serves callers that come at the same time; nil: each is served alone
	Batch *Batch

	node *node.Node // that of opened; nil: not opened
}

// Content is the content of the ledger at one moment.
type Content struct {
	grants.Overview
	Node *node.Node
	// Chosen is the mode that the cluster has chosen for this node; "": that of the configuration.
	Chosen grant.Mode
}

// Read returns the ledger and the inventory. An unusable inventory is an error, because nothing can
// be placed without one. Content returned with an error still has the node. If its Problem is the
// error, it also has the content of the ledger.
func (l Ledger) Read() (Content, error) {
	if l.Batch == nil {
		return l.read()
	}
	r := l.Batch.reads.do(l, readAll)
	r.content.Grants = slices.Clone(r.content.Grants)
	return r.content, r.err
}

func (l Ledger) read() (Content, error) {
	n := l.Open()
	if n.Broken != nil {
		return Content{Node: n}, n.Broken
	}
	o, err := grants.Read(n)
	if err != nil {
		return Content{Node: n}, err
	}
	if o.Problem != nil {
		err = o.Problem.Refusal()
	}
	return Content{Overview: o, Node: n}, err
}

// ReadNode returns the ledger and the inventory of a node. An unusable inventory is a Problem of
// the overview, because a release needs none.
func ReadNode(n *node.Node) (grants.Overview, error) { return grants.Read(n) }

// WithConfigOf returns a Ledger that keeps the configuration with which a content was read, even if
// the file has changed since.
func (l Ledger) WithConfigOf(c Content) Ledger {
	l.Open, l.node = func() *node.Node { return c.Node }, nil
	l.Batch = nil // the others have the present configuration
	return l
}

// opened returns the Ledger with the present configuration, which may change before the work is
// done. A configuration that cannot be read is an error: its node would have the directories of the
// defaults, with another ledger and other CDI files.
func (l Ledger) opened() (Ledger, error) {
	switch {
	case l.node != nil: // no other caller may get this one, which is older
	case l.Batch == nil:
		l.node = l.Open()
	default:
		l.node = l.Batch.opens.do(l, openAll)
	}
	n := l.node
	l.Open = func() *node.Node { return n }
	return l, n.Broken
}

// EnteredBy returns the grants that one agent has entered; source names the agent.
func (c Content) EnteredBy(source string) []grant.Grant {
	return slices.DeleteFunc(slices.Clone(c.Grants), func(g grant.Grant) bool { return g.Source != source })
}

// Seats returns the GPUs and what is free on each. It leaves out the grants of the agent that has
// this source; with "" it counts all grants.
func (c Content) Seats(without string) ([]admission.Seat, error) {
	v := c.View
	if without != "" {
		v.Grants = slices.DeleteFunc(slices.Clone(v.Grants),
			func(g grant.Grant) bool { return g.Source == without })
	}
	return admission.Seats(v, c.Inventory, c.Node.Policy)
}

// Offer returns the verdict on a container of this owner with a grant of this mode, and the
// strength that would hold it. Admission uses the same code, so an offer promises nothing that a
// create would refuse.
func (c Content) Offer(owner grant.Owner, mode grant.Mode, seat admission.Seat) grant.Verdict {
	g := grant.Grant{ID: "g-aaaaaaaaaaaa", Owner: owner, Mode: mode, Strength: admission.StrengthOf(mode),
		GPUs: []grant.Share{{UUID: seat.UUID(), Index: seat.GPU.Index, Memory: seat.Memory()}}}
	return admission.Offer(g, c.Now, c.Inventory, c.Node.Policy)
}

// Enter makes a grant. Its errors may appear in a pod's events, so they name no other tenant.
func (l Ledger) Enter(ask admission.Ask) (grant.Grant, grant.Reference, error) {
	e := l.enter(entry{ledger: l, ask: ask})
	return e.Grant, e.Reference, e.Err
}

func (l Ledger) enter(what entry) (e outcome) {
	if l.Batch == nil {
		e.Grant, e.Reference, e.Err = grants.Enter(l.Open(), what.ask)
		if e.Err == nil && what.keeps {
			e.keepErr = l.keep(e.Reference)
			e.Unprepared = grants.Prepare(l.Open(), e.Grant.ID)
		}
	} else {
		e = l.Batch.enters.do(what, enterAll)
	}
	var refusal *grant.Refusal
	if errors.As(e.Err, &refusal) &&
		(refusal.Code == grant.NoCapacity || refusal.Code == grant.ModeConflict) {
		e.Err = l.noCapacity(what.ask, refusal.Code)
	}
	return e
}

// SetMemory gives a grant more memory on its GPUs. Its errors are as those of Enter.
func (l Ledger) SetMemory(g grant.Grant, memory grant.Bytes) error {
	_, err := grants.Update(l.Open(), g.ID, grants.Change{Memory: &memory})
	var refusal *grant.Refusal
	if errors.As(err, &refusal) && refusal.Code == grant.NoCapacity {
		return l.noCapacity(admission.Ask{Memory: memory, Mode: g.Mode, GPUs: len(g.GPUs)}, refusal.Code)
	}
	return err
}

// noCapacity is the refusal for tenants: it says what is free on each GPU and omits the holders,
// which only administrators see.
func (l Ledger) noCapacity(ask admission.Ask, code grant.Code) error {
	p, err := l.Read()
	if err != nil {
		return err
	}
	room, err := p.FreeText()
	if err != nil {
		return err
	}
	return &grant.Refusal{Code: code, Message: fmt.Sprintf("cannot grant %s: %s", describe(ask), room),
		Hint: "ask for less, or wait until a grant is released"}
}

func describe(ask admission.Ask) string {
	gpus := max(ask.GPUs, len(ask.Names), 1)
	what := fmt.Sprintf("%s over %d GPUs in mode %s", ask.Memory, gpus, ask.Mode)
	switch {
	case ask.Mode == grant.Exclusive && gpus == 1:
		what = "a whole GPU"
	case ask.Mode == grant.Exclusive:
		what = fmt.Sprintf("%d whole GPUs", gpus)
	case ask.Mode == grant.MIG:
		what = fmt.Sprintf("%d MIG devices", gpus)
	case gpus == 1:
		what = fmt.Sprintf("%s on a GPU in mode %s", ask.Memory, ask.Mode)
	}
	if ask.Compute > 0 {
		what += fmt.Sprintf(" with %d%% of its compute", ask.Compute)
	}
	return what
}

// AdoptsNothing says why the node makes no grants of what a scheduler writes about containers. ""
// means that it does.
func (c Content) AdoptsNothing() string {
	switch p := c.Node.Policy; {
	case p.Annotations.Trust != grant.Adopt:
		return `adopts nothing: annotations.trust is not "adopt" in its configuration`
	case !p.Engine.ProvesPods():
		return "adopts nothing: its engine does not prove which pod a container belongs to"
	}
	return ""
}

// MPSMissing says what the node lacks to start MPS daemons. Without a daemon no container of mode
// mps starts. "" means that nothing is known to be missing.
func (c Content) MPSMissing() string {
	missing := c.Inventory.Driver.MPSMissing()
	switch {
	case missing != "":
		return "no " + missing
	case c.Inventory.Driver.MPSProblem() != "":
		return fmt.Sprintf("driver older than %d", grant.MPSSince)
	case c.Node.Daemon() == 0:
		return "no gpuledgerd"
	}
	return ""
}

// FreeText says what is free on each GPU, such as "GPU 0 has 4GiB of 16160MiB free (mode limit)".
func (c Content) FreeText() (string, error) {
	seats, err := c.Seats("")
	if err != nil {
		return "", err
	}
	if len(seats) == 0 {
		return "this node has no GPU", nil
	}
	texts := make([]string, len(seats))
	for i, s := range seats {
		texts[i] = freeText(s)
	}
	return strings.Join(texts, "; "), nil
}

func freeText(s admission.Seat) string {
	gpu := fmt.Sprintf("GPU %s ", s.Name())
	if s.MIG != nil {
		gpu = fmt.Sprintf("MIG device %s (%s) ", s.Name(), s.MIG.Profile)
	}
	switch {
	case s.Closed != "":
		return gpu + s.Closed
	case s.Mode == grant.Exclusive || s.MIG != nil && s.Mode == grant.MIG:
		return gpu + "is taken whole"
	case s.Mode == "" && s.Outside > 0:
		return gpu + fmt.Sprintf("has %s free, and %s in use outside the ledger", s.Free, s.Outside)
	case s.Mode == "" && s.Held:
		return gpu + fmt.Sprintf("has %s free, and a container has it open without a grant", s.Free)
	case s.Mode == "":
		return gpu + "is free"
	case s.Mode == grant.MPS:
		return gpu + fmt.Sprintf("has %s of %s free (mode mps, %s)", s.Free, s.Space, daemon(s.Served))
	}
	return gpu + fmt.Sprintf("has %s of %s free (mode %s)", s.Free, s.Space, s.Mode)
}

// daemon describes the MPS daemon of a GPU, which prevents grants over other GPUs.
func daemon(gpus int) string {
	if gpus == 1 {
		return "with a daemon of its own"
	}
	return fmt.Sprintf("with one daemon over %d GPUs", gpus)
}

// Files returns the node's CDI files.
func (l Ledger) Files() cdi.Files { return cdi.Files{Node: l.Open(), Config: l.Config} }

// Release removes a grant. A missing grant is no error: an earlier release may have been
// interrupted.
func (l Ledger) Release(id grant.ID) error {
	l, err := l.opened()
	if err != nil {
		return err
	}
	_, err = grants.Release(l.Open(), id, false)
	var gone *grant.NotFoundError
	if errors.As(err, &gone) {
		return nil
	}
	return err
}
