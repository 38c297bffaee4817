package admission

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

const (
	hintTerms = "ask for what the quota allows; the administrator sets what users may have in [[quota]] (" +
		grant.Docs + "users.md)"
	hintQuota = "release one of your grants (`gpuledger mine` lists them), ask for less, or wait for one " +
		"of them to end (--wait)"
)

// WithinQuota refuses shares that the user's quota, without the grant that is to be updated, has no
// room for.
func (a Ask) WithinQuota(shares []grant.Share, updated grant.ID, v grant.View) error {
	if err := a.checkTerms(); err != nil {
		return err
	}
	return a.checkQuota(shares, updated, v)
}

// checkTerms refuses what the user's quota never gives, whatever the user has.
func (a Ask) checkTerms() error {
	q := a.Quota
	if q == nil {
		return nil
	}
	longest := q.MaxTTL()
	switch {
	case !slices.Contains(q.MayModes(), a.Mode):
		return a.exceeds(hintTerms, "is for the modes %v", q.MayModes())
	case longest > 0 && (a.TTL <= 0 || a.TTL > longest):
		return a.exceeds(hintTerms, "is for %s at most, from when the grant is made", longest)
	case q.Memory > 0 && a.Memory > grant.Bytes(q.Memory):
		return a.exceeds(hintTerms, "is %s in all", grant.Bytes(q.Memory))
	case q.GPUs > 0 && a.count() > q.GPUs:
		return a.exceeds(hintTerms, "is %d GPUs in all", q.GPUs)
	}
	return nil
}

// checkQuota refuses shares that are more than the user's other grants leave of the quota.
func (a Ask) checkQuota(shares []grant.Share, updated grant.ID, v grant.View) error {
	q := a.Quota
	if q == nil {
		return nil
	}
	want := (grant.Grant{GPUs: shares}).Memory()
	has := UseOf(a.User, updated, v)
	hint := hintQuota
	if q.Memory > 0 && want > grant.Bytes(q.Memory) {
		hint = hintTerms
	}
	switch {
	case q.Memory > 0 && has.Memory+want > grant.Bytes(q.Memory):
		return a.exceeds(hint, "is %s in all, and %s of it is granted", grant.Bytes(q.Memory), has.Memory)
	case q.GPUs > 0 && has.GPUs+len(shares) > q.GPUs:
		return a.exceeds(hint, "is %d GPUs in all, and %d of them are granted", q.GPUs, has.GPUs)
	case has.Grants >= q.MaxGrants():
		return a.exceeds(hint, "is %d grants, and all of them are made", q.MaxGrants())
	case len(v.Damaged) > 0 && (q.Memory > 0 || q.GPUs > 0 || q.Grants > 0):
		return a.exceeds("the administrator finds the entry with `gpuledger check`",
			"cannot be counted: an entry of the ledger is damaged or missing")
	}
	return nil
}

func (a Ask) exceeds(hint, format string, args ...any) error {
	return &grant.Refusal{Code: grant.QuotaExceeded, Hint: hint, Message: fmt.Sprintf(
		"cannot grant %s in mode %s: your quota (of %s) ", a.wanted(), a.Mode, a.Quota.Whose()) +
		fmt.Sprintf(format, args...)}
}

// Use is what a user has of a quota.
type Use struct {
	Memory grant.Bytes
	GPUs   int // a share of a GPU counts as one
	Grants int
}

// UseOf adds up the grants of a user that count, but for the one that is to be updated.
func UseOf(user uint32, updated grant.ID, v grant.View) (u Use) {
	for _, g := range v.Grants {
		if g.User == user && g.ID != updated && g.Live(v.Now) {
			u.Memory, u.GPUs, u.Grants = u.Memory+g.Memory(), u.GPUs+len(g.GPUs), u.Grants+1
		}
	}
	return u
}

// Later reports whether an ask that was refused can be granted later, when other grants end and all
// GPUs answer. empty is the node without any grants.
func Later(ask Ask, refused error, empty grant.View, inv grant.Inventory, p grant.Policy) bool {
	var r *grant.Refusal
	if !errors.As(refused, &r) {
		return false
	}
	switch r.Code {
	case grant.NoCapacity, grant.ModeConflict, grant.QuotaExceeded:
		inv, known := answering(inv)
		if !known {
			return errors.Join(ask.Validate(), ask.checkTerms(), ask.Keepable(inv, p)) == nil
		}
		_, err := Place(ask, "", empty, inv, p)
		return err == nil
	}
	return false
}

// answering is an inventory as it may be when the GPUs that do not answer do so again. known is
// false if memory or MIG devices of one of them are not known: they may serve any ask.
func answering(inv grant.Inventory) (again grant.Inventory, known bool) {
	inv.GPUs, known = slices.Clone(inv.GPUs), true
	for i := range inv.GPUs {
		switch g := &inv.GPUs[i]; g.Health {
		case grant.Healthy, grant.Unpartitioned, grant.NoMemory:
		default:
			g.Health = grant.Healthy
			known = known && g.Memory > 0
		}
	}
	return inv, known
}
