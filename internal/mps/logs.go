package mps

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// logs are what NVIDIA's programs write, and what they print, in a daemon's directory: some lines for each client that comes and goes, which
// a tenant's can do as long as it likes. They lie on the node's memory.
var logs = []string{"log/control.log", "log/server.log", logFile}

// How much of one may be there before it is cut, and how much of its end is kept beside it then.
const (
	maxLog  = 4 << 20
	keptLog = 1 << 20
)

// shortenLogs cuts logs that have grown: what was said last is in NAME.1 from then on. Whoever writes one has it open, so it is emptied and not
// replaced; who does not append goes on behind a hole, and room is what counts.
func (d *daemon) shortenLogs() error {
	for _, name := range logs {
		if err := shorten(filepath.Join(d.dir, name)); err != nil {
			return fmt.Errorf("cannot shorten the log of the MPS daemon of %v: %w", d.state.GPUs, err)
		}
	}
	return nil
}

func shorten(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Blocks*512 <= maxLog {
		return nil // a link, too, has none
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	last, err := io.ReadAll(io.NewSectionReader(f, max(0, st.Size-keptLog), keptLog))
	if err == nil {
		err = host.ReplaceFile(path+".1", last, 0o600, host.Volatile)
	}
	if e := f.Truncate(0); err == nil { // also where what was said could not be kept
		err = e
	}
	return err
}
