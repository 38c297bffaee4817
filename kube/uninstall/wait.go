package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// oneLook is how long the API may take for what one look at the DaemonSets asks.
const oneLook = 10 * time.Second

// lateError says what was not as wanted when the time was over.
type lateError struct {
	what string
	pods string // with their nodes
}

func (e *lateError) Error() string {
	return fmt.Sprintf("cannot wait any longer for %s: %s. See the logs of these pods, and run "+
		"`helm uninstall` again; it goes on from here", e.what, e.pods)
}

// final reports whether the API answers the same at the next try. Other errors may pass: giving
// back a server of k3s or RKE2 restarts its API server.
func final(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) ||
		apierrors.IsInvalid(err)
}

// again tries until it succeeds, its error is final, or the context ends.
func (u Uninstall) again(ctx context.Context, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil || final(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(u.Every):
		}
	}
}

// gone reports whether no pod of a DaemonSet is left.
func gone(s appsv1.DaemonSetStatus) bool {
	return s.DesiredNumberScheduled == 0 && s.CurrentNumberScheduled == 0 && s.NumberMisscheduled == 0
}

// returned reports whether each pod is ready with the newest template.
func returned(s appsv1.DaemonSetStatus) bool {
	return s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
		s.NumberAvailable == s.DesiredNumberScheduled
}

// wait waits until the DaemonSets of these names are as wanted, or the context ends. It calls
// meanwhile at each tenth look. It returns a lateError if the time is over and the API works.
func (u Uninstall) wait(ctx context.Context, names []string, is func(appsv1.DaemonSetStatus) bool,
	what string, meanwhile func(context.Context) error) error {
	for look := 0; ; look++ {
		waits, err := u.unlike(ctx, names, is)
		if err == nil && len(waits) > 0 && meanwhile != nil && look%10 == 9 && ctx.Err() == nil {
			err = meanwhile(ctx)
		}
		if final(err) || err == nil && len(waits) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			if err != nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("cannot wait any longer for %s: %w", what, errors.Join(err, ctx.Err()))
			}
			return u.late(ctx, waits, what)
		case <-time.After(u.Every):
		}
	}
}

// unlike returns the names of the DaemonSets that are not as wanted. It also looks when the context
// has ended, once.
func (u Uninstall) unlike(ctx context.Context, names []string, is func(appsv1.DaemonSetStatus) bool) (
	[]string, error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), oneLook)
	defer stop()
	var waits []string
	for _, name := range names {
		set, err := u.daemonSet(ctx, name)
		if err != nil {
			return nil, err
		}
		if set != nil && (set.Status.ObservedGeneration < set.Generation || !is(set.Status)) {
			waits = append(waits, name)
		}
	}
	return waits, nil
}

// late returns a lateError with the pods of these DaemonSets that are not ready, or that the
// removal has not reached.
func (u Uninstall) late(ctx context.Context, names []string, what string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), oneLook)
	defer stop()
	pods, err := u.podsOf(ctx, names)
	if err != nil {
		return fmt.Errorf("cannot wait any longer for %s: %w", what, err)
	}
	var late []string
	for _, pod := range pods {
		if !ready(pod) || !leaves(pod.Spec) || pod.DeletionTimestamp != nil {
			where := "no node yet"
			if pod.Spec.NodeName != "" {
				where = "node " + pod.Spec.NodeName
			}
			late = append(late, pod.Name+" on "+where)
		}
	}
	if len(late) == 0 {
		late = []string{"no pod says why"}
	}
	slices.Sort(late)
	return &lateError{fmt.Sprintf("%s (%s)", what, strings.Join(names, ", ")), strings.Join(late, ", ")}
}

// podsOf returns the pods of these DaemonSets.
func (u Uninstall) podsOf(ctx context.Context, names []string) ([]corev1.Pod, error) {
	pods, err := u.Client.CoreV1().Pods(u.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name in (" + strings.Join(names, ",") + ")"})
	if err != nil {
		return nil, fmt.Errorf("cannot see the pods of %s: %w", strings.Join(names, ", "), err)
	}
	return pods.Items, nil
}

// podsAndNodes returns the pods of these DaemonSets, and the nodes of the cluster that are ready.
func (u Uninstall) podsAndNodes(ctx context.Context, names []string) ([]corev1.Pod, map[string]bool, error) {
	pods, err := u.podsOf(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := u.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot see which nodes are ready: %w", err)
	}
	works := map[string]bool{}
	for _, n := range nodes.Items {
		works[n.Name] = slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	return pods, works, nil
}

func ready(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
