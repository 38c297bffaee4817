package configure

import (
	"os"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Survey is what the plan's policy says of the containers that run now.
type Survey struct {
	Running int       `json:"running"`
	Refused []Refused `json:"refused"`
}

// Refused is a container that would not start again, were its engine's default handler ours and policy.mode "enforce".
type Refused struct {
	Container string     `json:"container"` // its id
	Pod       string     `json:"pod"`       // NAMESPACE/NAME, where the engine tells
	Code      grant.Code `json:"code"`
	Message   string     `json:"message"`
}

// Survey asks for every container of the engine that runs now, by the real runtime's records, what a create of it would
// come to.
func (p *Plan) Survey(h host.Host) Survey {
	n := node.Node{Host: h, Policy: p.Policy, Ledger: ledger.Open(ledger.Options{State: p.Policy.StateDir, Run: p.Policy.RunDir, Host: h})}
	s := Survey{Refused: []Refused{}}
	for _, root := range p.Roots {
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			bundle := n.Ledger.ContainerBundle(root, e.Name())
			if bundle == "" || n.Ledger.ContainerLife(root, e.Name()) != grant.Alive {
				continue
			}
			config, err := host.ReadFile(filepath.Join(bundle, "config.json"), request.MaxSpec)
			if p.isAnothers(config) {
				continue
			}
			s.Running++
			c := grant.Container{Engine: p.options.Engine, RuntimeRoot: root, ID: e.Name(), Bundle: bundle}
			d := n.Explain(node.Create{Caller: request.Caller{Container: c}, Config: config, Unread: err})
			if d.Kind == grant.Refused {
				s.Refused = append(s.Refused, Refused{Container: c.ID, Pod: podOf(config), Code: d.Code, Message: d.Message})
			}
		}
	}
	return s
}

// managers are the engines that keep their containers in the same directory, by what they write into their specs.
var managers = map[grant.Engine]string{grant.CRIO: "cri-o", grant.Podman: "libpod"}

// isAnothers reports whether a container is of another engine than the one to configure.
func (p *Plan) isAnothers(config []byte) bool {
	ours, shares := managers[p.options.Engine]
	spec, err := request.Parse(config)
	if !shares || err != nil {
		return false
	}
	manager := spec.Annotations["io.container.manager"]
	return manager != "" && manager != ours
}

// podOf reads a pod's name for a person to read; nothing is decided by it.
func podOf(config []byte) string {
	spec, err := request.Parse(config)
	if err != nil {
		return ""
	}
	for _, keys := range [][2]string{
		{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"}, {"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
	} {
		if name := spec.Annotations[keys[1]]; name != "" {
			return grant.Printable(spec.Annotations[keys[0]] + "/" + name)
		}
	}
	return ""
}
