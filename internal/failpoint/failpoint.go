// Package failpoint is fault injection for tests of crashes. It marks the dangerous lines: a crash
// between two steps there must leave nothing worse than leftovers. In a build with the tag
// "failpoint", a process kills itself at the mark that the environment variable GPULEDGER_FAILPOINT
// names. Without the tag a mark costs nothing.
package failpoint

// Names lists every mark, so that a crash test can stop at each.
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
	"grants/tree",
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

// Variable is the environment variable with the mark at which the process kills itself: NAME, or
// NAME:N for the Nth pass.
const Variable = "GPULEDGER_FAILPOINT"
