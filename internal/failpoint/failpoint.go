// Package failpoint marks the dangerous lines: those between two steps where a crash must leave
// nothing worse than leftovers. Built with the tag "failpoint", a process kills itself at the line
// that the environment variable GPULEDGER_FAILPOINT names; without the tag a mark costs nothing.
package failpoint

// Names lists every mark, so that a torture test can crash at each.
var Names = []string{
	"ledger/locked",
	"ledger/put-owner-linked",
	"ledger/put-linked",
	"ledger/put-written",
	"ledger/put-kept-old",
	"ledger/put-renamed",
	"ledger/put-synced",
	"ledger/put-forgot-old",
	"ledger/put-unlinked",
	"ledger/delete-renamed",
	"ledger/delete-synced",
	"ledger/delete-removed",
	"ledger/delete-unbound",
	"ledger/delete-owner-unlinked",
	"ledger/delete-unlinked",
	"ledger/bind-linked",
	"ledger/bind-written",
	"ledger/bind-unlinked",
	"ledger/unbind-removed",
	"ledger/unbind-unlinked",
	"ledger/sweep-removed",
	"ledger/repaired",
	"node/adopted",
	"node/limited",
	"node/limit-lowered",
	"node/grant-changed",
	"node/driven-lowered",
	"node/driven-put",
	"limiter/recorded",
	"limiter/set",
	"limiter/cleared",
	"node/bound",
	"runtime/admitted",
	"runtime/edited",
	"configure/recorded",
	"configure/changed",
	"configure/inherited",
	"configure/restored",
	"configure/forgotten",
	"hook/admitted",
	"inject/removed",
	"inject/ruled",
	"inject/nodes",
}

// Variable is the environment variable that names the mark to die at: NAME, or NAME:N for the Nth
// time it is passed.
const Variable = "GPULEDGER_FAILPOINT"
