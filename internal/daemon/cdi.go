package daemon

import (
	"context"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/cdi"
	"github.com/gpuledger/gpuledger/internal/daemon/schedule"
	"github.com/gpuledger/gpuledger/internal/node"
)

// cdiManager is the manager of the node's CDI files. They follow the inventory and the ledger, and
// those of grants that are over are removed. On a node without CDI files it does nothing.
type cdiManager struct {
	node   func() *node.Node
	config string // the configuration's path, for the hook in the files
	wait   func() time.Duration
	log    *logrus.Logger

	nextPass time.Time // no pass before
}

func (o *cdiManager) Name() string { return "cdi" }
func (o *cdiManager) Stop()        {}

// Ensure works rarely: an outdated file gives no access, and `gpuledger inventory refresh` and
// `release` update their own files.
func (o *cdiManager) Ensure(context.Context) error {
	began, worked := time.Now(), schedule.CPUTime()
	if began.Before(o.nextPass) {
		return nil
	}
	defer func() { o.nextPass = schedule.Next(began, removalEvery*o.wait(), schedule.CPUTime()-worked) }()
	n := o.node()
	if _, problem := n.Inventory(); problem != nil {
		return nil // reported by another manager
	}
	config, err := filepath.Abs(o.config)
	if err != nil {
		return err
	}
	changes, _, err := cdi.Files{Node: n, Config: config}.Update()
	for _, c := range changes {
		o.log.WithField("file", c.Path).Infof("the CDI file is %s", c.What)
	}
	return err
}
