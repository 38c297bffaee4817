package daemon

import (
	"context"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/node"
)

// auditManager is the manager that counts what the audit log records.
type auditManager struct {
	auditlog.Counter
	node func() *node.Node
}

func (a *auditManager) Name() string { return "audit" }

func (a *auditManager) Stop() { a.Close() }

func (a *auditManager) Ensure(context.Context) error {
	a.Follow(a.node().Policy.Audit.File)
	return a.Poll()
}
