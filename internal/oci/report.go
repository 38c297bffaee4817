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
	if c.Log == "" {
		return
	}
	f, openErr := os.OpenFile(c.Log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if openErr != nil {
		return // the engine still has stderr
	}
	_, _ = f.WriteString(logLine(c.LogFormat, message, time.Now()))
	_ = f.Close()
}

// PrintLine writes a line to standard error. If no process reads it any more, a write through
// package os would end this process by SIGPIPE, and with it a container that may start.
func PrintLine(line string) { _, _ = unix.Write(unix.Stderr, []byte(line+"\n")) }

// logLine returns an entry at level error in runc's format. containerd decodes the file as JSON
// objects whose time is RFC 3339, and shows nothing if one line is malformed.
func logLine(format, message string, now time.Time) string {
	stamp := now.Format(time.RFC3339)
	if format != "json" {
		return fmt.Sprintf("time=%s level=error msg=%s\n", strconv.Quote(stamp), strconv.Quote(message))
	}
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("level").String("error")
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
