package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// nowhere is the value of a label that no node has.
	nowhere = "gpuledger-uninstall"
	// formerNodes is the annotation of an agent's DaemonSet with the node selector that it had,
	// in JSON. It outlives a Job that ends before it has brought the agent back.
	formerNodes = "gpuledger.dev/uninstall-node-selector"
	// startTries is how often bringBack tries: the Job has a minute more than its timeout.
	startTries = 40
	// agentsTime is the most that the agents' pods get to end. Their grace period is 30 seconds.
	agentsTime = 2 * time.Minute
)

const devicePlugin = "gpuledger-device-plugin"

// agents are the names of the agents' DaemonSets.
var agents = []string{"gpuledger-dra", devicePlugin}

// stopAgents takes the agents from all nodes.
func (u Uninstall) stopAgents(ctx context.Context) error {
	for _, name := range agents {
		set, err := u.daemonSet(ctx, name)
		if err != nil {
			return err
		}
		if set == nil {
			continue
		}
		selector := map[string]string{}
		for label := range set.Spec.Template.Spec.NodeSelector {
			selector[label] = nowhere // `helm upgrade` brings a value back, and would leave a new label
		}
		if err := u.selects(ctx, name, selector, former(set)); err != nil {
			return err
		}
		u.Say("%s leaves the nodes", name)
	}
	return nil
}

// stopped reports whether an uninstall has taken an agent from all nodes.
func stopped(set *appsv1.DaemonSet) bool {
	for _, value := range set.Spec.Template.Spec.NodeSelector {
		if value == nowhere {
			return true
		}
	}
	return false
}

// former returns the node selector that an agent had before any uninstall, nil if nothing says it.
func former(set *appsv1.DaemonSet) map[string]string {
	var kept map[string]string
	if json.Unmarshal([]byte(set.Annotations[formerNodes]), &kept) != nil {
		kept = nil
	}
	selector := map[string]string{}
	for label, value := range set.Spec.Template.Spec.NodeSelector {
		known := true
		if value == nowhere { // an uninstall was interrupted
			value, known = kept[label]
		}
		if !known {
			return nil
		}
		selector[label] = value
	}
	return selector
}

// waitForAgents waits until the agents have no pods. It waits for a third of the time that is
// left, so that the nodes get the rest. Pods on nodes that are not ready do not hold it up any
// longer then: no kubelet ends them.
func (u Uninstall) waitForAgents(ctx context.Context) error {
	most := agentsTime
	if end, bounded := ctx.Deadline(); bounded {
		most = min(most, time.Until(end)/3)
	}
	bounded, stop := context.WithTimeout(ctx, most)
	defer stop()
	err := u.wait(bounded, agents, gone, "the agents", nil)
	if late := (*lateError)(nil); !errors.As(err, &late) {
		return err
	}
	var pods []corev1.Pod
	var nodes map[string]bool
	if failed := u.again(ctx, func(ctx context.Context) (err error) {
		pods, nodes, err = u.podsAndNodes(ctx, agents)
		return err
	}); failed != nil {
		return failed
	}
	var lost []string
	for _, pod := range pods {
		if nodes[pod.Spec.NodeName] {
			return err
		}
		lost = append(lost, pod.Spec.NodeName)
	}
	if len(lost) == 0 {
		return err
	}
	slices.Sort(lost)
	u.Say("these nodes are not ready, and their agents' pods stay: %s", strings.Join(lost, ", "))
	return nil
}

// bringBack starts the agents again, also if the API does not work for a while, unless an earlier
// run has begun to give the nodes back: their engines no longer call gpuledger.
func (u Uninstall) bringBack(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, startTries*u.Every)
	defer stop()
	leaving := false
	err := u.again(ctx, func(ctx context.Context) error {
		for _, name := range u.Setups {
			set, err := u.daemonSet(ctx, name)
			if err != nil {
				return err
			}
			leaving = leaving || set != nil && leaves(set.Spec.Template.Spec)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot bring the agents back to their nodes: %w", err)
	}
	if leaving {
		u.Say("the agents stay away: the nodes are being given back. `helm rollback` brings all back")
		return nil
	}
	return u.startAgents(ctx)
}

// startAgents brings back the agents that this run or an earlier one has taken.
func (u Uninstall) startAgents(ctx context.Context) (failed error) {
	for _, name := range agents {
		if err := u.startAgent(ctx, name); err != nil {
			failed = errors.Join(failed, fmt.Errorf("cannot bring %s back to its nodes: %w", name, err))
		}
	}
	return failed
}

func (u Uninstall) startAgent(ctx context.Context, name string) error {
	var set *appsv1.DaemonSet
	err := u.again(ctx, func(ctx context.Context) (err error) {
		set, err = u.daemonSet(ctx, name)
		return err
	})
	if err != nil || set == nil || !stopped(set) {
		return err
	}
	was := former(set)
	if was == nil {
		return fmt.Errorf("it has no annotation %s. Run `helm rollback` to the newest revision", formerNodes)
	}
	err = u.again(ctx, func(ctx context.Context) error { return u.selects(ctx, name, was, nil) })
	if err == nil {
		u.Say("%s comes back to the nodes", name)
	}
	return err
}

// selects sets the nodes of an agent, and the annotation formerNodes, which nil removes.
func (u Uninstall) selects(ctx context.Context, name string, labels, was map[string]string) error {
	var note any
	if was != nil {
		text, err := json.Marshal(was)
		if err != nil {
			return err
		}
		note = string(text)
	}
	if err := u.patch(ctx, name, types.MergePatchType, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{formerNodes: note}},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"nodeSelector": labels}}}}); err != nil {
		return fmt.Errorf("cannot change the nodes of %s: %w", name, err)
	}
	return nil
}
