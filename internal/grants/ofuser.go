package grants

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// ReleaseOf is Release for a user of the node. A grant of another user is *grant.NotFoundError, as
// one that does not exist.
func ReleaseOf(n *node.Node, id grant.ID, user uint32) (grant.Grant, error) {
	return releaseIf(n, id, func(g grant.Grant) error { return onlyOf(user, id, g, nil) })
}

// onlyOf is the error of reading a grant, as a user of the node may see it: a grant of another user
// is not there.
func onlyOf(user uint32, id grant.ID, g grant.Grant, err error) error {
	var unknown *grant.NotFoundError
	if errors.As(err, &unknown) || err == nil && (g.User != user || user == 0) {
		return &grant.NotFoundError{Message: fmt.Sprintf("you have no grant %s", id)}
	}
	return err
}

// errInUse says that a grant is not idle.
var errInUse = errors.New("a container uses it")

// InUse reports whether a container uses a grant. Errors are those of ledger.Tx.Get.
func InUse(n *node.Node, id grant.ID) (used bool, err error) {
	err = n.Ledger.View(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		used = len(g.Bindings) > 0
		return err
	})
	return used, err
}

// ReleaseUnused releases a grant unless a container uses it by now.
func ReleaseUnused(n *node.Node, id grant.ID) (released bool, err error) {
	return releaseUnless(n, id, func(g grant.Grant) bool { return len(g.Bindings) > 0 })
}

// ReleaseIdle releases a grant unless a container uses it by now, or has used it since its stamp of
// use was taken (ledger.Bindings).
func ReleaseIdle(n *node.Node, id grant.ID, taken host.Stamp) (released bool, err error) {
	return releaseUnless(n, id, func(g grant.Grant) bool {
		return len(g.Bindings) > 0 || n.Ledger.Bindings.UseStamp(id) != taken
	})
}

func releaseUnless(n *node.Node, id grant.ID, used func(grant.Grant) bool) (released bool, err error) {
	_, err = releaseIf(n, id, func(g grant.Grant) error {
		if used(g) {
			return errInUse
		}
		return nil
	})
	if err == errInUse {
		return false, nil
	}
	return err == nil, err
}

// FindBySecret finds the grant of a user that was made with a secret: by the secret's hash, or by
// the grant's id if its owner has no secret (node.NewGrant). One that is being drained does not
// count. The request for it was made before, and its answer was lost. The grant is durable when
// FindBySecret returns: the process that made it may have been killed just before that.
func FindBySecret(n *node.Node, user uint32, secret string) (found grant.Grant, ok bool, err error) {
	o, err := Read(n)
	if err != nil {
		return found, false, err
	}
	return FindBySecretIn(n, o, user, secret)
}

// FindBySecretIn is FindBySecret in a ledger that was read already. It reads the ledger again if an
// entry could not be read: that may be the one, and an error of the disk may be over. An entry that
// is damaged is passed over.
func FindBySecretIn(n *node.Node, o Overview, user uint32, secret string) (grant.Grant, bool, error) {
	g, found := bySecret(o, user, secret)
	if !found && len(o.Damaged) > 0 {
		var err error
		if o, err = Read(n); err != nil {
			return g, false, err
		}
		g, found = bySecret(o, user, secret)
	}
	if !found {
		return g, false, nil
	}
	return g, true, n.Ledger.Persist()
}

// bySecret looks for the grant among those that could be read.
func bySecret(o Overview, user uint32, secret string) (g grant.Grant, found bool) {
	hash, id := grant.SecretHash(secret), grant.IDBySecret(secret)
	i := slices.IndexFunc(o.Grants, func(g grant.Grant) bool {
		is := g.Secret == hash || g.ID == id && !g.Owner.HasSecret()
		return g.User == user && is && !g.Draining
	})
	if i < 0 {
		return g, false
	}
	return o.Grants[i], true
}

// releaseIf is Release without force, of a grant that may be released.
func releaseIf(n *node.Node, id grant.ID, may func(grant.Grant) error) (grant.Grant, error) {
	var g grant.Grant
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		var err error
		if g, err = get(tx, id); err == nil {
			err = may(g)
		}
		if err != nil {
			return err
		}
		g.Draining = len(g.Bindings) > 0
		return put(n, tx, g)
	})
	return g, err
}
