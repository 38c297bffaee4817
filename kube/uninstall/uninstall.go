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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/kube/nodestate"
)

const (
	configMap = "gpuledger-config"
	force     = "gpuledger.dev/uninstall" // the annotation of configMap, with the value "force"
	// nowhere is the value of a label that no node has.
	nowhere = "gpuledger-uninstall"
)

const devicePlugin = "gpuledger-device-plugin"

// agents are the names of the agents' DaemonSets.
var agents = []string{"gpuledger-dra", devicePlugin}

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
	if err != nil {
		return err
	}
	if err := u.refuse(ctx, forced); err != nil {
		return err
	}
	selectors, err := u.stopAgents(ctx)
	if err == nil && !forced {
		if err = u.wait(ctx, agents, gone, "the agents"); err == nil {
			err = u.refuse(ctx, false) // a pod may have come before the agent was gone
		}
	}
	if err != nil {
		return errors.Join(err, u.startAgents(context.WithoutCancel(ctx), selectors))
	}
	if _, published := selectors[devicePlugin]; published {
		err = u.forgetLedgers(ctx)
	}
	if err = errors.Join(err, u.returnNodes(ctx)); err != nil {
		return err
	}
	err = u.wait(ctx, u.Setups, returned, "the nodes")
	if err != nil && forced {
		u.Say("forced: %v", err)
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

// refuse returns an error if pods have GPUs: only the agent gives them back.
func (u Uninstall) refuse(ctx context.Context, forced bool) error {
	users, err := u.users(ctx)
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

// stopAgents takes the agents from all nodes. It returns the labels that they have selected.
func (u Uninstall) stopAgents(ctx context.Context) (map[string]map[string]string, error) {
	selectors := map[string]map[string]string{}
	for _, name := range agents {
		set, err := u.daemonSet(ctx, name)
		if err != nil {
			return selectors, err
		}
		if set == nil {
			continue
		}
		selector := map[string]string{}
		for label := range set.Spec.Template.Spec.NodeSelector {
			selector[label] = nowhere // `helm upgrade` brings a value back, and would leave a new label
		}
		if err := u.selects(ctx, name, selector); err != nil {
			return selectors, err
		}
		selectors[name] = set.Spec.Template.Spec.NodeSelector
		u.Say("%s leaves the nodes", name)
	}
	return selectors, nil
}

// startAgents brings the agents back.
func (u Uninstall) startAgents(ctx context.Context, selectors map[string]map[string]string) (failed error) {
	for name, selector := range selectors {
		if err := u.selects(ctx, name, selector); err != nil {
			failed = errors.Join(failed, err)
		} else {
			u.Say("%s comes back to the nodes", name)
		}
	}
	return failed
}

// forgetLedgers removes what the device plugin has published of the nodes' ledgers: no scheduler
// may place a pod by it any more.
func (u Uninstall) forgetLedgers(ctx context.Context) (failed error) {
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

func (u Uninstall) selects(ctx context.Context, name string, labels map[string]string) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
		"spec": map[string]any{"nodeSelector": labels}}}})
	if err != nil {
		return err
	}
	_, err = u.Client.AppsV1().DaemonSets(u.Namespace).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cannot change the nodes of %s: %w", name, err)
	}
	return nil
}

// returnNodes makes the set-up's pods remove what they have installed.
func (u Uninstall) returnNodes(ctx context.Context) error {
	for _, name := range u.Setups {
		set, err := u.daemonSet(ctx, name)
		if err != nil {
			return err
		}
		if set == nil {
			continue
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
			"spec": removal(set.Spec.Template.Spec)}}})
		if err != nil {
			return err
		}
		if _, err := u.Client.AppsV1().DaemonSets(u.Namespace).Patch(ctx, name,
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("cannot let %s give its nodes back: %w", name, err)
		}
		u.Say("%s gives its nodes back", name)
	}
	return nil
}

// removal is what changes in a pod of the set-up: it removes what it installed, and the cluster's
// file, and is ready then.
func removal(pod corev1.PodSpec) map[string]any {
	changes := map[string]any{}
	for _, c := range pod.Containers {
		changes["containers"] = []any{map[string]any{"name": c.Name, "args": []string{"leave"},
			"readinessProbe": nil}}
	}
	for _, c := range pod.InitContainers {
		args := []string{"remove"}
		for _, arg := range c.Args {
			if strings.HasPrefix(arg, "--engine=") {
				args = append(args, arg)
			}
		}
		changes["initContainers"] = []any{map[string]any{"name": c.Name, "args": args}}
	}
	return changes
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
