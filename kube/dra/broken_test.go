package dra

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// The configuration is edited while a claim is prepared or given up. A node whose configuration
// cannot be read has the directories of the defaults. The driver writes nothing there, and a claim
// that it gave up leaves nothing in its own.
func TestTheConfigurationBreaksMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		work func(s site) error
		ends bool // the claim
	}{
		"prepared again": {func(s site) error {
			return s.prepares(t, s.of(2, "u", "p1", "p2")).Err
		}, false},
		"allocated anew": {func(s site) error {
			return s.prepares(t, s.whole("u", 0, "16Gi", "")).Err
		}, false},
		"another pod": {func(s site) error {
			s.pods.learn(s.of(2, "u", "p1", "p2"))
			_, err := s.follower().retie()
			return err
		}, false},
		"given up": {func(s site) error { return s.unprepare("u") }, true},
		"gone":     {func(s site) error { return s.Driver.Reclaim(context.Background()) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			for after, done := 0, false; !done; after++ {
				s := newSite(t, 2)
				s.has(t, s.of(1, "u", "p1"))
				defaults := nodeledgertest.New(t, 2, 16*grant.GiB, "")
				var opened atomic.Int64
				open := s.Driver.Ledger.Open
				s.Driver.Ledger.Open = func() *node.Node {
					if opened.Add(1) <= int64(after) {
						return open()
					}
					n := defaults.Open()
					n.Broken = errors.New("broken")
					return n
				}
				ended := c.work(s) == nil && c.ends
				done = opened.Load() <= int64(after)
				s.Driver.Ledger.Open = open
				for _, dir := range []string{"/state/grants", "/run", "/cdi"} {
					if _, err := os.Lstat(defaults.Dir + dir); err == nil {
						t.Errorf("read %d times: it made %s of the defaults", after, dir)
					}
				}
				if !ended {
					s.unprepares(t, "u")
				}
				if kept, err := os.ReadDir(s.Dir + "/references"); err != nil ||
					len(s.Grants())+s.cdiFiles(t)+len(kept) > 0 {
					t.Errorf("read %d times: %d grants, %d CDI files and %d references are left", after,
						len(s.Grants()), s.cdiFiles(t), len(kept))
				}
			}
		})
	}
}
