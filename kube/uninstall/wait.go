package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gone reports whether no pod of a DaemonSet is left.
func gone(s appsv1.DaemonSetStatus) bool {
	return s.DesiredNumberScheduled == 0 && s.CurrentNumberScheduled == 0 && s.NumberMisscheduled == 0
}

// returned reports whether each pod is ready with the newest template.
func returned(s appsv1.DaemonSetStatus) bool {
	return s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
		s.NumberAvailable == s.DesiredNumberScheduled
}

// wait waits until the DaemonSets of these names are as wanted, or the context ends.
func (u Uninstall) wait(ctx context.Context, names []string, is func(appsv1.DaemonSetStatus) bool,
	what string) error {
	for {
		waits := ""
		for _, name := range names {
			set, err := u.daemonSet(context.WithoutCancel(ctx), name)
			if err != nil {
				return err
			}
			if set != nil && (set.Status.ObservedGeneration < set.Generation || !is(set.Status)) {
				waits = name
			}
		}
		if waits == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			late := u.late(context.WithoutCancel(ctx))
			return fmt.Errorf("cannot wait any longer for %s (%s): %s. See the logs of these pods, and run "+
				"`helm uninstall` again; it goes on from here", what, waits, late)
		case <-time.After(u.Every):
		}
	}
}

// late names the pods of the release that are not ready, with their nodes.
func (u Uninstall) late(ctx context.Context) string {
	pods, err := u.Client.CoreV1().Pods(u.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=setup"})
	if err != nil {
		return err.Error()
	}
	var late []string
	for _, pod := range pods.Items {
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if !ready || pod.DeletionTimestamp != nil {
			late = append(late, fmt.Sprintf("%s on node %s", pod.Name, pod.Spec.NodeName))
		}
	}
	if len(late) == 0 {
		return "no pod says why"
	}
	slices.Sort(late)
	return strings.Join(late, ", ")
}
