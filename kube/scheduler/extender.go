package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuledger/gpuledger/kube/placement"
)

// maxBody is more than a call with all nodes of a cluster has, if kube-scheduler sends whole nodes.
const maxBody = 256 << 20

// Handler serves the extender: POST /filter, /prioritize and /bind.
func (s *Scheduler) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /filter", serve(s, "filter",
		func(a *extender.ExtenderArgs, _ *http.Request) (any, error) { return s.filter(a) }))
	mux.Handle("POST /prioritize", serve(s, "prioritize",
		func(a *extender.ExtenderArgs, _ *http.Request) (any, error) { return s.prioritize(a), nil }))
	mux.Handle("POST /bind", serve(s, "bind",
		func(a *extender.ExtenderBindingArgs, r *http.Request) (any, error) {
			if err := s.bind(r.Context(), a); err != nil {
				return &extender.ExtenderBindingResult{Error: err.Error()}, err
			}
			return &extender.ExtenderBindingResult{}, nil
		}))
	return mux
}

// serve decodes a call, and writes what do returns. An error of do is in its answer.
func serve[A any](s *Scheduler, name string, do func(*A, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end := func(error) {}
		if s.Measured != nil {
			end = s.Measured(name)
		}
		var args A
		err := s.Ready()
		if err == nil {
			if err = json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&args); err != nil {
				err = fmt.Errorf("cannot read the call: %w", err)
			}
		}
		if err != nil { // kube-scheduler tries the pod again
			end(err)
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		answer, err := do(&args, r)
		end(err)
		if err != nil {
			s.Log.Warn(name, "error", err)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
}

var errNoPod = errors.New("the call names no pod")

// namesOf returns the nodes of a call, as names or as objects.
func namesOf(a *extender.ExtenderArgs) []string {
	if a.NodeNames != nil {
		return *a.NodeNames
	}
	var names []string
	if a.Nodes != nil {
		for i := range a.Nodes.Items {
			names = append(names, a.Nodes.Items[i].Name)
		}
	}
	return names
}

// filter answers which nodes have GPUs for a pod. If none has, each has the same sentence, so that
// the pod's event is one sentence. No pod is evicted for GPUs: kube-scheduler would try it without
// asking the extender whether that makes room.
func (s *Scheduler) filter(a *extender.ExtenderArgs) (*extender.ExtenderFilterResult, error) {
	if a.Pod == nil {
		return &extender.ExtenderFilterResult{Error: errNoPod.Error()}, errNoPod
	}
	s.waiting.asked(a.Pod)
	names := namesOf(a)
	w, wants, err := s.wish(a.Pod)
	if err != nil {
		return answerOf(a, nil, names, err.Error()), nil
	}
	if !wants {
		return answerOf(a, names, nil, ""), nil
	}
	fit, others, why := s.fitting(a.Pod, &w, names)
	if len(fit) == 0 {
		s.waiting.rejected(a.Pod, names, s.Now())
	} else {
		s.waiting.gone(a.Pod.UID)
	}
	return answerOf(a, fit, others, why), nil
}

// wish returns what a pod asks for, or why it can have nothing.
func (s *Scheduler) wish(pod *corev1.Pod) (placement.Wish, bool, error) {
	w, wants, err := s.Wish(pod)
	if own := statesAllocation(pod); err == nil && wants && own != "" && pod.Spec.NodeName == "" {
		err = fmt.Errorf("the pod has the annotation %s, which only the scheduler writes: leave it out", own)
	}
	if err == nil {
		err = nameTooLong(&w)
	}
	return w, wants, err
}

// fitting splits nodes into those on which a wish fits and the others. why is about the others.
func (s *Scheduler) fitting(pod *corev1.Pod, w *placement.Wish, names []string) (fit, others []string,
	why string) {
	fit = make([]string, 0, len(names))
	var ours []*placement.Node
	search := placement.NewSearch(w)
	for i, n := range s.cache.rooms(names, pod) {
		if n != nil {
			ours = append(ours, n)
			if _, fits := search.Place(n); fits {
				fit = append(fit, names[i])
				continue
			}
		}
		others = append(others, names[i])
	}
	if why = "its GPUs do not serve the pod"; len(fit) == 0 {
		why = search.Why(ours)
	}
	return fit, others, why
}

func answerOf(a *extender.ExtenderArgs, fit, others []string, why string) *extender.ExtenderFilterResult {
	r := &extender.ExtenderFilterResult{}
	if a.NodeNames != nil {
		if fit == nil {
			fit = []string{}
		}
		r.NodeNames = &fit
	} else {
		r.Nodes = nodesOf(a.Nodes, fit)
	}
	if len(others) > 0 {
		r.FailedAndUnresolvableNodes = make(extender.FailedNodesMap, len(others))
		for _, name := range others {
			r.FailedAndUnresolvableNodes[name] = why
		}
	}
	return r
}

// nodesOf returns the nodes that have one of the names.
func nodesOf(all *corev1.NodeList, names []string) *corev1.NodeList {
	some, wanted := &corev1.NodeList{}, map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	if all != nil {
		for i := range all.Items {
			if wanted[all.Items[i].Name] {
				some.Items = append(some.Items, all.Items[i])
			}
		}
	}
	return some
}

// prioritize scores nodes from 0 to placement.Best. That is more than extenders usually answer, and
// kube-scheduler multiplies it all the same: GPUs are dearer than what else it scores. Nodes that
// have just refused a pod of the same namespace come last.
func (s *Scheduler) prioritize(a *extender.ExtenderArgs) *extender.HostPriorityList {
	names := namesOf(a)
	list := make(extender.HostPriorityList, 0, len(names))
	var w placement.Wish
	wants := false
	var avoided map[string]bool
	if a.Pod != nil {
		avoided = s.refused.avoided(a.Pod.Namespace, s.Now())
		var err error
		w, wants, err = s.Wish(a.Pod)
		wants = wants && err == nil
	}
	var rooms []*placement.Node
	if wants {
		rooms = s.cache.rooms(names, a.Pod)
	}
	search := placement.NewSearch(&w)
	for i, name := range names {
		score := 0
		if wants && rooms[i] != nil && !avoided[name] {
			if choices, fits := search.Place(rooms[i]); fits {
				score = placement.Score(&w, rooms[i], choices)
			}
		}
		list = append(list, extender.HostPriority{Host: name, Score: int64(score)})
	}
	return &list
}
