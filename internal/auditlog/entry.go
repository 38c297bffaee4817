// Package auditlog reads the audit log. Many short processes make decisions, and each of them
// records them there; docs/audit.md has the fields of a line. A Log reads back what was recorded,
// from all the files that rotations leave, a line at a time: a log may be larger than memory. A
// Counter counts what is recorded while the log grows.
package auditlog

import (
	"bytes"
	"cmp"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Entry is a line of the log: a decision, or an action. Tenants may have written its texts, which
// may hold control characters.
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
	Took      float64        `json:"took_ms"` // of a decision, in milliseconds
	Action    string         `json:"action"`  // "found", "stopped", "disabled", ...
	User      *uint32        `json:"user"`    // whose action it was; nil for none, or no known one
	Finding   string         `json:"finding"`
	Until     time.Time      `json:"until"`

	Line []byte `json:"-"` // as it stands in the log, without its end; valid until the next entry is read
}

// PodName returns the pod's container as NAMESPACE/POD/CONTAINER, or as much of it as is known; ""
// for none.
func (e *Entry) PodName() string {
	if e.Pod.Pod == "" {
		return e.Pod.UID
	}
	return strings.TrimSuffix(e.Pod.Namespace+"/"+e.Pod.Pod+"/"+e.Pod.Container, "/")
}

// parse reads a line. It may hold whatever a tenant put into its annotations, or be no entry at
// all.
func parse(line []byte) (*Entry, bool) {
	e := Entry{Line: line}
	err := json.Unmarshal(line, &e, jsontext.AllowInvalidUTF8(true))
	return &e, err == nil && !e.Time.IsZero() && (e.Verdict != "" || e.Action != "")
}

// isBlank reports whether a line has nothing in it. A line that is too long is nil, and not blank.
func isBlank(line []byte) bool { return line != nil && len(bytes.TrimSpace(line)) == 0 }

// Filter is which entries are wanted. An empty field leaves nothing out.
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
	return strings.HasPrefix(e.Container, f.Container) ||
		e.Pod.Pod != "" && (f.Container == pod || f.Container == pod+"/"+e.Pod.Container)
}
