package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// ClusterPath returns the path of the cluster's file beside a configuration file. Its keys are read
// over those of the configuration (docs/adr/0087).
func ClusterPath(config string) string { return filepath.Join(filepath.Dir(config), grant.ClusterFile) }

// ofNode are the keys that only the node's own file sets: mounts of agents, records of
// `gpuledger configure` and running containers depend on them. The wrapper passes subcommands on
// with the engine and the runtime alone, and reads no second file for that.
var ofNode = []string{"state_dir", "run_dir", "engine", "runtime", "cdi"}

// overlay parses the cluster's file over a policy. A key that it sets replaces that of the node,
// with two exceptions: exemptions are added to the node's, and pools replace the node's only if it
// has any.
func overlay(text []byte, p *grant.Policy) error {
	for _, key := range ofNode {
		if row := lineBelow(text, key); row > 0 {
			return fmt.Errorf("%d: %s: only the node's own file sets this", row, key)
		}
	}
	state, run, engine, runtime, cdi := p.StateDir, p.RunDir, p.Engine, p.Runtime, p.CDI
	exempt, pools := p.Rules.Exempt, p.Pools
	// the library writes into slices and maps that are there
	p.Rules.Exempt, p.Pools, p.Runtime = nil, nil, grant.Runtime{}
	if err := decode(text, p, true); err != nil {
		return located(err, text)
	}
	// lineBelow does not know all forms of a key in TOML
	p.StateDir, p.RunDir, p.Engine, p.Runtime, p.CDI = state, run, engine, runtime, cdi
	p.Rules.Exempt = append(exempt[:len(exempt):len(exempt)], p.Rules.Exempt...)
	if len(p.Pools) == 0 {
		p.Pools = pools
	}
	return nil
}

// lineBelow returns the line of a key or of the first key of its table, 0 if there is none.
func lineBelow(text []byte, key string) (row int) {
	keys(text, func(r int, k string) {
		if row == 0 && (k == key || strings.HasPrefix(k, key+".")) {
			row = r
		}
	})
	return row
}

// Over returns the policy of the configuration at path with text as the cluster's file. Only
// DefaultPath may be missing. An error is one line with file, line and key; the file of text is
// ClusterPath.
func Over(path string, text []byte) (grant.Policy, error) {
	node, err := host.ReadFile(path, MaxSize)
	if err != nil && (path != DefaultPath || !errors.Is(err, fs.ErrNotExist)) {
		return Default(), fmt.Errorf("cannot read the configuration: %w", err)
	}
	p := Default()
	if len(text) > MaxSize {
		return p, fmt.Errorf("%s: want at most %d bytes", ClusterPath(path), MaxSize)
	}
	if err := parse(node, text, &p, path, noMistake); err != nil {
		return Default(), err
	}
	return p, nil
}
