// Package auditlog reads the audit log as it grows. Many short processes make decisions, and each
// of them records them there; docs/audit.md has the fields.
package auditlog

import (
	"bytes"
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Refusal is a container that was refused, or would have been. Its texts are shortened and hold no
// control characters, but tenants may have written them.
type Refusal struct {
	Time      time.Time
	Code      string
	Mode      string // Enforced, "report", "disabled" or "observed"
	Message   string
	Container string // the id
	Pod       grant.Identity
}

// Enforced is the mode of a refusal that kept its container from starting.
const Enforced = "enforced"

// Other replaces codes and modes that this version does not know, so that a log cannot make up new
// names without end.
const Other = "other"

// RefusalKind is what refusals are counted by.
type RefusalKind struct{ Code, Mode string }

// Counts are what was read since the reader began. They never fall.
type Counts struct {
	Refusals   map[RefusalKind]uint64
	Admissions uint64
	Passes     uint64 // that were recorded: exempted, stripped, hidden or node-root
	Unreadable uint64 // lines
	Gaps       uint64 // rotations of which a file was gone before it was read
	Latency    Latency
}

// maxRecent is how many refusals are kept.
const maxRecent = 50

// Reader reads new lines of a log across its rotations. Many goroutines may call its methods; only
// one calls Poll.
type Reader struct {
	mu     sync.Mutex
	path   string
	files  []*file // oldest first; the last is the one at the path
	counts Counts
	recent []Refusal // newest last
}

// Follow sets the log's path, "" for none. Lines that the log holds already are kept as recent
// refusals and not counted: another process may have counted them.
func (f *Reader) Follow(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == path {
		return
	}
	f.close()
	f.path = path
	if path == "" {
		return
	}
	if at, err := open(path); err == nil {
		at.skipTo(oldBytes)
		for range oldBytes/pollBytes + 1 {
			_, _ = at.lines(pollBytes, func(line []byte) { f.readEntry(line, false) })
		}
		f.files = []*file{at}
	}
}

// How much of an old log is read at the beginning, and how much of a new one by one Poll, in bytes.
const (
	oldBytes  = 256 << 10
	pollBytes = 1 << 20
)

// Poll reads new lines, up to a number of bytes. The next call reads the rest. An error means that
// the log cannot be read.
func (f *Reader) Poll() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil
	}
	err := f.openNew()
	left := pollBytes
	for _, at := range f.files {
		n, e := at.lines(left, func(line []byte) { f.readEntry(line, true) })
		left -= n
		err = errors.Join(err, e)
	}
	f.closeFinished()
	return err
}

// openNew opens the file at the path if it is new, and the files that were rotated away in between.
func (f *Reader) openNew() error {
	now, err := open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no decision was made yet, or a rotation is under way
	}
	if err != nil {
		return err
	}
	if len(f.files) == 0 {
		f.files = []*file{now}
		return nil
	}
	last := f.files[len(f.files)-1]
	if now.same(last) {
		now.close()
		return nil
	}
	last.endsSeen = 0
	f.files = append(append(f.files, f.openMissed(last)...), now)
	return nil
}

// maxRotated is how many rotated files may wait to be read.
const maxRotated = 8

// openMissed opens the files that were the log after last, oldest first.
func (f *Reader) openMissed(last *file) []*file {
	var missed []*file
	for i := 1; i <= maxRotated; i++ {
		at, err := open(f.path + "." + strconv.Itoa(i))
		if err != nil {
			break
		}
		if at.same(last) {
			at.close()
			slices.Reverse(missed)
			return missed
		}
		missed = append(missed, at)
	}
	for _, at := range missed { // last is not among them, so they may be of any age
		at.close()
	}
	f.counts.Gaps++
	return nil
}

// closeFinished closes a rotated file when its end was reached twice. A process that has it open
// may write one more line to it.
func (f *Reader) closeFinished() {
	for len(f.files) > 1 && (f.files[0].endsSeen > 1 || len(f.files) > 2*maxRotated) {
		f.files[0].close()
		f.files = f.files[1:]
	}
}

func (f *Reader) close() {
	for _, at := range f.files {
		at.close()
	}
	f.files = nil
}

// Close closes the files.
func (f *Reader) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.close()
	f.path = ""
}

// Path is the log's path; "" for none.
func (f *Reader) Path() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.path
}

// Counts returns a copy of the counts.
func (f *Reader) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts
	c.Refusals = make(map[RefusalKind]uint64, len(f.counts.Refusals))
	for kind, n := range f.counts.Refusals {
		c.Refusals[kind] = n
	}
	return c
}

// Recent returns the last refusals, the newest first.
func (f *Reader) Recent() []Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	recent := slices.Clone(f.recent)
	slices.Reverse(recent)
	return recent
}

// entry holds the fields that are read of one line.
type entry struct {
	Time      time.Time      `json:"time"`
	Container string         `json:"container"`
	Pod       grant.Identity `json:"pod"`
	Verdict   string         `json:"verdict"`
	Mode      string         `json:"mode"`
	Code      string         `json:"code"`
	Message   string         `json:"message"`
	Action    string         `json:"action"`
	Took      float64        `json:"took_ms"`
}

// readEntry counts one line. Its texts may hold anything that a tenant put into annotations.
func (f *Reader) readEntry(text []byte, counted bool) {
	var l entry
	err := json.Unmarshal(text, &l, jsontext.AllowInvalidUTF8(true))
	if err == nil && counted && l.Verdict != "" && l.Took > 0 {
		f.counts.Latency.add(l.Took)
	}
	switch {
	case err != nil:
		f.counts.Unreadable += increment(counted && len(bytes.TrimSpace(text)) > 0)
	case l.Verdict == string(grant.Admit):
		f.counts.Admissions += increment(counted)
	case l.Verdict == string(grant.Pass):
		f.counts.Passes += increment(counted)
	case l.Verdict == string(grant.Refused):
		f.addRefusal(l, counted)
	}
}

func increment(counted bool) uint64 {
	if counted {
		return 1
	}
	return 0
}

func (f *Reader) addRefusal(l entry, counted bool) {
	r := Refusal{Time: l.Time, Code: knownOrOther(l.Code, codes), Mode: knownOrOther(l.Mode, modes),
		Message: Clean(l.Message), Container: Clean(l.Container),
		Pod: grant.Identity{UID: Clean(l.Pod.UID), Namespace: Clean(l.Pod.Namespace), Pod: Clean(l.Pod.Pod),
			Container: Clean(l.Pod.Container)}}
	if l.Mode == "" {
		r.Mode = Enforced
	}
	if counted {
		if f.counts.Refusals == nil {
			f.counts.Refusals = map[RefusalKind]uint64{}
		}
		f.counts.Refusals[RefusalKind{r.Code, r.Mode}]++
	}
	f.recent = append(f.recent, r)
	if len(f.recent) > maxRecent {
		f.recent = slices.Delete(f.recent, 0, len(f.recent)-maxRecent)
	}
}

var (
	codes = func() (list []string) {
		for _, code := range grant.Codes {
			list = append(list, string(code))
		}
		return list
	}()
	modes = []string{string(grant.Report), string(grant.Disabled), string(grant.Observed)}
)

func knownOrOther(word string, list []string) string {
	if slices.Contains(list, word) {
		return word
	}
	return Other
}

// secret matches a reference with its secret. No decision writes one, but a tenant's text in a
// message may.
var secret = regexp.MustCompile(`(g-[a-z]{12})\.[0-9a-fA-F]{8,}`)

// maxText bounds a text, in bytes; the log's own bound is 512.
const maxText = 1024

// Clean makes text of unknown origin fit to be shown: short, without secrets, and without
// characters that change or hide the text around it.
func Clean(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	text = secret.ReplaceAllString(text, "$1.(secret)")
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}
