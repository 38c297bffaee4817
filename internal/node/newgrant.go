package node

import (
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// NewGrant returns the grant that is asked for, before it begins and has its GPUs. By the secret of
// the ask, if it has one, grants.FindBySecret finds the grant.
func NewGrant(ask admission.Ask) (grant.Grant, grant.Reference, error) {
	random, err := host.Random()
	if err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g := grant.Grant{ID: grant.NewID(random), Owner: ask.Owner, Label: ask.Label, App: ask.App,
		Mode: ask.Mode, Strength: admission.StrengthOf(ask.Mode),
		Compute: ask.Compute, Source: ask.Source, For: ask.For, User: ask.User,
		MinimumStrength: ask.MinimumStrength}
	reference := grant.Reference{ID: g.ID}
	if ask.Owner.HasSecret() {
		if random, err = host.Random(); err != nil {
			return grant.Grant{}, grant.Reference{}, err
		}
		if reference.Secret = ask.Secret; reference.Secret == "" {
			reference.Secret = grant.NewSecret(random)
		}
		g.Secret = grant.SecretHash(reference.Secret)
	} else if ask.Secret != "" {
		g.ID = grant.IDBySecret(ask.Secret)
		reference.ID = g.ID
	}
	return g, reference, nil
}
