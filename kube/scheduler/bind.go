package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuledger/gpuledger/kube/placement"
)

const (
	// unseen is how long a binding counts that was written and that the API has not shown. Watches
	// show it within a second, if they work.
	unseen = 5 * time.Minute
	// uncertain is how long one counts of which it is not known whether it was written.
	uncertain = time.Minute
	// conflicts is how often a pod is read again because it changed meanwhile.
	conflicts = 5
)

// bind chooses the GPUs of a pod on a node, and writes them and the binding in one step.
func (s *Scheduler) bind(ctx context.Context, a *extender.ExtenderBindingArgs) error {
	for range conflicts {
		pod, err := s.Client.CoreV1().Pods(a.PodNamespace).Get(ctx, a.PodName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("cannot read pod %s: %w", a.PodName, err)
		}
		if pod.UID != a.PodUID {
			return fmt.Errorf("cannot bind pod %s: there is another one of that name", a.PodName)
		}
		if pod.Spec.NodeName != "" {
			return fmt.Errorf("cannot bind pod %s: it is on node %s already", a.PodName, pod.Spec.NodeName)
		}
		annotations, err := s.choose(pod, a.Node)
		if err != nil {
			return err
		}
		if err = s.write(ctx, pod, a.Node, annotations); err == nil || !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("cannot bind pod %s: it changes again and again", a.PodName)
}

// choose returns the annotations for a pod's GPUs on a node; none for a pod without a wish.
func (s *Scheduler) choose(pod *corev1.Pod, node string) (map[string]string, error) {
	w, wants, err := s.wish(pod)
	if err != nil || !wants {
		return nil, err
	}
	annotations, why := s.cache.assume(pod, &w, node, s.Now().Add(unseen))
	if why != "" {
		return nil, errors.New(why)
	}
	if err := unwritable(pod, annotations); err != nil {
		s.cache.forget(pod.UID)
		return nil, fmt.Errorf("cannot bind pod %s: with its GPUs the API would not take it: %w", pod.Name,
			err)
	}
	return annotations, nil
}

// write binds a pod, if it is still the one that was read. The API server writes a binding's
// annotations into the pod in the same step.
func (s *Scheduler) write(ctx context.Context, pod *corev1.Pod, node string,
	annotations map[string]string) error {
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name,
		UID: pod.UID, ResourceVersion: pod.ResourceVersion, Annotations: maps.Clone(annotations)},
		Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	err := s.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	switch {
	case err == nil:
		return nil
	case refusedByAPI(err):
		s.cache.forget(pod.UID)
	default:
		s.cache.assumedUntil(pod.UID, s.Now().Add(uncertain))
	}
	return fmt.Errorf("cannot bind pod %s to node %s: %w", pod.Name, node, err)
}

// refusedByAPI reports whether an answer of the API says that nothing was written. Without an
// answer, or with an error of the server, it may have been.
func refusedByAPI(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}

// fitsNow reports whether a pod fits on one of some nodes; without names on any.
func (s *Scheduler) fitsNow(pod *corev1.Pod, w *placement.Wish, names []string) bool {
	if names == nil {
		names = s.cache.names()
	}
	search := placement.NewSearch(w)
	return slices.ContainsFunc(s.cache.rooms(names, pod), func(n *placement.Node) bool {
		if n == nil {
			return false
		}
		_, fits := search.Place(n)
		return fits
	})
}
