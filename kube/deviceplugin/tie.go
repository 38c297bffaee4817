package deviceplugin

import (
	"errors"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/book"
)

// tie ties the resource's grants to the pods that the kubelet gives their references to. An Allocate does not name the pod, and the kubelet
// writes into its checkpoint what it has answered before any container of the pod is started. Once a container has used a grant its ties stay: its
// reference has been seen. untied are the grants of which the kubelet has not told yet.
func (p *Plugin) tie() (untied int, failed error) {
	n := p.Desk.Book.Open()
	if n.Broken != nil {
		return 0, n.Broken
	}
	o, err := n.Overview()
	if err != nil {
		return 0, err
	}
	page := book.Page{Overview: o, Node: n}
	open := slices.DeleteFunc(p.Desk.Resource.own(page), func(g grant.Grant) bool {
		return g.Draining || len(g.For) > 0 && n.Ledger.Used(g.ID)
	})
	switch {
	case len(open) == 0:
		return 0, nil
	case !page.Ties():
		p.unable.Do(func() {
			p.Desk.Log.Warn("nobody vouches for pods on this node, so grants are not tied to theirs: whoever has read a reference can use its grant", "resource", p.Desk.Resource.Name, "engine", n.Policy.Engine)
		})
		return 0, nil
	}
	to := readGiven(p.Dir, p.Desk.Resource.Name)
	for _, g := range open {
		var ties []grant.Tie
		for _, uid := range to[g.ID] {
			ties = append(ties, grant.PodTie(uid))
		}
		slices.Sort(ties)
		if ties = slices.Compact(ties); len(ties) > 0 {
			failed = errors.Join(failed, p.Desk.Book.Tie(g, ties, p.Desk.Log))
		} else if len(g.For) == 0 {
			untied++
		}
	}
	return untied, failed
}

// blink is between two looks into a checkpoint that the kubelet is about to write.
const blink = 50 * time.Millisecond

// hurry has grants tied that were given out just now, before a container can be started with them: the next look of Ensure may come later.
func (p *Plugin) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(admissionTime)
	if p.hurried {
		return
	}
	p.hurried = true
	done := p.done
	p.ties.Go(func() {
		for {
			until := p.hurriedUntil()
			if untied, err := p.tie(); untied == 0 || err != nil || time.Now().After(until) { // what is left, and an error, is Ensure's
				if p.calm(until) {
					return
				}
				continue
			}
			select {
			case <-done:
				return
			case <-time.After(blink):
			}
		}
	})
}

func (p *Plugin) hurriedUntil() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until
}

// calm ends the hurry, unless a grant was given out meanwhile.
func (p *Plugin) calm(until time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.Equal(until) {
		p.hurried = false
	}
	return !p.hurried
}
