package mpsstate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// A container that adopts its grant in mode mps has no grant until it starts, and does not start
// until a daemon accepts it as a client. So its create asks gpuledgerd for the daemon
// (docs/adr/0099).

// WantedFor is how long gpuledgerd keeps a daemon that a create asked for, without a grant. The
// kubelet tries a container again after some ten seconds.
const WantedFor = time.Minute

// WantedDir is where creates ask for daemons, below the run directory: a file for each create.
func WantedDir(run string) string { return filepath.Join(run, "mps-wanted") }

func wantedFile(run string, c grant.Container) string {
	return filepath.Join(WantedDir(run), grant.MPSName([]string{c.RuntimeRoot, c.ID})+".json")
}

// Want asks for the daemon of a grant that a container would have.
func Want(h host.Host, run string, c grant.Container, g *grant.Grant) error {
	if err := os.MkdirAll(WantedDir(run), 0o700); err != nil {
		return fmt.Errorf("cannot ask for an MPS daemon: %w", err)
	}
	m := grant.MPSDaemon{GPUs: g.UUIDs(), Threads: g.Compute, Limits: map[string]grant.Bytes{}}
	for _, s := range g.GPUs {
		m.Limits[s.UUID] = s.Memory
	}
	return writeTo(h, wantedFile(run, c), m)
}

// WantNoMore withdraws what the create of a container asked for.
func WantNoMore(run string, c grant.Container) { _ = os.Remove(wantedFile(run, c)) }

// Wanted returns the grants that containers would have if they had their daemons. It removes what
// was asked for too long ago.
func Wanted(h host.Host, run string) (all []grant.Grant) {
	files, _ := os.ReadDir(WantedDir(run))
	for _, file := range files {
		path := filepath.Join(WantedDir(run), file.Name())
		info, err := file.Info()
		if err != nil || h.Now().Sub(info.ModTime()).Abs() > WantedFor { // the clock may be set back
			_ = os.Remove(path)
			continue
		}
		m, known := readFrom(h, path)
		if !known || !strings.HasSuffix(path, ".json") {
			continue
		}
		g := grant.Grant{Mode: grant.MPS, Compute: m.Threads}
		for _, uuid := range m.GPUs {
			g.GPUs = append(g.GPUs, grant.Share{UUID: uuid, Memory: m.Limits[uuid]})
		}
		all = append(all, g)
	}
	return all
}
