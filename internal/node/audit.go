package node

import (
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// auditLine is one decision in the audit log.
type auditLine struct {
	Time      time.Time         `json:"time"`
	Engine    grant.Engine      `json:"engine"`
	Container string            `json:"container"`
	Bundle    string            `json:"bundle"`
	Pod       *auditPod         `json:"pod,omitzero"`
	Verdict   grant.VerdictKind `json:"verdict"`
	Mode      grant.RulesMode   `json:"mode,omitzero"` // "report" or "disabled" where a refusal was only recorded
	Code      grant.Code        `json:"code,omitzero"`
	Message   string            `json:"message,omitzero"`
	Grant     grant.ID          `json:"grant,omitzero"`
	Strength  grant.Strength    `json:"strength,omitzero"`
	Details   []grant.Detail    `json:"details,omitempty"`
	Removed   []string          `json:"removed,omitempty"`
	Recorded  []string          `json:"recorded,omitempty"`
}

type auditPod struct {
	UID       string `json:"uid,omitzero"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Container string `json:"container"`
}

// audit records a decision that is worth it: everything but a plain pass. It is best effort: a full disk harms nobody,
// and a GPU that was granted by the ledger is not taken away for it.
func (n *Node) audit(c grant.Container, pod grant.Identity, d Decision) {
	if n.Policy.Audit.File == "" || d.Kind == grant.Pass && len(d.Recorded) == 0 && !d.Touches() {
		return
	}
	line := auditLine{Time: n.Host.Now().UTC(), Engine: c.Engine, Container: c.ID, Bundle: c.Bundle, Verdict: d.Kind, Code: d.Code,
		Message: d.Message, Mode: d.Mode, Details: d.Details, Recorded: d.Recorded}
	if pod != (grant.Identity{}) {
		line.Pod = &auditPod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Pod, Container: pod.Container}
	}
	if d.Grant != nil {
		line.Grant = d.Grant.ID
	}
	if d.Kind == grant.Admit {
		line.Strength = d.Strength
	}
	for _, r := range d.Removed {
		line.Removed = append(line.Removed, r.String())
	}
	if text, err := json.Marshal(line); err == nil {
		appendLine(n.Policy.Audit.File, text)
	}
}

// auditSwitch records that refusals were switched off or on.
func (n *Node) auditSwitch(action string, p Pause) {
	if n.Policy.Audit.File == "" {
		return
	}
	line := struct {
		Time   time.Time `json:"time"`
		Action string    `json:"action"`
		Since  time.Time `json:"since,omitzero"`
		Until  time.Time `json:"until,omitzero"`
	}{n.Host.Now().UTC(), action, p.Since, p.Until}
	if text, err := json.Marshal(line); err == nil {
		appendLine(n.Policy.Audit.File, text)
	}
}

// appendLine writes a line with one write, so that lines of processes beside each other do not mix.
func appendLine(path string, line []byte) {
	if os.MkdirAll(filepath.Dir(path), 0o750) != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return
	}
	_, _ = f.Write(append(line, '\n'))
	_ = f.Close()
}
