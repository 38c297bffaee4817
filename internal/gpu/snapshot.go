// Package gpu keeps the snapshot file: what the node has, written ahead of time by `gpuledger
// inventory refresh`, so that no create waits for NVML. Packages nvml and simulated below it take
// the snapshot; this one only stores and judges it, because it is linked into the programs that
// every container's create runs.
package gpu

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Version is the snapshot format that this program writes, and the newest that it reads.
const Version = 1

// maxSize bounds what is read: a node of 64 GPUs in 7 partitions each stays below 100 KiB.
const maxSize = 4 << 20

// Path is where the snapshot lies.
func Path(stateDir string) string { return filepath.Join(stateDir, "inventory.json") }

// Write replaces the snapshot at path, its GPUs sorted by index, durably and so that a reader sees
// the old one or the new. It makes the directory where there is none, and refuses to write what
// Read would not take; then the old one stands.
func Write(path string, inv grant.Inventory) error {
	inv.Version = Version
	inv.GPUs = slices.SortedFunc(slices.Values(inv.GPUs),
		func(a, b grant.GPU) int { return cmp.Compare(a.Index, b.Index) })
	if err := Check(inv); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	// Without the option a nil list would still be [], but a map would come in another order each
	// time.
	data, err := json.Marshal(inv, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return host.ReplaceFile(path, append(data, '\n'), 0o600, host.Durable)
}

// Read reads the snapshot at path and checks it. Fields that it does not know are left alone; a
// newer version is an error, for a field that it does not know could then change what the others
// mean. errors.Is(err, fs.ErrNotExist) tells that there is none.
func Read(path string) (grant.Inventory, error) {
	data, err := host.ReadFile(path, maxSize)
	if err != nil {
		return grant.Inventory{}, fmt.Errorf("cannot read the inventory: %w", err)
	}
	inv, err := decode(data)
	if err != nil {
		return grant.Inventory{}, fmt.Errorf("cannot read the inventory %s: %w", path, err)
	}
	return inv, nil
}

// decode reads a snapshot. The decoder itself refuses duplicate keys and invalid UTF-8, and tells
// keys apart by case.
func decode(data []byte) (grant.Inventory, error) {
	var inv grant.Inventory
	err := tokens.Whole(data, func(d *jsontext.Decoder) error { return readInventory(d, &inv) })
	if version := versionOf(inv, data, err); version > Version {
		return grant.Inventory{}, fmt.Errorf("its version is %d and this gpuledger knows %d", version,
			Version)
	}
	if err == nil {
		err = Check(inv)
	}
	if err != nil {
		return grant.Inventory{}, err
	}
	return inv, nil
}

// versionOf finds the version even where a newer format gave other fields other types and the
// decoder gave up on them.
func versionOf(inv grant.Inventory, data []byte, err error) int {
	if err == nil {
		return inv.Version
	}
	var only struct {
		Version int `json:"version"`
	}
	_ = json.Unmarshal(data, &only)
	return only.Version
}
