package configure

import (
	"os"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Survey is the verdict of the plan's policy on the containers that run now.
type Survey struct {
	Running int       `json:"running"`
	Refused []Refused `json:"refused"`
}

// Refused is a running container whose next start would be refused, with gpuledger's handler as the
// engine's default and policy.mode "enforce".
type Refused struct {
	Container string     `json:"container"` // the container's id
	Pod       string     `json:"pod"`       // NAMESPACE/NAME, if the engine writes it
	Code      grant.Code `json:"code"`
	Message   string     `json:"message"`
}

// Survey decides about every running container of the engine as a create would. It finds them by
// the real runtime's state.
func (p *Plan) Survey(h host.Host) Survey {
	n := node.Node{Host: h, Policy: p.Policy,
		Ledger: ledger.Open(ledger.Options{State: p.Policy.StateDir, Run: p.Policy.RunDir, Host: h})}
	s := Survey{Refused: []Refused{}}
	for _, root := range p.Roots {
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			bundle := containers.Bundle(root, e.Name())
			if bundle == "" || n.Ledger.Containers.Life(root, e.Name()) != grant.Alive {
				continue
			}
			config, err := host.ReadRegular(filepath.Join(bundle, "config.json"), request.MaxSpec)
			if isAnothers(p.in.Engine, config) {
				continue
			}
			s.Running++
			c := grant.Container{Engine: p.in.Engine, RuntimeRoot: root, ID: e.Name(), Bundle: bundle}
			d := n.Explain(node.Create{Caller: request.Caller{Container: c}, Config: config, Unread: err})
			if d.Kind == grant.Refused {
				s.Refused = append(s.Refused,
					Refused{Container: c.ID, Pod: podOf(config), Code: d.Code, Message: d.Message})
			}
		}
	}
	return s
}

// managers are the engines that keep their containers in the same directory, with the name that
// each writes into its specs.
var managers = map[grant.Engine]string{grant.CRIO: "cri-o", grant.Podman: "libpod"}

// isAnothers reports whether a container belongs to another engine than the configured one.
func isAnothers(engine grant.Engine, config []byte) bool {
	ours, shares := managers[engine]
	spec, err := request.Parse(config)
	if !shares || err != nil {
		return false
	}
	manager := spec.Annotations["io.container.manager"]
	return manager != "" && manager != ours
}

// podOf is a pod's name for display. No decision uses it.
func podOf(config []byte) string {
	spec, err := request.Parse(config)
	if err != nil {
		return ""
	}
	for _, keys := range [][2]string{
		{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},
		{"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
	} {
		if name := spec.Annotations[keys[1]]; name != "" {
			return grant.Printable(spec.Annotations[keys[0]] + "/" + name)
		}
	}
	return ""
}
