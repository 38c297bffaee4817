package mps

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// logs are the files that NVIDIA's programs write and print to in a daemon's directory. Each client
// that comes and goes adds some lines, as often as a tenant likes. They lie in the node's memory.
var logs = []string{"log/control.log", "log/server.log", logFile}

// How large a log may get before it is cut, and how much of its end is kept then.
const (
	maxLog  = 4 << 20
	keptLog = 1 << 20
)

// shortenLogs cuts logs that have grown, and keeps their ends in NAME.1. A log is emptied and not
// replaced, because its writer has it open. A writer that does not append leaves a hole, which
// takes no space.
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
		return nil // also for a link, which takes no space
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
	if e := f.Truncate(0); err == nil { // even if the end could not be kept
		err = e
	}
	return err
}
