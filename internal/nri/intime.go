package nri

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// limitOf returns how long an answer may take: a little less than the engine waits.
func limitOf(p *plugin) time.Duration { return cmp.Or(p.timeout, stub.DefaultRequestTimeout) * 7 / 8 }

// answer is what a judgement of a container came to.
type answer struct {
	adjustment *api.ContainerAdjustment
	err        error
}

// inTime returns what a judgement returns. If that takes too long, the container is refused:
// without an answer the engine continues without the plugin, with this container and others. A
// judgement looks at the sources of the container's mounts, and the server of a volume may answer
// late or never. What it holds when it ends at last is freed, unless running says that a refusal
// does not keep the container from its start. A container that has stopped meanwhile holds nothing.
func (p *plugin) inTime(pod *api.PodSandbox, c *api.Container, running bool,
	judge func() (*api.ContainerAdjustment, error)) (*api.ContainerAdjustment, error) {
	judged, refused := make(chan answer), make(chan bool, 1)
	p.judgements.begin(c.GetId())
	go func() {
		adjustment, err := judge()
		if p.judgements.stopped(c.GetId()) {
			p.cleanUp(c.GetId())
		}
		p.judgements.end(c.GetId())
		select {
		case judged <- answer{adjustment, err}:
		case is := <-refused:
			if !is {
				return
			}
			if err := p.abandon(p.node(), c.GetId()); err != nil {
				p.Log.Warn(err) // Ensure tries again
			}
		}
	}()
	select {
	case a := <-judged:
		return a.adjustment, a.err
	case <-time.After(limitOf(p)):
		err := p.tooSlow(pod, c, running)
		refused <- err != nil && !running
		return nil, err
	}
}

// tooSlow returns the refusal of a container that is not judged in time; nil if nothing is refused.
func (p *plugin) tooSlow(pod *api.PodSandbox, c *api.Container, running bool) error {
	refusal := &grant.Refusal{Code: grant.Internal,
		Message: fmt.Sprintf("container %q cannot be judged within %s, for which its engine waits: a file "+
			"system that it mounts, or the node, is too slow", cmp.Or(c.GetName(), c.GetId()), limitOf(p)),
		Hint: "see whether the servers of its volumes answer; the kubelet tries again"}
	p.Log.Warnf("container %s: %s", c.GetId(), lineOf(refusal))
	n := p.node()
	if p.Observe || n.Mode() != grant.Enforce {
		return nil
	}
	if create, err := p.create(n, pod, c); err == nil {
		create.Running = running
		n.Fails(create, node.Decision{}, refusal)
	}
	return errors.New(lineOf(refusal))
}
