package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// clusterFile is the cluster's alone. A removal removes it.
var clusterFile = policy.ClusterPath(configFile)

// look is the time between two looks at what the cluster sets. The kubelet brings a change within
// a minute or so.
const look = 2 * time.Second

// follow keeps the node's cluster.toml as the cluster sets it, in the file from, until it is told
// to end. It runs in a container of its own, in which only the node's /etc/gpuledger is the node's.
func follow(ctx context.Context, from string, every time.Duration) {
	for last := ""; ; {
		now := "takes what the cluster sets"
		if text, err := os.ReadFile(from); err != nil {
			now = fmt.Sprintf("cannot read what the cluster sets: %v", err)
		} else if changed, err := take(text); err != nil {
			now = err.Error()
		} else if changed {
			last = ""
		}
		if now != last {
			say("%s", now)
		}
		last = now
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// take makes text the node's cluster.toml, if gpuledger takes it over the node's own file.
// Otherwise what the node has stays.
func take(text []byte) (changed bool, err error) {
	if _, err := policy.Over(configFile, text); err != nil {
		return false, fmt.Errorf("this node does not take what the cluster sets, and stays as it is: %w", err)
	}
	has, err := os.ReadFile(clusterFile)
	if err == nil && bytes.Equal(has, text) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := host.ReplaceFile(clusterFile, text, 0o644, host.Durable); err != nil {
		return false, fmt.Errorf("cannot write what the cluster sets: %w", err)
	}
	return true, nil
}

// ready returns an error if the node does not have what the cluster sets. The kubelet shows its
// text in the pod's events.
func ready(from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("cannot read what the cluster sets: %w", err)
	}
	if _, err := policy.Over(configFile, text); err != nil {
		return fmt.Errorf("this node does not take what the cluster sets, and stays as it is: %w", err)
	}
	if has, err := os.ReadFile(clusterFile); err != nil || !bytes.Equal(has, text) {
		return fmt.Errorf("this node does not have yet what the cluster sets (%w)",
			errors.Join(errors.New(clusterFile+" differs"), err))
	}
	return nil
}
