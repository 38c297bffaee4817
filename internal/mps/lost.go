package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// lostFile names, in a daemon's directory, the containers that lost their contexts. It is for the
// next gpuledgerd: containers run on, and nothing else shows that they have to be started again.
const lostFile = "lost.json"

// maxLost bounds that file, in bytes.
const maxLost = 4 << 20

// boundContainer is a container as it was bound to a grant. After a restart it has the same id, and
// was bound by another process. So was one at its first start that gpuledgerd has reserved for.
type boundContainer struct {
	ID       string        `json:"id"`
	Creator  grant.Process `json:"creator"`
	Reserved bool          `json:"reserved"`
}

// ids are the containers' ids, sorted, each once.
func ids(containers []boundContainer) (all []string) {
	for _, c := range containers {
		all = append(all, c.ID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// lostContexts are the containers whose contexts ended with a daemon or its server, and when.
type lostContexts struct {
	BootID     string           `json:"boot_id"`
	At         time.Time        `json:"at"`
	Containers []boundContainer `json:"containers"`
}

// readLost reads what an earlier gpuledgerd has written, if it was in this boot.
func readLost(h host.Host, dir string) (lost lostContexts) {
	data, err := host.ReadFile(filepath.Join(dir, lostFile), maxLost)
	boot, unknown := h.BootID()
	if err != nil || unknown != nil || json.Unmarshal(data, &lost) != nil || lost.BootID != boot {
		return lostContexts{}
	}
	return lost
}

// write replaces the file, or removes it if there is no such container.
func (lost lostContexts) write(h host.Host, dir string) (err error) {
	path := filepath.Join(dir, lostFile)
	if len(lost.Containers) == 0 {
		if err = host.Remove(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if lost.BootID, err = h.BootID(); err != nil {
		return err
	}
	data, err := json.Marshal(lost)
	if err != nil {
		return fmt.Errorf("internal error: cannot encode %s: %w", lostFile, err)
	}
	return host.ReplaceFile(path, append(data, '\n'), 0o600, host.Volatile)
}

// set sets the containers, and when the last of them lost its contexts. An error says that the next
// gpuledgerd will not know of them.
func (lost *lostContexts) set(h host.Host, dir string, containers []boundContainer, at time.Time) error {
	if slices.Equal(containers, lost.Containers) && at.Equal(lost.At) {
		return nil
	}
	*lost = lostContexts{At: at, Containers: containers}
	if err := lost.write(h, dir); err != nil {
		return fmt.Errorf("cannot write down which containers lost their contexts: %w", err)
	}
	return nil
}

// reportLost is the error while containers run whose daemon has ended.
func (d *daemon) reportLost() error {
	var left []boundContainer
	for _, c := range d.users {
		is := func(l boundContainer) bool { return l == c || l.Reserved && l.ID == c.ID }
		if slices.ContainsFunc(d.lost.Containers, is) {
			left = append(left, c)
		}
	}
	err := d.lost.set(d.node.Host, d.dir, left, d.lost.At)
	if len(left) == 0 {
		return err
	}
	return fmt.Errorf("the MPS daemon or server of %v ended at %s, and these containers lost their "+
		"contexts: %v; start them again", d.state.GPUs, d.lost.At.UTC().Format(time.RFC3339), ids(left))
}
