// Package book is the node's ledger as the cluster's agents use it. The ledger has the last word: what the scheduler
// allocated is entered only where it fits.
package book

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/cdi"
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Book is a node's ledger with its CDI files.
type Book struct {
	Open   func() *node.Node // the node as its configuration describes it now
	Config string            // absolute path of the configuration, for the hook in CDI files

	References string // directory of references that outlive a boot; "": none does
}

// Page is the ledger at a moment.
type Page struct {
	node.Overview
	Node *node.Node
}

// Read gives the ledger and the inventory. An inventory that can't be used is an error: nothing can be placed by it. A page that comes
// with an error has the node, and where its Problem is the error, what the ledger has, too.
func (b Book) Read() (Page, error) {
	n := b.Open()
	if n.Broken != nil {
		return Page{Node: n}, n.Broken
	}
	o, err := n.Overview()
	if err != nil {
		return Page{Node: n}, err
	}
	if o.Problem != nil {
		err = &grant.Refusal{Code: o.Problem.Code, Message: o.Problem.Message, Hint: o.Problem.Hint}
	}
	return Page{Overview: o, Node: n}, err
}

// As is the book by the configuration that a page was read with, whatever stands in its file by now.
func (b Book) As(p Page) Book {
	b.Open = func() *node.Node { return p.Node }
	return b
}

// Of are the grants that one of the agents has entered.
func (p Page) Of(source string) []grant.Grant {
	return slices.DeleteFunc(slices.Clone(p.Grants), func(g grant.Grant) bool { return g.Source != source })
}

// Seats are the GPUs with what is left by everybody but the agent that has this source; "" leaves nobody out.
func (p Page) Seats(without string) ([]admission.Seat, error) {
	v := p.View
	if without != "" {
		v.Grants = slices.DeleteFunc(slices.Clone(v.Grants), func(g grant.Grant) bool { return g.Source == without })
	}
	return admission.Seats(v, p.Inventory, p.Node.Policy)
}

// Held is an owner's grant, where it has one.
func (p Page) Held(owner grant.Owner) (grant.Grant, bool) {
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool { return g.Owner == owner })
	if i < 0 {
		return grant.Grant{}, false
	}
	return p.Grants[i], true
}

// Offer is what a container of this owner would get by a grant of this mode here, and by which strength it would be held to it. It is the
// judgement of an admission, so nothing is promised that one would not keep.
func (p Page) Offer(owner grant.Owner, mode grant.Mode, seat admission.Seat) grant.Verdict {
	g := grant.Grant{ID: "g-aaaaaaaaaaaa", Owner: owner, Mode: mode, Strength: admission.StrengthOf(mode), GPUs: []grant.Share{{UUID: seat.UUID(), Index: seat.GPU.Index, Memory: seat.Memory()}}}
	return admission.Offer(g, p.Now, p.Inventory, p.Node.Policy)
}

// Enter makes a grant. Its errors may stand in a pod's events: they name no other tenant.
func (b Book) Enter(ask admission.Ask) (grant.Grant, grant.Reference, error) {
	n := b.Open()
	g, reference, err := n.Grant(ask)
	var refusal *grant.Refusal
	if errors.As(err, &refusal) && (refusal.Code == grant.NoCapacity || refusal.Code == grant.ModeConflict) {
		return g, reference, b.noRoom(ask, refusal.Code)
	}
	return g, reference, err
}

// Widen gives a grant more memory where it is. Its errors are those of Enter.
func (b Book) Widen(g grant.Grant, memory grant.Bytes) error {
	_, err := b.Open().Change(g.ID, node.Change{Memory: &memory})
	var refusal *grant.Refusal
	if errors.As(err, &refusal) && refusal.Code == grant.NoCapacity {
		return b.noRoom(admission.Ask{Memory: memory, Mode: g.Mode, GPUs: len(g.GPUs)}, refusal.Code)
	}
	return err
}

// noRoom says what is free where, without the holders that the administrator is told.
func (b Book) noRoom(ask admission.Ask, code grant.Code) error {
	p, err := b.Read()
	if err != nil {
		return err
	}
	room, err := p.Room()
	if err != nil {
		return err
	}
	return &grant.Refusal{Code: code, Message: fmt.Sprintf("cannot grant %s: %s", describe(ask), room), Hint: "ask for less, or wait until a grant is released"}
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

// Room says for each GPU what is free there: "GPU 0 has 4GiB of 16160MiB free (mode limit)".
func (p Page) Room() (string, error) {
	seats, err := p.Seats("")
	if err != nil {
		return "", err
	}
	if len(seats) == 0 {
		return "this node has no GPU", nil
	}
	texts := make([]string, len(seats))
	for i, s := range seats {
		texts[i] = room(s)
	}
	return strings.Join(texts, "; "), nil
}

func room(s admission.Seat) string {
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
	case s.Mode == "":
		return gpu + "is free"
	case s.Mode == grant.MPS:
		return gpu + fmt.Sprintf("has %s of %s free (mode mps, %s)", s.Free, s.Space, daemon(s.Served))
	}
	return gpu + fmt.Sprintf("has %s of %s free (mode %s)", s.Free, s.Space, s.Mode)
}

// daemon is what keeps a GPU in mode mps from grants over other GPUs.
func daemon(gpus int) string {
	if gpus == 1 {
		return "with a daemon of its own"
	}
	return fmt.Sprintf("with one daemon over %d GPUs", gpus)
}

// Files are the node's CDI files.
func (b Book) Files() cdi.Files { return cdi.Files{Node: b.Open(), Config: b.Config} }

// Release gives a grant up. One that is gone already is no error: whoever releases may have been stopped half-way.
func (b Book) Release(id grant.ID) error {
	_, err := b.Open().Release(id, false)
	var gone *grant.NotFoundError
	if errors.As(err, &gone) {
		return nil
	}
	return err
}
