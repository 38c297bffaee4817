package oci

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// ReportError reports why no container starts, in the two places where engines read. containerd and
// Docker show the last error in the --log file; CRI-O and Podman show standard error.
func (c Command) ReportError(err error) {
	message, hint := "gpuledger: "+Clean(err.Error()), Clean(Hint(err))
	PrintLine(message)
	if hint != "" {
		PrintLine("hint: " + hint)
		message += "; hint: " + hint
	}
	_ = c.appendLog("error", message) // without it the engine still has stderr
}

// Warn reports what does not keep the runtime from running. Like a warning of runc, it goes to the
// --log file, and to standard error only without one. In a create and an exec, standard error is
// often the container's own, and the line would be in the tenant's log.
func (c Command) Warn(message string) {
	message = "gpuledger: " + Clean(message)
	if c.appendLog("warning", message) != nil {
		PrintLine(message)
	}
}

// appendLog appends an entry to the --log file. It does not wait for a reader of a pipe.
func (c Command) appendLog(level, message string) error {
	if c.Log == "" {
		return os.ErrNotExist
	}
	const flags = os.O_WRONLY | os.O_APPEND | os.O_CREATE | unix.O_NONBLOCK
	f, err := os.OpenFile(c.Log, flags, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(logLine(c.LogFormat, level, message, time.Now()))
	return errors.Join(err, f.Close())
}

// PrintLine writes a line to standard error. If no process reads it any more, a write through
// package os would end this process by SIGPIPE, and with it a container that may start.
func PrintLine(line string) { _, _ = unix.Write(unix.Stderr, []byte(line+"\n")) }

// logLine returns an entry in runc's format. Of level "error", containerd shows the last one after
// a failure; of level "warning", none. It decodes the file as JSON objects whose time is RFC 3339,
// and shows nothing if one line is malformed.
func logLine(format, level, message string, now time.Time) string {
	stamp := now.Format(time.RFC3339)
	if format != "json" {
		return fmt.Sprintf("time=%s level=%s msg=%s\n", strconv.Quote(stamp), level, strconv.Quote(message))
	}
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("level").String(level)
		w.Name("msg").String(message)
		w.Name("time").String(stamp)
	})
	line, err := w.End()
	if err != nil {
		return ""
	}
	return string(line) + "\n"
}

// Hint returns the hint of a refusal, or "".
func Hint(err error) string {
	var refusal *grant.Refusal
	if errors.As(err, &refusal) {
		return refusal.Hint
	}
	return ""
}

// Clean replaces every character that is not printable, so that a tenant's text cannot write lines
// or terminal codes.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
