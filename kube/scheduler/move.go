package scheduler

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// avoidance is how long a node that refused a pod is the last that pods get.
const avoidance = time.Minute

// roomCodes are the refusals that another node, or other GPUs, may not repeat. With any other code
// the pod would be refused there, too.
var roomCodes = []grant.Code{grant.NoCapacity, grant.ModeConflict, grant.GPUUnhealthy, grant.MPSNotReady}

// refusalText finds the code in what the kubelet says about a container that did not start
// (docs/refusals.md). Before gpuledger's words are only those of the engine and the runtime. A
// tenant's words, such as the name of a program that is not there, are quoted, in brackets or a
// part of a path there.
var refusalText = regexp.MustCompile("^[^\"'`(){}\\[\\]/\\\\\n]*gpuledger: refused \\(([a-z-]+)\\): ")

// refused are the pods that their node refuses for want of room.
type refused struct {
	mu    sync.Mutex
	pods  map[types.UID]*refusedPod
	nodes map[nodeFor]time.Time // which refused one, and when
}

// nodeFor is a node for the pods of a namespace. What a tenant's pods are refused for, or seem to
// be, changes nothing for the pods of others.
type nodeFor struct{ namespace, node string }

type refusedPod struct {
	pod   *corev1.Pod
	code  grant.Code
	since time.Time
	done  bool // it was moved, or an event says why it cannot be
}

// pod notes what the API says about a pod.
func (r *refused) pod(pod *corev1.Pod, now time.Time) {
	code := refusalOf(pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.pods[pod.UID]
	switch {
	case code == "":
		delete(r.pods, pod.UID)
	case known == nil:
		r.pods[pod.UID] = &refusedPod{pod: pod, code: code, since: now}
		r.nodes[nodeFor{pod.Namespace, pod.Spec.NodeName}] = now
	default:
		known.pod, known.code = pod, code
	}
}

func (r *refused) gone(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, uid)
}

// avoided returns the nodes that have just refused a pod of a namespace.
func (r *refused) avoided(namespace string, now time.Time) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]bool{}
	for of, at := range r.nodes {
		if now.Sub(at) >= avoidance {
			delete(r.nodes, of)
		} else if of.namespace == namespace {
			all[of.node] = true
		}
	}
	return all
}

// due returns the pods that were refused for some time, and are not dealt with.
func (r *refused) due(now time.Time, after time.Duration) (all []*refusedPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pods {
		if !p.done && now.Sub(p.since) >= after {
			copied := *p
			all = append(all, &copied)
		}
	}
	return all
}

func (r *refused) dealtWith(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[uid]; p != nil {
		p.done = true
	}
}

// refusalOf returns the code with which the node refuses a container that the scheduler has placed
// on it; "": it refuses none, or not for want of room.
func refusalOf(pod *corev1.Pod) grant.Code {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || len(nodestate.AllocationsOf(pod)) == 0 ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if _, placed := nodestate.AllocationOf(pod, c.Name); !placed || c.State.Waiting == nil {
			continue
		}
		var texts []string
		if neverRan(c.State.Waiting.Reason) {
			texts = append(texts, c.State.Waiting.Message)
		}
		// between two tries the runtime's words are those about the last one
		if last := c.LastTerminationState.Terminated; last != nil && neverRan(last.Reason) {
			texts = append(texts, last.Message)
		}
		for _, text := range texts {
			match := refusalText.FindStringSubmatch(text)
			if match != nil && slices.Contains(roomCodes, grant.Code(match[1])) {
				return grant.Code(match[1])
			}
		}
	}
	return ""
}

// neverRan reports whether a container did not even start, so that its message is the runtime's.
func neverRan(reason string) bool {
	return slices.Contains([]string{"StartError", "ContainerCannotRun", "CreateContainerError",
		"RunContainerError"}, reason)
}

// move deletes the pods that their node refuses, so that their controllers make new ones, which are
// placed by what is known then. A pod that would not come back, or would come back to the same
// node, stays, and an event says what to do.
func (s *Scheduler) move(ctx context.Context) error {
	s.cache.expire()
	if s.Leads != nil && !s.Leads() {
		return nil
	}
	var failed error
	for _, p := range s.refused.due(s.Now(), s.MoveAfter) {
		failed = errors.Join(failed, s.moveOne(ctx, p))
	}
	return failed
}

func (s *Scheduler) moveOne(ctx context.Context, p *refusedPod) error {
	pod := p.pod
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind == "DaemonSet" || owner.Kind == "Node" {
		s.events.Eventf(pod, corev1.EventTypeWarning, "GPURefused",
			"node %s refuses the pod's GPUs (%s), and no controller would place it anew: delete it and "+
				"create it again", pod.Spec.NodeName, p.code)
		s.refused.dealtWith(pod.UID)
		return nil
	}
	s.events.Eventf(pod, corev1.EventTypeWarning, "GPUMoved",
		"node %s refuses the pod's GPUs (%s): the pod is deleted, so that its %s %s places another one",
		pod.Spec.NodeName, p.code, owner.Kind, owner.Name)
	err := s.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("cannot move pod %s: %w", pod.Name, err)
	}
	s.Log.Info("moved a pod that its node refuses", "namespace", pod.Namespace, "pod", pod.Name, "node",
		pod.Spec.NodeName, "code", p.code)
	s.refused.dealtWith(pod.UID)
	return nil
}
