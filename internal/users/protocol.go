package users

import (
	"errors"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Version is the version of the protocol: HTTP with JSON on a unix socket. gpuledger and gpuledgerd
// of one release use the same; another one gets an error. The kernel says who asks.
const Version = "1"

// The paths of the protocol.
const (
	ViewPath    = "/v" + Version + "/view"    // GET: NodeView
	GrantPath   = "/v" + Version + "/grant"   // POST GrantRequest: lines of Event
	RunPath     = "/v" + Version + "/run"     // POST GrantRequest: lines of Event; for the caller
	ReleasePath = "/v" + Version + "/release" // POST ReleaseRequest: Event
	UpdatePath  = "/v" + Version + "/update"  // POST UpdateRequest: Event
	ExplainPath = "/v" + Version + "/explain" // POST ExplainRequest: Basis
)

// MaxBody is the largest request, in bytes.
const MaxBody = 16 << 10

// MaxWait is how long a request waits at most.
const MaxWait = 7 * 24 * time.Hour

// NodeView is what a user may see of the node: the grants of others without their owners, labels,
// users and containers.
type NodeView struct {
	Now     time.Time              `json:"now"`
	GPUs    []grant.GPU            `json:"gpus"`
	Free    map[string]grant.Bytes `json:"free"` // by UUID of a GPU or MIG device
	Grants  []Listed               `json:"grants"`
	Damaged int                    `json:"damaged"` // entries of the ledger that cannot be read
	Problem *grant.Problem         `json:"problem,omitempty"`
	// Paused is until when refusals are switched off; zero: until enabled.
	Paused *time.Time        `json:"paused,omitempty"`
	Used   *watch.Comparison `json:"used,omitempty"`
	User   uint32            `json:"user"` // who asks, as the kernel says
	Quota  *Quota            `json:"quota,omitempty"`
	// QuotaProblem is why it is not known which quota is the caller's.
	QuotaProblem string `json:"quota_problem,omitempty"`
}

// Listed is a grant as it is sent.
type Listed struct {
	ID              grant.ID      `json:"id"`
	Owner           grant.Owner   `json:"owner"`
	Label           string        `json:"label"`
	App             string        `json:"app,omitempty"`
	Mode            string        `json:"mode"`
	Strength        string        `json:"strength"`
	ComputeStrength string        `json:"compute_strength,omitempty"`
	GPUs            []grant.Share `json:"gpus"`
	Compute         int           `json:"compute"` // percent
	Source          string        `json:"source"`
	Created         time.Time     `json:"created"`
	Expires         time.Time     `json:"expires"` // zero: never
	Draining        bool          `json:"draining,omitempty"`
	For             []grant.Tie   `json:"for,omitempty"`
	User            uint32        `json:"user"`
	Bindings        []Bound       `json:"bindings"`
}

// Bound is a container that uses a grant.
type Bound struct {
	Container string     `json:"container"`
	Weaker    string     `json:"weaker,omitempty"`
	Life      grant.Life `json:"life"`
	PID       int        `json:"pid"`
}

// List makes grants ready to be sent. Their secrets' hashes are left out.
func List(grants ...grant.Grant) []Listed {
	all := make([]Listed, len(grants))
	for i, g := range grants {
		all[i] = Listed{ID: g.ID, Owner: g.Owner, Label: g.Label, App: g.App, Mode: string(g.Mode),
			Strength: string(g.Strength), ComputeStrength: string(g.ComputeStrength), GPUs: g.GPUs,
			Compute: g.Compute, Source: g.Source, Created: g.Created, Expires: g.Expires,
			Draining: g.Draining, For: g.For, User: g.User}
		for _, b := range g.Bindings {
			all[i].Bindings = append(all[i].Bindings, Bound{b.Container, b.Weaker, b.Life, b.PID})
		}
	}
	return all
}

// Grant is the grant that was sent.
func (l Listed) Grant() grant.Grant {
	g := grant.Grant{ID: l.ID, Owner: l.Owner, Label: l.Label, App: l.App, Mode: grant.Mode(l.Mode),
		Strength: grant.Strength(l.Strength), ComputeStrength: grant.Strength(l.ComputeStrength),
		GPUs: l.GPUs, Compute: l.Compute, Source: l.Source, Created: l.Created, Expires: l.Expires,
		Draining: l.Draining, For: l.For, User: l.User}
	for _, b := range l.Bindings {
		g.Bindings = append(g.Bindings, grant.Binding{Grant: l.ID, Container: b.Container, Weaker: b.Weaker,
			Life: b.Life, PID: b.PID})
	}
	return g
}

// All are the grants that were sent.
func (v NodeView) All() []grant.Grant {
	all := make([]grant.Grant, len(v.Grants))
	for i, l := range v.Grants {
		all[i] = l.Grant()
	}
	return all
}

// Quota is a quota as it is sent, and as scripts read it.
type Quota struct {
	User   string       `json:"user,omitempty"`
	Group  string       `json:"group,omitempty"`
	Memory grant.Bytes  `json:"memory"` // 0: no bound
	GPUs   int          `json:"gpus"`   // 0: no bound
	Modes  []grant.Mode `json:"modes"`
	Grants int          `json:"grants"` // never 0
	TTL    string       `json:"ttl"`
	Idle   string       `json:"idle"`
}

// Shown is a quota ready to be sent; nil of nil.
func Shown(q *grant.Quota) *Quota {
	if q == nil {
		return nil
	}
	return &Quota{q.User, q.Group, grant.Bytes(q.Memory), q.GPUs, q.MayModes(), q.MaxGrants(), q.TTL, q.Idle}
}

// Terms is what a caller wants granted.
type Terms struct {
	Memory  grant.Bytes   `json:"memory"`
	GPUs    int           `json:"gpus"`
	Compute int           `json:"compute"`
	Mode    grant.Mode    `json:"mode"`
	Place   string        `json:"place,omitempty"`
	Names   []string      `json:"names,omitempty"`
	Profile string        `json:"profile,omitempty"`
	Label   string        `json:"label,omitempty"`
	App     string        `json:"app,omitempty"`
	TTL     time.Duration `json:"ttl,omitempty"`
	Owner   grant.Owner   `json:"owner"`
	For     []grant.Tie   `json:"for,omitempty"`
	User    uint32        `json:"user,omitempty"`
}

// TermsOf are those of an ask.
func TermsOf(a admission.Ask) Terms {
	return Terms{a.Memory, a.GPUs, a.Compute, a.Mode, string(a.Place), a.Names, a.Profile, a.Label,
		a.App, a.TTL, a.Owner, a.For, a.User}
}

// Ask is the ask with these terms.
func (t Terms) Ask() admission.Ask {
	return admission.Ask{Memory: t.Memory, GPUs: t.GPUs, Compute: t.Compute, Mode: t.Mode,
		Place: grant.Placement(t.Place), Names: t.Names, Profile: t.Profile, Label: t.Label, App: t.App,
		TTL: t.TTL, Owner: t.Owner, For: t.For, User: t.User}
}

// GrantRequest is a request for a grant.
type GrantRequest struct {
	Terms
	// Secret is that of the new grant, chosen by the client. A request that is sent again, because
	// the daemon was restarted, finds by it what was granted meanwhile.
	Secret string        `json:"secret"`
	Wait   time.Duration `json:"wait"` // 0: an answer at once
	// Since is when the client began to wait. It orders the requests of one user only.
	Since time.Time `json:"since"`
}

// ReleaseRequest is a request to release grants.
type ReleaseRequest struct {
	ID grant.ID `json:"id"`
}

// UpdateRequest is a request to change a grant. A member that is missing stays as it is.
type UpdateRequest struct {
	ID      grant.ID       `json:"id"`
	Memory  *grant.Bytes   `json:"memory,omitempty"`  // over all of its GPUs
	Compute *int           `json:"compute,omitempty"` // percent; 0: no share any more
	TTL     *time.Duration `json:"ttl,omitempty"`     // from now; 0: for ever
}

// ExplainRequest asks for what a verdict about a container of the caller is decided by. The
// container is judged by the client: what it names, as files, the client may read and gpuledgerd
// does not.
type ExplainRequest struct {
	References []string `json:"references"` // those in its config.json, at most MaxReferences
}

// MaxReferences is how many references a container of a user is explained with.
const MaxReferences = 64

// Basis is what a verdict is decided by, as the caller may see it.
type Basis struct {
	Now       time.Time              `json:"now"`
	Inventory grant.Inventory        `json:"inventory"`
	Shim      grant.Shim             `json:"shim"`
	Limiter   grant.Limiter          `json:"limiter"`
	Problem   *grant.Problem         `json:"problem,omitempty"` // of the inventory
	Grants    []Listed               `json:"grants"`
	Opened    []grant.ID             `json:"opened"`            // those whose secrets the caller knows
	Damaged   []grant.Damage         `json:"damaged,omitempty"` // without paths and errors
	Outside   map[string]grant.Bytes `json:"outside,omitempty"` // by UUID
	Held      map[string]bool        `json:"held,omitempty"`    // by UUID
	MPS       []grant.MPSDaemon      `json:"mps,omitempty"`
	Paused    bool                   `json:"paused"` // refusals are switched off
}

// View is the whole ledger as it was sent. references are those that were asked with.
func (b Basis) View(references []string) grant.View {
	v := grant.View{Now: b.Now, Damaged: b.Damaged, Outside: b.Outside, Held: b.Held, MPS: b.MPS}
	for _, l := range b.Grants {
		g := l.Grant()
		for i := range g.Bindings { // none of them is of the container that is explained
			g.Bindings[i].RuntimeRoot = "/"
		}
		v.Grants = append(v.Grants, g)
	}
	for _, text := range references {
		r, err := grant.ParseReference(text)
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.ID == r.ID })
		if err == nil && i >= 0 && slices.Contains(b.Opened, r.ID) {
			v.Grants[i].Secret = grant.SecretHash(r.Secret)
		}
	}
	return v
}

// Event is a line of an answer. The last one has a grant or an error.
type Event struct {
	Place    int     `json:"place,omitempty"` // in the queue, from 1
	Of       int     `json:"of,omitempty"`    // how many wait
	Grant    *Listed `json:"grant,omitempty"`
	Sentence string  `json:"sentence,omitempty"` // about the grant
	Error    *Error  `json:"error,omitempty"`
}

// Error is an error with what decides about the exit status.
type Error struct {
	Kind    string     `json:"kind,omitempty"` // "refusal", "not-found", "usage" or ""
	Code    grant.Code `json:"code,omitempty"`
	Message string     `json:"message"`
	Hint    string     `json:"hint,omitempty"`
}

// ErrorOf makes an error ready to be sent.
func ErrorOf(err error) *Error {
	var refusal *grant.Refusal
	var unknown *grant.NotFoundError
	var usage *grant.UsageError
	switch {
	case errors.As(err, &refusal):
		return &Error{Kind: "refusal", Code: refusal.Code, Message: refusal.Message, Hint: refusal.Hint}
	case errors.As(err, &unknown):
		return &Error{Kind: "not-found", Message: unknown.Message}
	case errors.As(err, &usage):
		return &Error{Kind: "usage", Message: usage.Message}
	}
	return &Error{Message: err.Error()}
}

// Err is the error as it was before ErrorOf; nil of nil.
func (e *Error) Err() error {
	switch {
	case e == nil:
		return nil
	case e.Kind == "refusal":
		return &grant.Refusal{Code: e.Code, Message: e.Message, Hint: e.Hint}
	case e.Kind == "not-found":
		return &grant.NotFoundError{Message: e.Message}
	case e.Kind == "usage":
		return &grant.UsageError{Message: e.Message}
	}
	return errors.New(e.Message)
}
