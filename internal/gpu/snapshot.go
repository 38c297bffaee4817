// Package gpu reads, writes and checks the snapshot: the file inventory.json in the state
// directory, with the node's inventory (GPUs, MIG devices, driver). `gpuledger inventory refresh`
// writes it ahead of time, so that no create waits for NVML. Load also says why a snapshot does not
// fit the node any more. Packages nvml and simulated below this one take the inventory. This
// package is linked into the programs that run at every container's create, so it only stores and
// checks it.
package gpu

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Version is the snapshot format that this program writes, and the newest that it reads.
const Version = 1

// maxSize is the largest file that is read, in bytes: a node of 64 GPUs with 7 partitions each has
// less than 100 KiB.
const maxSize = 4 << 20

// Path is the path of the snapshot.
func Path(stateDir string) string { return filepath.Join(stateDir, "inventory.json") }

// Write replaces the snapshot at path durably, with its GPUs sorted by index. A reader sees the old
// file or the new one. Write makes the directory if it is missing. It refuses to write what Read
// would refuse; then the old file stays.
func Write(path string, inv grant.Inventory) error {
	inv.Version = Version
	inv.GPUs = slices.SortedFunc(slices.Values(inv.GPUs),
		func(a, b grant.GPU) int { return cmp.Compare(a.Index, b.Index) })
	if err := Check(inv); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	data, err := encode(inv)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return host.ReplaceFile(path, append(data, '\n'), 0o600, host.Durable)
}

// Read reads the snapshot at path and checks it. It ignores unknown fields. A newer version is an
// error, because an unknown field could change the meaning of the others. The error is
// fs.ErrNotExist if there is no file.
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

// decode parses a snapshot. The decoder refuses duplicate keys and invalid UTF-8, and keys are
// case-sensitive.
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

// versionOf returns the version, even if a newer format has other types in other fields and the
// decoder failed.
func versionOf(inv grant.Inventory, data []byte, err error) int {
	if err == nil {
		return inv.Version
	}
	version := 0
	_ = tokens.Whole(data, func(d *jsontext.Decoder) error { return tokens.Version(d, &version) })
	return version
}
