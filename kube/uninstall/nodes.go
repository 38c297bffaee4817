package uninstall

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// formerUnavailable is the annotation of a set-up's DaemonSet with the chart's maxUnavailable. It
// counts while the pods' template is the one of the removal.
const formerUnavailable = "gpuledger.dev/uninstall-max-unavailable"

// returnNodes makes the set-up's pods remove what they have installed.
func (u Uninstall) returnNodes(ctx context.Context) error {
	for _, name := range u.Setups {
		err := u.again(ctx, func(ctx context.Context) error { return u.returnNodesOf(ctx, name) })
		if err != nil {
			return err
		}
	}
	return nil
}

// returnNodesOf does that for the nodes of one DaemonSet of the set-up.
func (u Uninstall) returnNodesOf(ctx context.Context, name string) error {
	set, err := u.daemonSet(ctx, name)
	if err != nil || set == nil {
		return err
	}
	dead, err := u.dead(ctx, name)
	if err != nil {
		return err
	}
	was := chartsUnavailable(set)
	if err := u.patch(ctx, name, types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{formerUnavailable: was.String()}},
		"spec": map[string]any{
			"updateStrategy": rolling(unavailable(set, dead)),
			"template":       map[string]any{"spec": removal(set.Spec.Template.Spec)}}}); err != nil {
		return fmt.Errorf("cannot let %s give its nodes back: %w", name, err)
	}
	u.Say("%s gives its nodes back", name)
	return nil
}

// widen lets the update go on beside nodes that have gone down meanwhile.
func (u Uninstall) widen(ctx context.Context) error {
	for _, name := range u.Setups {
		set, err := u.daemonSet(ctx, name)
		if err != nil {
			return err
		}
		if set == nil || returned(set.Status) {
			continue
		}
		dead, err := u.dead(ctx, name)
		if err != nil {
			return err
		}
		wants := unavailable(set, dead)
		if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil &&
			*r.MaxUnavailable == wants {
			continue
		}
		if err := u.patch(ctx, name, types.StrategicMergePatchType, map[string]any{
			"spec": map[string]any{"updateStrategy": rolling(wants)}}); err != nil {
			return fmt.Errorf("cannot let %s go on beside nodes that are down: %w", name, err)
		}
	}
	return nil
}

// dead counts the pods of a DaemonSet that are not ready on nodes that are not ready.
func (u Uninstall) dead(ctx context.Context, name string) (n int, err error) {
	pods, works, err := u.podsAndNodes(ctx, []string{name})
	for _, pod := range pods {
		if node := pod.Spec.NodeName; node != "" && !ready(pod) && !works[node] {
			n++
		}
	}
	return n, err
}

// unavailable is how many pods may be unavailable: as the chart says, and the dead ones. An update
// counts them, too, and would not reach the other nodes.
func unavailable(set *appsv1.DaemonSet, dead int) intstr.IntOrString {
	was := chartsUnavailable(set)
	if dead == 0 {
		return was
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&was, int(set.Status.DesiredNumberScheduled), true)
	if err != nil {
		n = 1
	}
	return intstr.FromInt(max(n, 1) + dead)
}

func chartsUnavailable(set *appsv1.DaemonSet) intstr.IntOrString {
	was, kept := set.Annotations[formerUnavailable]
	if pod := set.Spec.Template.Spec; kept && leaves(pod) {
		return intstr.Parse(was)
	}
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		return *r.MaxUnavailable
	}
	return intstr.FromInt(1)
}

func rolling(unavailable intstr.IntOrString) map[string]any {
	return map[string]any{"rollingUpdate": map[string]any{"maxUnavailable": unavailable}}
}

// leaves reports whether a pod of the set-up is one of the removal.
func leaves(pod corev1.PodSpec) bool {
	return len(pod.Containers) > 0 && len(pod.Containers[0].Args) > 0 && pod.Containers[0].Args[0] == "leave"
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
