package mps

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
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

// shortenLogs cuts those logs in a daemon's directory that have grown, and keeps their ends in
// NAME.1. A log is emptied and not replaced, because its writer has it open. A writer that does not
// append leaves a hole, which takes no space.
func shortenLogs(dir string) error {
	for _, name := range logs {
		if err := shorten(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("cannot shorten a log of the MPS daemon in %s: %w", dir, err)
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

// maxTail is how much of the end of a log is searched for a reason, in bytes.
const maxTail = 64 << 10

// notADaemon is what NVIDIA's program prints if it has an option that it does not know: it takes
// itself for a question to a daemon.
const notADaemon = "Cannot find MPS control daemon process"

// noReason is said of a daemon that ended before it was ready, and printed nothing.
const noReason = "it printed no reason, as NVIDIA's program does if it finds no GPU"

// logSize is how much the launcher, the daemon and its servers have printed, in bytes.
func logSize(dir string) int64 {
	info, err := os.Lstat(filepath.Join(dir, logFile))
	if err != nil {
		return 0
	}
	return info.Size()
}

// logReason is why the daemon or its server does not work, as the log says since the daemon was
// last ready; "" if it says nothing. The last line that reports a failure counts, because other
// lines follow it: that a server ended, that the daemon ends. Without such a line it is the last
// one.
func (d *daemon) logReason() string {
	log, err := os.Open(filepath.Join(d.dir, logFile))
	if err != nil {
		return ""
	}
	defer log.Close()
	size := logSize(d.dir)
	from := d.logRead
	if from > size { // it was shortened
		from = 0
	}
	tail, _ := io.ReadAll(io.NewSectionReader(log, max(from, size-maxTail), maxTail))
	reason := ""
	for line := range strings.Lines(string(tail)) {
		line = strings.TrimSpace(line)
		if line != "" && (reportsFailure(line) || !reportsFailure(reason)) {
			reason = line
		}
	}
	reason = grant.Printable(reason)
	if strings.Contains(reason, notADaemon) && slices.Contains(args(d.node.Policy), multiUser) {
		reason += fmt.Sprintf("; this driver does not know %s, and driver %d does", multiUser,
			grant.MPSUsersSince)
	}
	return reason
}

func reportsFailure(line string) bool { return strings.Contains(strings.ToLower(line), "failed") }
