// Package history reads back what the audit log has recorded, from all the files that rotations leave. It reads a line at a
// time: a log may be larger than memory. docs/audit.md has the fields of a line.
package history

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Entry is a line of the log: a decision, or an action. Its texts are somebody else's words, and may hold what a terminal acts on.
type Entry struct {
	Time      time.Time      `json:"time"`
	Engine    string         `json:"engine"`
	Container string         `json:"container"` // the id
	Pod       grant.Identity `json:"pod"`
	Verdict   string         `json:"verdict"` // of a decision
	Mode      string         `json:"mode"`    // "" where the verdict was enforced
	Code      string         `json:"code"`
	Message   string         `json:"message"`
	Grant     string         `json:"grant"`
	Strength  string         `json:"strength"`
	Removed   []string       `json:"removed"`
	Recorded  []string       `json:"recorded"`
	Action    string         `json:"action"` // "found", "stopped", "disabled", ...
	Finding   string         `json:"finding"`
	Until     time.Time      `json:"until"`

	Line []byte `json:"-"` // as it stands in the log, without its end; good until the next entry is read
}

// PodName is the pod's container as NAMESPACE/POD/CONTAINER, or as much of it as is known; "" for none.
func (e *Entry) PodName() string {
	if e.Pod.Pod == "" {
		return e.Pod.UID
	}
	return strings.TrimSuffix(e.Pod.Namespace+"/"+e.Pod.Pod+"/"+e.Pod.Container, "/")
}

// parse reads a line. It may hold whatever a tenant put into its annotations, or be no line of ours.
func parse(line []byte) (*Entry, bool) {
	e := Entry{Line: line}
	err := json.Unmarshal(line, &e, jsontext.AllowInvalidUTF8(true))
	return &e, err == nil && !e.Time.IsZero() && (e.Verdict != "" || e.Action != "")
}

// Filter is which entries are wanted. What is empty leaves nothing out.
type Filter struct {
	Since, Until time.Time // from Since on, before Until
	Code         string    // of a refusal, or the kind of a finding
	Container    string    // its id, the beginning of that, or NAMESPACE/POD[/CONTAINER]
	Grant        grant.ID  // entries that name it
}

// Wants reports whether an entry is wanted.
func (f Filter) Wants(e *Entry) bool {
	switch {
	case !f.Since.IsZero() && e.Time.Before(f.Since), !f.Until.IsZero() && !e.Time.Before(f.Until):
		return false
	case f.Code != "" && f.Code != cmp.Or(e.Code, e.Finding):
		return false
	case f.Container != "" && !f.isOf(e):
		return false
	}
	return f.Grant == "" || bytes.Contains(e.Line, []byte(f.Grant))
}

func (f Filter) isOf(e *Entry) bool {
	pod := e.Pod.Namespace + "/" + e.Pod.Pod
	return strings.HasPrefix(e.Container, f.Container) || e.Pod.Pod != "" && (f.Container == pod || f.Container == pod+"/"+e.Pod.Container)
}

// Log is an audit log with its rotated files.
type Log struct {
	path   string
	files  []*file // oldest first
	last   bool    // the last of them is the one at the path
	unread []string
	broken int
	first  string // where the first broken line is
}

// OpenEnd opens the end of the log at path alone: so many bytes, less what is there of an entry that begins before.
func OpenEnd(path string, last int64) (*Log, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the audit log: %w", err)
	}
	if size := f.info.Size(); size > last {
		f.at, f.tooLong = size-last, true
		_, err = f.f.Seek(f.at, io.SeekStart)
	}
	return &Log{path: path, files: []*file{f}, last: true}, err
}

// Files is how many there are to read.
func (l *Log) Files() int { return len(l.files) }

// Close lets go of the files.
func (l *Log) Close() {
	for _, f := range l.files {
		f.close()
	}
	l.files = nil
}

// Warnings say what of the log could not be read so far.
func (l *Log) Warnings() []string {
	list := slices.Clone(l.unread)
	if l.broken > 0 {
		list = append(list, fmt.Sprintf("%s cannot be read and %s left out; the first is %s", count(l.broken, "line"), were(l.broken), l.first))
	}
	return list
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func were(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// Read calls fn with each entry, oldest file first, until it fails. A file that cannot be read to its end is told by Warnings.
func (l *Log) Read(fn func(*Entry) error) error {
	for i, f := range l.files {
		grows := l.last && i == len(l.files)-1
		if err := l.read(f, !grows, fn); err != nil {
			return err
		}
		if grows {
			return l.unended(f, fn)
		}
	}
	return nil
}

// unended gives the entry at the end of the log that has no end of its line. If it is none, it is being written at this moment.
func (l *Log) unended(f *file, fn func(*Entry) error) error {
	e, ok := parse(f.begun)
	if !ok {
		return nil
	}
	f.line++
	err := fn(e)
	f.begun = f.begun[:0]
	return err
}

// read gives the entries of one file. With end, what is there without the end of a line counts as one.
func (l *Log) read(f *file, end bool, fn func(*Entry) error) error {
	var failed error
	err := f.lines(end, func(line []byte) bool {
		if len(bytes.TrimSpace(line)) == 0 && line != nil {
			return true
		}
		e, ok := parse(line)
		if !ok {
			if l.broken++; l.broken == 1 {
				l.first = fmt.Sprintf("line %d of %s", f.line, f.name)
			}
			return true
		}
		failed = fn(e)
		return failed == nil
	})
	if err != nil && failed == nil {
		l.unread = append(l.unread, fmt.Sprintf("%s was read to line %d only: %v", f.name, f.line, err))
	}
	return failed
}
