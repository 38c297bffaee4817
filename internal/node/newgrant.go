package node

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// NewGrant returns the grant that is asked for, before it has its GPUs.
func NewGrant(n *Node, ask admission.Ask) (grant.Grant, grant.Reference, error) {
	random, err := host.Random()
	if err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g := grant.Grant{ID: grant.NewID(random), Owner: ask.Owner, Label: ask.Label, App: ask.App,
		Mode: ask.Mode, Strength: admission.StrengthOf(ask.Mode),
		Compute: ask.Compute, Source: ask.Source, Created: n.Host.Now().UTC().Truncate(time.Millisecond),
		For: ask.For, User: ask.User}
	if ask.TTL > 0 {
		g.Expires = g.Created.Add(ask.TTL)
	}
	reference := grant.Reference{ID: g.ID}
	if ask.Owner.HasSecret() {
		if random, err = host.Random(); err != nil {
			return grant.Grant{}, grant.Reference{}, err
		}
		if reference.Secret = ask.Secret; reference.Secret == "" {
			reference.Secret = grant.NewSecret(random)
		}
		g.Secret = grant.SecretHash(reference.Secret)
	}
	return g, reference, nil
}
