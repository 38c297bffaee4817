package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// auditLine is one decision in the audit log. docs/audit.md explains the fields.
type auditLine struct {
	Time      time.Time         `json:"time"`
	Engine    grant.Engine      `json:"engine"`
	Container string            `json:"container"`
	Bundle    string            `json:"bundle"`
	Pod       *auditPod         `json:"pod,omitzero"`
	Verdict   grant.VerdictKind `json:"verdict"`
	// "report", "disabled" or "observed" where a refusal, or what policy takes away, was only
	// recorded
	Mode     grant.RulesMode `json:"mode,omitzero"`
	Code     grant.Code      `json:"code,omitzero"`
	Message  string          `json:"message,omitzero"`
	Grant    grant.ID        `json:"grant,omitzero"`
	Strength grant.Strength  `json:"strength,omitzero"`
	Details  []grant.Detail  `json:"details,omitempty"`
	Removed  []string        `json:"removed,omitempty"`
	Recorded []string        `json:"recorded,omitempty"`
	Took     float64         `json:"took_ms,omitzero"` // milliseconds from the call to the verdict
	// entries of the three lists, cut to bound the line
	LeftOut int `json:"left_out,omitzero"`
}

type auditPod struct {
	UID       string `json:"uid,omitzero"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Container string `json:"container"`
}

// maxLine bounds a line, in bytes with its end: a tenant chooses how much there is to find, and
// must not fill the log with one container. It also keeps a line within one page, which file
// systems write at once or not at all.
const maxLine = 4096

// recordDecision records every decision but a plain pass. It is best effort: a full disk stops no
// container, and takes no granted GPU away.
func recordDecision(n *Node, c grant.Container, d Decision) {
	if n.Policy.Audit.File == "" || d.Kind == grant.Pass && len(d.Recorded) == 0 && !d.Touches() {
		return
	}
	appendAudit(n.Policy.Audit, newAuditLine(n.Host.Now().UTC(), c, d).encode())
}

// newAuditLine bounds each text. Tenants choose ids, paths and annotations.
func newAuditLine(now time.Time, c grant.Container, d Decision) auditLine {
	line := auditLine{Time: now, Engine: c.Engine, Container: word(c.ID), Bundle: cut(c.Bundle, maxText),
		Verdict: d.Kind, Code: d.Code,
		Message: cut(d.Message, maxText), Mode: d.NotEnforced}
	line.Pod = podOfLine(d.pod)
	if !d.began.IsZero() {
		line.Took = float64(time.Since(d.began).Microseconds()) / 1000
	}
	if d.Grant != nil {
		line.Grant = d.Grant.ID
	}
	if d.Kind == grant.Admit {
		line.Strength = d.Strength
	}
	for _, f := range d.Details {
		line.Details = append(line.Details, grant.Detail{
			Vector: cut(f.Vector, maxText), Value: cut(f.Value, maxText), Code: f.Code})
	}
	for _, r := range d.Removed {
		line.Removed = append(line.Removed, cut(r.String(), maxText))
	}
	for _, r := range d.Recorded {
		line.Recorded = append(line.Recorded, cut(r, maxText))
	}
	return line
}

// What one text of a line may have, in bytes. Kubernetes' names have up to 253.
const (
	maxText = 512
	maxWord = 256
)

// word returns a name as a line of the log has it. It is so short that no line has to leave it out:
// five of them fit, even escaped twice.
func word(name string) string { return cut(grant.Printable(name), maxWord) }

// bounded returns an identity as a line of the log has it.
func bounded(pod grant.Identity) grant.Identity {
	return grant.Identity{UID: word(pod.UID), Namespace: word(pod.Namespace), Pod: word(pod.Pod),
		Container: word(pod.Container)}
}

// podOfLine is the member "pod" of a line, nil without a pod.
func podOfLine(pod grant.Identity) *auditPod {
	if pod = bounded(pod); pod == (grant.Identity{}) {
		return nil
	}
	return &auditPod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Pod, Container: pod.Container}
}

// cut makes text fit for JSON, whose strings are UTF-8, and short.
func cut(text string, most int) string {
	if len(text) > most {
		end := most - len("...")
		for end > 0 && text[end]&0xc0 == 0x80 { // within a character
			end--
		}
		text = text[:end] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// encode writes the line, with as much of its lists as the bound leaves room for.
func (l auditLine) encode() []byte {
	for {
		text, err := l.json()
		if err != nil {
			return nil
		}
		if len(text) < maxLine || !l.shorten() {
			return append(text, '\n')
		}
	}
}

// json writes the line as the library does by the fields' tags, which a test holds.
func (l auditLine) json() ([]byte, error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("time").Time(l.Time)
		w.Name("engine").String(string(l.Engine))
		w.Name("container").String(l.Container)
		w.Name("bundle").String(l.Bundle)
		l.Pod.write(w)
		w.Name("verdict").String(string(l.Verdict))
		w.Words("mode", string(l.Mode), "code", string(l.Code), "message", l.Message, "grant",
			string(l.Grant), "strength", string(l.Strength))
		if len(l.Details) > 0 {
			w.Name("details").Array(func() {
				for _, d := range l.Details {
					w.Object(func() {
						w.Name("vector").String(d.Vector)
						w.Name("value").String(d.Value)
						w.Name("code").String(string(d.Code))
					})
				}
			})
		}
		if len(l.Removed) > 0 {
			w.Name("removed").Strings(l.Removed)
		}
		if len(l.Recorded) > 0 {
			w.Name("recorded").Strings(l.Recorded)
		}
		if l.Took != 0 {
			w.Name("took_ms").Float(l.Took)
		}
		if l.LeftOut != 0 {
			w.Name("left_out").Int(int64(l.LeftOut))
		}
	})
	return w.End()
}

// write writes a line's member "pod", if it has one.
func (p *auditPod) write(w *tokens.Writer) {
	if p == nil {
		return
	}
	w.Name("pod").Object(func() {
		w.Words("uid", p.UID)
		w.Name("namespace").String(p.Namespace)
		w.Name("name").String(p.Name)
		w.Name("container").String(p.Container)
	})
}

// shorten drops the second half of the longest list, and where none is left the texts that the
// others repeat. It reports whether there was anything to drop.
func (l *auditLine) shorten() bool {
	details, removed, recorded := len(l.Details), len(l.Removed), len(l.Recorded)
	switch longest := max(details, removed, recorded); {
	case longest == 0:
		shorter := l.Message != "" || l.Bundle != ""
		l.Message, l.Bundle = "", ""
		return shorter
	case details == longest:
		l.Details = l.Details[:details/2]
	case removed == longest:
		l.Removed = l.Removed[:removed/2]
	default:
		l.Recorded = l.Recorded[:recorded/2]
	}
	l.LeftOut += details + removed + recorded - len(l.Details) - len(l.Removed) - len(l.Recorded)
	return true
}

// recordSwitch records that refusals were switched off or on.
func recordSwitch(n *Node, action string, p Pause) {
	line := switchLine{n.Host.Now().UTC(), action, p.Since, p.Until}
	text, err := line.json()
	appendLine(n, text, err)
}

// appendLine appends what an encoder returns, if that is no error. It is best effort, as all of the
// log.
func appendLine(n *Node, text []byte, err error) {
	if err == nil && n.Policy.Audit.File != "" {
		appendAudit(n.Policy.Audit, append(text, '\n'))
	}
}

// RecordUser records what a user of the node has done with a grant, or was refused, and what was
// done to an idle one.
func RecordUser(n *Node, action string, user uint32, g grant.ID, err error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("time").Time(n.Host.Now().UTC())
		w.Name("action").String(action)
		w.Name("user").Uint(uint64(user))
		w.Words("grant", string(g))
		var r *grant.Refusal
		if errors.As(err, &r) {
			w.Words("code", string(r.Code))
		}
		if err != nil {
			w.Words("message", cut(err.Error(), maxText))
		}
	})
	text, e := w.End()
	appendLine(n, text, e)
}

// RecordMore records how many more refusals of a user there were since a time than were recorded;
// of all users without a known quota together, if the user is not known.
func RecordMore(n *Node, user uint32, known bool, times int, since time.Time) {
	whose := "users without a known quota"
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("time").Time(n.Host.Now().UTC())
		w.Name("action").String("refused")
		if known {
			whose = "this user"
			w.Name("user").Uint(uint64(user))
		}
		w.Name("since").Time(since.UTC())
		w.Name("times").Int(int64(times))
		w.Name("message").String(fmt.Sprintf("%d more requests of %s were refused", times, whose))
	})
	text, err := w.End()
	appendLine(n, text, err)
}

// switchLine is in the audit log when refusals are switched off or on.
type switchLine struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
}

func (l switchLine) json() ([]byte, error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("time").Time(l.Time)
		w.Name("action").String(l.Action)
		w.TimeUnlessZero("since", l.Since)
		w.TimeUnlessZero("until", l.Until)
	})
	return w.End()
}
