// Package uninstall takes gpuledger from the nodes of a cluster, before its objects are deleted:
// `helm uninstall` runs it in a Job (docs/adr/0087).
package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/kube/nodestate"
)

const (
	configMap = "gpuledger-config"
	force     = "gpuledger.dev/uninstall" // the annotation of configMap, with the value "force"
)

// Uninstall is what is to be taken from the nodes.
type Uninstall struct {
	Client    kubernetes.Interface
	Namespace string   // of the release
	Setups    []string // names of the set-up's DaemonSets
	Say       func(format string, args ...any)
	Every     time.Duration // between two looks at a DaemonSet
}

// Run refuses if a pod has GPUs of gpuledger, takes the agents from the nodes, gives the nodes
// back, and waits for that until the context ends. It can be repeated.
func (u Uninstall) Run(ctx context.Context) error {
	forced, err := u.forced(ctx)
	if err == nil {
		err = u.takeAgents(ctx, forced)
	}
	if err != nil { // an earlier run that was killed may have taken the agents
		err = errors.Join(err, u.bringBack(context.WithoutCancel(ctx)))
	} else {
		err = u.giveBack(ctx, forced)
	}
	switch {
	case !forced:
	case err == nil:
		u.endForce(context.WithoutCancel(ctx))
	default:
		u.Say("the next uninstall is forced, too. To take that back: kubectl -n %s annotate configmap/%s %s-",
			u.Namespace, configMap, force)
	}
	return err
}

// takeAgents takes the agents from the nodes. It fails if a pod has GPUs, unless it is forced.
func (u Uninstall) takeAgents(ctx context.Context, forced bool) error {
	if err := u.refuse(ctx, forced); err != nil {
		return err
	}
	err := u.again(ctx, u.stopAgents)
	if err == nil { // an agent that runs publishes again what giveBack removes
		err = u.waitForAgents(ctx)
	}
	if late := (*lateError)(nil); forced && errors.As(err, &late) {
		u.Say("forced: still on their nodes: %s", late.pods)
		err = nil
	}
	if err == nil && !forced {
		err = u.refuse(ctx, false) // a pod may have come before the agent was gone
	}
	return err
}

// giveBack removes what the agents have published, lets the set-up give the nodes back, and waits
// for them.
func (u Uninstall) giveBack(ctx context.Context, forced bool) error {
	err := u.again(ctx, u.forgetLedgers)
	if err = errors.Join(err, u.returnNodes(ctx)); err != nil {
		return err
	}
	err = u.wait(ctx, u.Setups, returned, "the nodes", u.widen)
	if late := (*lateError)(nil); forced && errors.As(err, &late) {
		u.Say("forced: not given back: %s", late.pods)
		u.Say("those of them that gpuledger's scheduler served still trust annotations of pods, and Helm " +
			"deletes the policy allocations.gpuledger.dev, by which only the scheduler writes these. Apply " +
			"kube/manifests/scheduler/policy.yaml until the nodes are given back")
		return nil
	}
	return err
}

// forced reports whether an administrator has asked for it whatever happens.
func (u Uninstall) forced(ctx context.Context) (bool, error) {
	c, err := u.Client.CoreV1().ConfigMaps(u.Namespace).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read %s: %w", configMap, err)
	}
	return c.Annotations[force] == "force", nil
}

// endForce removes the annotation: after a rollback it would force another uninstall, much later.
// It stays until a run succeeds, so that the next run is forced, too, if this one is killed.
func (u Uninstall) endForce(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, oneLook)
	defer stop()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, force)
	err := u.again(ctx, func(ctx context.Context) error {
		_, err := u.Client.CoreV1().ConfigMaps(u.Namespace).Patch(ctx, configMap, types.MergePatchType,
			patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		u.Say("the annotation %s of %s stays: %v", force, configMap, err)
	}
}

// refuse returns an error if pods have GPUs: only the agent gives them back.
func (u Uninstall) refuse(ctx context.Context, forced bool) error {
	var users []string
	err := u.again(ctx, func(ctx context.Context) (err error) {
		users, err = u.users(ctx)
		return err
	})
	if err != nil || len(users) == 0 {
		return err
	}
	if forced {
		u.Say("forced: these have GPUs, and no agent will give them back: %s", strings.Join(users, ", "))
		return nil
	}
	return fmt.Errorf("refused: these have GPUs, which only the agent can give back: %s. Delete these pods "+
		"and run `helm uninstall` again, or take gpuledger away under them: kubectl -n %s annotate "+
		"configmap/%s %s=force", strings.Join(users, ", "), u.Namespace, configMap, force)
}

// forgetLedgers removes what the device plugin has published of the nodes' ledgers: no scheduler
// may place a pod by it any more. Without a device plugin it may not change nodes.
func (u Uninstall) forgetLedgers(ctx context.Context) (failed error) {
	if set, err := u.daemonSet(ctx, devicePlugin); err != nil || set == nil {
		return err
	}
	nodes, err := u.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cannot see which nodes have published their ledgers: %w", err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, nodestate.Annotation)
	for _, n := range nodes.Items {
		if _, published := n.Annotations[nodestate.Annotation]; !published {
			continue
		}
		_, err := u.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("cannot remove what node %s has published: %w", n.Name,
				err))
		}
	}
	return failed
}

// daemonSet returns nil if there is none.
func (u Uninstall) daemonSet(ctx context.Context, name string) (*appsv1.DaemonSet, error) {
	set, err := u.Client.AppsV1().DaemonSets(u.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return set, nil
}

// patch changes a DaemonSet.
func (u Uninstall) patch(ctx context.Context, name string, how types.PatchType, changes any) error {
	text, err := json.Marshal(changes)
	if err != nil {
		return err
	}
	_, err = u.Client.AppsV1().DaemonSets(u.Namespace).Patch(ctx, name, how, text, metav1.PatchOptions{})
	return err
}
