package node

import (
	"path/filepath"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// foundLine is a finding of the watch in the audit log, or what was done about one.
type foundLine struct {
	Time      time.Time         `json:"time"`
	Action    string            `json:"action"` // "found", "over", "stopped" or "not-stopped"
	Finding   grant.FindingKind `json:"finding"`
	GPU       string            `json:"gpu"`
	MIG       string            `json:"mig,omitzero"`
	Index     int               `json:"index"`
	Bytes     grant.Bytes       `json:"bytes"`
	Grant     grant.ID          `json:"grant,omitzero"`
	Engine    grant.Engine      `json:"engine,omitzero"`
	Container string            `json:"container,omitzero"`
	Pod       *auditPod         `json:"pod,omitzero"`
	PIDs      []int             `json:"pids,omitempty"`
	Command   string            `json:"command,omitzero"`
	Reaction  grant.Reaction    `json:"reaction,omitzero"`
	Since     time.Time         `json:"since,omitzero"`
	Message   string            `json:"message"`
	LeftOut   int               `json:"left_out,omitzero"` // pids
}

// maxPIDs is how many processes one line names.
const maxPIDs = 32

// Found records what the watch found or did.
func (n *Node) Found(action string, f grant.Finding, reaction grant.Reaction, message string) {
	line := foundLine{Time: n.Host.Now().UTC(), Action: action, Finding: f.Kind, GPU: word(f.GPU),
		MIG: word(f.MIG), Index: f.Index, Bytes: f.Bytes, Grant: f.Grant, Engine: f.User.Engine,
		Container: word(f.User.Container), Command: word(f.User.Command), Reaction: reaction, Since: f.Since,
		Pod: podOfLine(f.User.Pod), Message: cut(message, maxText)}
	for i, p := range f.User.Processes {
		if i == maxPIDs {
			line.LeftOut = len(f.User.Processes) - maxPIDs
			break
		}
		line.PIDs = append(line.PIDs, p.PID)
	}
	text, err := line.json()
	appendLine(n, text, err)
}

func (l foundLine) json() ([]byte, error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("time").Time(l.Time)
		w.Name("action").String(l.Action)
		w.Name("finding").String(string(l.Finding))
		w.Name("gpu").String(l.GPU)
		w.Words("mig", l.MIG)
		w.Name("index").Int(int64(l.Index))
		w.Name("bytes").Uint(uint64(l.Bytes))
		w.Words("grant", string(l.Grant), "engine", string(l.Engine), "container", l.Container)
		l.Pod.write(w)
		if len(l.PIDs) > 0 {
			w.Name("pids").Array(func() {
				for _, pid := range l.PIDs {
					w.Int(int64(pid))
				}
			})
		}
		w.Words("command", l.Command, "reaction", string(l.Reaction))
		w.TimeUnlessZero("since", l.Since)
		w.Name("message").String(l.Message)
		if l.LeftOut != 0 {
			w.Name("left_out").Int(int64(l.LeftOut))
		}
	})
	return w.End()
}

// Ungranted looks up a container without a grant in the records of the real runtimes that keep
// their states in roots. It returns the identity of the container's pod, whether the policy exempts
// it, the root that has it, and its first process, which the caller compares before it says that a
// process is of this container. Without a record there is no process. It does not look at the
// sources of the container's mounts: the server of one may not answer, and the watch asks here.
func (n *Node) Ungranted(roots []string, engine grant.Engine, id string) (pod grant.Identity, exempt bool,
	root string, init grant.Process) {
	if engine == "" {
		engine = n.Policy.Engine
	}
	for _, root = range roots {
		bundle := containers.Bundle(root, id)
		init, known := n.Ledger.Containers.Init(root, id)
		if bundle == "" || !known {
			continue
		}
		config, _ := host.ReadRegular(filepath.Join(bundle, "config.json"), request.MaxSpec)
		pod = podOf(config, engine)
		return pod, admission.Exempt(pod, n.Policy), root, init
	}
	return grant.Identity{}, false, "", grant.Process{}
}

// podOf is the pod that a spec proves; none if it cannot be read. It looks at nothing else.
func podOf(config []byte, engine grant.Engine) grant.Identity {
	spec, err := request.Parse(config)
	if err != nil {
		return grant.Identity{}
	}
	return request.PodOf(spec, engine)
}
