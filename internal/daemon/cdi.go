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

// offers is the manager of the CDI files that a node has: they say what the snapshot and the ledger say, and those of grants whose time is over
// go. A node that offers nothing by CDI stays so.
type cdiManager struct {
	node   func() *node.Node
	config string // the configuration's path, for the hook in the files
	wait   func() time.Duration
	log    *logrus.Logger

	nextPass time.Time // not before
}

func (o *cdiManager) Name() string { return "cdi" }
func (o *cdiManager) Stop()        {}

// Ensure is in no hurry: a file that is out of date opens nothing, and `gpuledger inventory refresh` and `release` see to their own.
func (o *cdiManager) Ensure(context.Context) error {
	began, worked := time.Now(), schedule.CPUTime()
	if began.Before(o.nextPass) {
		return nil
	}
	defer func() { o.nextPass = schedule.Next(began, tidyEvery*o.wait(), schedule.CPUTime()-worked) }()
	n := o.node()
	if _, problem := n.Inventory(); problem != nil {
		return nil // another manager's
	}
	config, err := filepath.Abs(o.config)
	if err != nil {
		return err
	}
	changes, _, err := cdi.Files{Node: n, Config: config}.Tend()
	for _, c := range changes {
		o.log.WithField("file", c.Path).Infof("the CDI file is %s", c.What)
	}
	return err
}
