package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/nvmlchild"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// inventoryManager is the manager of the inventory: after a boot or a change of the driver it takes
// a new one. It calls `gpuledger inventory refresh`, because NVML can hang or crash, and a child
// process can be killed.
type inventoryManager struct {
	node    func() *node.Node
	stale   func() string // why the watch finds the inventory out of date; "": it does not
	config  string        // the configuration's path
	command []string      // the program that takes the inventory
	log     *logrus.Logger
	within  time.Duration // for one attempt
	ends    time.Duration // for its end after it was killed
	run     func(*exec.Cmd) ([]byte, error)

	running      chan struct{} // closed when an attempt that was given up has ended; nil: there is none
	retry        time.Time     // no attempt before
	wait         time.Duration
	failure      error // of the last attempt
	refreshedFor inventoryFinding
}

// inventoryFinding is what the watch finds of one inventory.
type inventoryFinding struct {
	stale     string     // the result of stale
	inventory host.Stamp // of the file that it speaks of
}

// The waits between attempts that do not help, and the time for one. NVML needs seconds on a node
// with many GPUs, and more if it has to load the driver.
const (
	firstScan = time.Second
	lastScan  = time.Minute
	scanTime  = time.Minute
	endTime   = 2 * time.Second // longer than cmd.WaitDelay
)

func newInventoryManager(n func() *node.Node, config string, changed func() string,
	log *logrus.Logger) *inventoryManager {
	return &inventoryManager{node: n, stale: changed, config: config,
		command: []string{nvmlchild.Program("gpuledger"), "inventory", "refresh"}, log: log,
		within: scanTime, ends: endTime, run: (*exec.Cmd).CombinedOutput}
}

func (i *inventoryManager) Name() string { return "inventory" }
func (i *inventoryManager) Stop()        {}

// Ensure takes a new inventory if there is none, or if it is out of date. It waits longer and
// longer where an attempt fails, where a new inventory has a problem as well, and where a GPU
// answers and fails by turns. It begins anew when a failure is over, or after a minute without a
// reason.
func (i *inventoryManager) Ensure(ctx context.Context) error {
	reason := i.reason()
	if reason == "" {
		if i.failure != nil || time.Since(i.retry) > lastScan {
			i.wait, i.retry = 0, time.Time{}
		}
		i.failure = nil
		return nil
	}
	if time.Now().Before(i.retry) {
		return i.failure
	}
	if i.failure = i.refresh(ctx); i.failure == nil {
		i.refreshedFor = i.finding()
		i.log.WithField("reason", reason).Info("the inventory is refreshed")
	}
	i.wait = min(max(2*i.wait, firstScan), lastScan)
	i.retry = time.Now().Add(i.wait)
	return i.failure
}

// reason is why an inventory has to be taken. What the watch finds is a reason once: if a new
// inventory does not agree with it, another one would not either. It is a reason again if another
// process has written the inventory since.
func (i *inventoryManager) reason() string {
	n := i.node()
	inv, problem := n.Inventory()
	if problem != nil {
		return problem.Message
	}
	if why := node.OtherDRM(n, inv.GPUs); why != "" { // no problem for containers that use no DRM nodes
		return why
	}
	seen := i.finding()
	switch {
	case seen.stale == "":
		i.refreshedFor = inventoryFinding{}
	case seen == i.refreshedFor:
		return ""
	}
	return seen.stale
}

func (i *inventoryManager) finding() inventoryFinding {
	return inventoryFinding{i.stale(), i.node().InventoryStamp()}
}

// refresh waits for the child as long as that can be killed. A child that hangs in the kernel ends
// when the kernel lets it, and until then there is no second one.
func (i *inventoryManager) refresh(ctx context.Context) error {
	if i.running != nil {
		select {
		case <-i.running:
			i.running = nil
		default:
			return errors.New("cannot refresh the inventory: the process that does so hangs in the kernel " +
				"and cannot be ended")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, i.within)
	type result struct {
		out []byte
		err error
	}
	answer, ended := make(chan result, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		cmd := exec.CommandContext(ctx, i.command[0], i.command[1:]...)
		cmd.Env = append(os.Environ(), policy.PathEnv+"="+i.config)
		cmd.WaitDelay = time.Second // if a process that it started keeps the pipe open
		out, err := i.run(cmd)
		if err != nil && ctx.Err() == context.DeadlineExceeded {
			out, err = nil, fmt.Errorf("no answer within %s", i.within)
		}
		answer <- result{out, err}
	}()
	var r result
	select {
	case r = <-answer:
	case <-ctx.Done():
		select {
		case r = <-answer:
		case <-time.After(i.ends):
			i.running = ended
			return fmt.Errorf("cannot refresh the inventory: no answer within %s, and the process that was "+
				"asked cannot be ended", i.within)
		}
	}
	err := r.err
	if err != nil && len(r.out) > 0 {
		err = errors.New(nvmlchild.ErrorLine(string(r.out)))
	}
	if err != nil {
		return fmt.Errorf("cannot refresh the inventory: %w", err)
	}
	return nil
}
