// Package daemon runs the managers of a node: what has to be done again and again, or while somebody waits. Nothing that a
// container's start depends on is decided here alone; a node without the daemon keeps its ledger and its guard.
package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Manager looks after one concern.
type Manager interface {
	Name() string
	// Ensure brings the concern into the state that it should be in, as far as it is not. It is called again and again, and
	// returns what keeps it from doing so.
	Ensure(context.Context) error
	// Stop is called once, after the last Ensure.
	Stop()
}

// Run has each manager ensure at once and then at every interval, until the context ends. One that hangs holds up no other.
func Run(ctx context.Context, interval time.Duration, log *logrus.Logger, managers ...Manager) {
	var all sync.WaitGroup
	for _, m := range managers {
		all.Go(func() { attend(ctx, interval, log, m) })
	}
	<-ctx.Done() // with no manager at all, too
	all.Wait()
}

// attend logs a failure when it is new, and its end.
func attend(ctx context.Context, interval time.Duration, log *logrus.Logger, m Manager) {
	defer m.Stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for last := ""; ctx.Err() == nil; {
		last = complain(log, m, last, m.Ensure(ctx))
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func complain(log *logrus.Logger, m Manager, last string, err error) string {
	now := ""
	if err != nil {
		now = fmt.Sprintf("%s: %v", m.Name(), err)
	}
	if now != "" && now != last {
		log.Warn(now)
	}
	return now
}
