package userserver

import (
	"errors"
	"net/http"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// explain answers with what a verdict about a container of the caller is decided by.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	var ask users.ExplainRequest
	if !read(w, r, &ask) {
		return
	}
	if len(ask.References) > users.MaxReferences {
		fail(w, http.StatusBadRequest, errors.New("cannot explain: the container has too many references"))
		return
	}
	end := s.beginRead(r)
	if end == nil {
		return
	}
	defer end()
	n, p := s.Node(), peerOf(r)
	o, err := s.Ledger(n)
	var b node.Basis
	if err == nil {
		b, err = node.ReadBasis(n, o.View)
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	_ = send(w, basisOf(n, b, p.uid, ask.References))
}

// basisOf is a basis as a user may see it. A grant of another is anonymous. A user who knows its
// secret reads who may use it, as a create with that secret would say.
func basisOf(n *node.Node, b node.Basis, uid uint32, references []string) users.Basis {
	sent := users.Basis{Now: b.Now, Inventory: b.Inventory, Shim: b.Inventory.Shim,
		Limiter: b.Inventory.Limiter, Problem: b.Problem, Outside: b.Outside, Held: b.Held, MPS: b.MPS}
	_, sent.Paused = n.Paused()
	for _, d := range b.Damaged {
		sent.Damaged = append(sent.Damaged, grant.Damage{ID: d.ID, GPUs: d.GPUs})
	}
	for _, g := range b.Grants {
		shown := g
		if uid == 0 || g.User != uid {
			shown = anonymous(g)
		}
		if g.ByContainer() { // it counts in the part for which containers may ask
			shown.Source = g.Source
		}
		if proves(references, g) {
			shown.Owner, shown.For = g.Owner, g.For
			sent.Opened = append(sent.Opened, g.ID)
		}
		sent.Grants = append(sent.Grants, users.List(shown)[0])
	}
	return sent
}

// proves reports whether one of the references is proof for a grant.
func proves(references []string, g grant.Grant) bool {
	for _, text := range references {
		if r, err := grant.ParseReference(text); err == nil && r.ID == g.ID && r.Opens(g.Secret) {
			return true
		}
	}
	return false
}
