package oci

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Complain tells why no container starts, in the two places where engines look: containerd and
// Docker show the last error in the --log file, CRI-O and Podman show stderr.
func (c Command) Complain(err error) {
	message, hint := "gpuledger: "+Clean(err.Error()), Clean(Hint(err))
	Tell(message)
	if hint != "" {
		Tell("hint: " + hint)
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

// Tell says a line to whoever reads our standard error. Where nobody does any more, package os
// would end the process by SIGPIPE, and with it a container that may start.
func Tell(line string) { _, _ = unix.Write(unix.Stderr, []byte(line+"\n")) }

// logLine writes one entry at level error as runc would. containerd decodes the file as JSON
// objects whose time is RFC 3339, and shows nothing at all if one line is odd.
func logLine(format, message string, now time.Time) string {
	stamp := now.Format(time.RFC3339)
	if format != "json" {
		return fmt.Sprintf("time=%s level=error msg=%s\n", strconv.Quote(stamp), strconv.Quote(message))
	}
	line, err := json.Marshal(struct {
		Level   string `json:"level"`
		Message string `json:"msg"`
		Time    string `json:"time"`
	}{"error", message, stamp})
	if err != nil {
		return ""
	}
	return string(line) + "\n"
}

// Hint is what a refusal tells its reader to do.
func Hint(err error) string {
	var refusal *grant.Refusal
	if errors.As(err, &refusal) {
		return refusal.Hint
	}
	return ""
}

// Clean keeps a tenant's text from writing lines or terminal codes of its own.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
