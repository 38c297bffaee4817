package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// inventory is the manager of the snapshot: after a boot or another driver it has the node scanned again, so that nobody has
// to. It calls `gpuledger inventory refresh` for it, because NVML can hang and crash: then a child does, which can be ended.
type inventory struct {
	node    func() *node.Node
	config  string   // the configuration's path
	command []string // what refreshes
	log     *logrus.Logger

	retry   time.Time // not before
	wait    time.Duration
	failure error // of the last attempt
}

// The waits between attempts that fail, and the time for one: NVML needs seconds on a node with many GPUs, more where the
// driver is only loaded by it.
const (
	firstScan = time.Second
	lastScan  = time.Minute
	scanTime  = time.Minute
)

func newInventory(n func() *node.Node, config string, log *logrus.Logger) *inventory {
	return &inventory{node: n, config: config, command: []string{beside("gpuledger"), "inventory", "refresh"}, log: log}
}

// beside is the program of that name that was installed with this one, or else the first in $PATH.
func beside(name string) string {
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), name); isFile(path) {
			return path
		}
	}
	return name
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (i *inventory) Name() string { return "inventory" }
func (i *inventory) Stop()        {}

// Ensure refreshes a snapshot that is missing or stale.
func (i *inventory) Ensure(ctx context.Context) error {
	_, problem := i.node().Inventory()
	if problem == nil {
		i.failure, i.wait = nil, 0
		return nil
	}
	if time.Now().Before(i.retry) {
		return i.failure
	}
	if i.failure = i.refresh(ctx); i.failure != nil {
		i.wait = min(max(2*i.wait, firstScan), lastScan)
		i.retry = time.Now().Add(i.wait)
		return i.failure
	}
	i.log.WithField("reason", problem.Message).Info("the inventory is refreshed")
	return nil
}

func (i *inventory) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, i.command[0], i.command[1:]...)
	cmd.Env = append(os.Environ(), policy.PathEnv+"="+i.config)
	cmd.WaitDelay = time.Second // where a child of it keeps the pipe
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("cannot refresh the inventory: no answer within %s", scanTime)
	case err != nil && len(out) > 0:
		err = errors.New(firstLine(string(out)))
	}
	if err != nil {
		return fmt.Errorf("cannot refresh the inventory: %w", err)
	}
	return nil
}

// firstLine is what a program of ours says of its failure, without its name.
func firstLine(out string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return strings.TrimPrefix(line, "gpuledger: ")
}
