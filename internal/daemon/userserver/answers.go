package userserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// view answers with what the caller may see.
func (s *Server) view(w http.ResponseWriter, r *http.Request) {
	end := s.beginRead(r)
	if end == nil {
		return
	}
	defer end()
	n, p := s.Node(), peerOf(r)
	o, err := s.Ledger(n)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	view, err := nodeViewOf(n, o, p.uid)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	_ = send(w, view)
}

// nodeViewOf is what a user may see of the node.
func nodeViewOf(n *node.Node, o grants.Overview, uid uint32) (users.NodeView, error) {
	free, err := admission.Free(o.View, o.Inventory, n.Policy)
	if err != nil {
		return users.NodeView{}, err
	}
	view := users.NodeView{Now: o.Now, GPUs: o.Inventory.GPUs, Free: free, Damaged: len(o.Damaged),
		Problem: o.Problem, User: uid}
	quota, err := users.QuotaOf(n.Policy.Quotas, uid)
	if view.Quota = users.Shown(quota); err != nil {
		view.QuotaProblem = err.Error()
	}
	mine := map[grant.ID]bool{}
	shown := make([]grant.Grant, len(o.Grants))
	for i, g := range o.Grants {
		shown[i] = g
		if mine[g.ID] = uid != 0 && g.User == uid; !mine[g.ID] {
			shown[i] = anonymous(g)
		}
	}
	view.Grants = users.List(shown...)
	if pause, paused := n.Paused(); paused {
		view.Paused = &pause.Until
	}
	if boot, err := n.Host.BootID(); err == nil {
		if c, ok := watch.Recent(n.Policy.RunDir, boot, n.Policy.Daemon.Interval, n.Host.Now()); ok {
			c.Findings = nil // they name others' containers and processes
			c.Grants = slices.DeleteFunc(slices.Clone(c.Grants),
				func(u watch.GrantUse) bool { return !mine[u.ID] })
			view.Used = &c
		}
	}
	return view, nil
}

// anonymous is a grant as other users see it.
func anonymous(g grant.Grant) grant.Grant {
	g.Owner, g.Label, g.App, g.User, g.For, g.Source = "another", "", "", 0, nil, "another"
	bindings := make([]grant.Binding, len(g.Bindings))
	for i, b := range g.Bindings {
		bindings[i] = grant.Binding{Grant: b.Grant, Container: "another", Life: b.Life}
	}
	g.Bindings = bindings
	return g
}

// release releases a grant of the caller.
func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	var ask users.ReleaseRequest
	if !read(w, r, &ask) {
		return
	}
	end := s.beginRead(r)
	if end == nil {
		return
	}
	n, p := s.Node(), peerOf(r)
	var g grant.Grant
	err := s.has(n, p, ask.ID)
	end()
	if err == nil && !s.inTurn(r.Context(), p, func() { g, err = grants.ReleaseOf(n, ask.ID, p.uid) }) {
		return
	}
	if err != nil {
		fail(w, http.StatusOK, err)
		return
	}
	node.RecordUser(n, "released", p.uid, g.ID, nil)
	s.updateNodes(r.Context())
	_ = send(w, users.Event{Grant: &users.List(g)[0]})
	s.queue.Poke()
}

// has is the error of a caller without such a grant, who takes neither a turn nor the ledger's
// lock.
func (s *Server) has(n *node.Node, p peer, id grant.ID) error {
	o, err := s.Ledger(n)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(o.Grants, func(g grant.Grant) bool {
		return g.ID == id && g.User == p.uid && p.uid != 0
	}) {
		return nil
	}
	return &grant.NotFoundError{Message: fmt.Sprintf("you have no grant %s", id)}
}

// update changes a grant of the caller. Driver limits can take as long as root's update waits for
// them, so the caller may have gone meanwhile.
func (s *Server) update(w http.ResponseWriter, r *http.Request) {
	var change users.UpdateRequest
	if !read(w, r, &change) {
		return
	}
	n, p := s.Node(), peerOf(r)
	_, _, err := changeOf(n, p, change) // who may change nothing waits for no turn
	var g grant.Grant
	if err == nil && !s.inTurn(r.Context(), p, func() { n, g, err = s.updateOf(p, change) }) {
		return
	}
	if err != nil {
		s.refuse(w, n, p, err)
		return
	}
	node.RecordUser(n, "changed", p.uid, g.ID, nil)
	_ = send(w, users.Event{Grant: &users.List(g)[0], Sentence: grants.Sentence(n, "changed", g)})
	s.queue.Poke()
}

// updateOf changes a grant by the configuration of now, which may have another quota than when the
// request came.
func (s *Server) updateOf(p peer, change users.UpdateRequest) (n *node.Node, g grant.Grant, err error) {
	n = s.Node()
	c, q, err := changeOf(n, p, change)
	if err == nil {
		g, err = grants.UpdateOf(n, change.ID, c, p.uid, *q)
	}
	return n, g, err
}

// changeOf is what a request changes, and the quota by which it is judged.
func changeOf(n *node.Node, p peer, change users.UpdateRequest) (grants.Change, *grant.Quota, error) {
	c := grants.Change{Memory: change.Memory, Compute: change.Compute, TTL: change.TTL}
	_, err := grant.ParseID(string(change.ID))
	if err != nil || c == (grants.Change{}) || c.TTL != nil && *c.TTL < 0 {
		return c, nil, &grant.UsageError{
			Message: "cannot change a grant: want its id, and what to change"}
	}
	q, err := userqueue.QuotaOf(n, p.uid)
	return c, q, err
}

// updateNodes has users' access to device nodes follow the ledger. The next pass of the daemon does
// what fails here.
func (s *Server) updateNodes(ctx context.Context) {
	if err := s.Nodes(ctx); err != nil {
		s.Log.WithError(err).Debug("users' access to device nodes waits for the next pass")
	}
}

// maxNames is the largest number of GPUs that a user can name, because the ledger has the names.
const maxNames = 64

// grant answers with a grant at once, or has the caller wait in the queue for one.
func (s *Server) grant(w http.ResponseWriter, r *http.Request) {
	var request users.GrantRequest
	if !read(w, r, &request) {
		return
	}
	n, p := s.Node(), peerOf(r)
	ask, err := askOf(n, p, request)
	if err != nil {
		s.refuse(w, n, p, err)
		return
	}
	s.serveAsk(r.Context(), w, p, ask, request, nil)
}

// askOf is what a request asks for, with what the kernel says about the caller in place of what the
// client says, and without the quota.
func askOf(n *node.Node, p peer, request users.GrantRequest) (admission.Ask, error) {
	ask := request.Ask()
	ask.Secret = request.Secret
	if !grant.IsSecret(request.Secret) {
		return ask, &grant.UsageError{Message: "cannot grant: the request has no secret"}
	}
	if len(ask.Names) > maxNames {
		return ask, &grant.UsageError{Message: fmt.Sprintf("cannot grant: want at most %d GPUs", maxNames)}
	}
	if err := grant.CheckText(ask.Label); err != nil {
		return ask, &grant.UsageError{Message: "cannot grant: label: " + err.Error()}
	}
	if err := grant.CheckText(ask.App); err != nil {
		return ask, &grant.UsageError{Message: "cannot grant: application: " + err.Error()}
	}
	if _, err := grant.ParseOwner(string(ask.Owner)); err != nil {
		return ask, &grant.UsageError{Message: "cannot grant: " + err.Error()}
	}
	if p.root {
		ask.Source = "cli"
		return ask, nil
	}
	if ask.Owner != grant.Bearer || len(ask.For) > 0 || ask.User != 0 && ask.User != p.uid {
		return ask, &grant.Refusal{Code: grant.QuotaExceeded,
			Message: "cannot grant: only root grants to another user, a pod or a claim",
			Hint:    "leave --user, --owner and --for out"}
	}
	ask.User, ask.Source = p.uid, grant.ByUser
	_, err := userqueue.InQuota(n, ask)
	var unknown *users.LookupError
	if request.Wait > 0 && errors.As(err, &unknown) {
		return ask, nil // it waits for the quota, too
	}
	return ask, err
}
