//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// twoRequests is a claim with the requests main and side: a class and memory for each, "" for a
// whole GPU.
func twoRequests(name string, wants ...string) object {
	var requests []object
	for i, request := range []string{"main", "side"} {
		exactly := object{"deviceClassName": wants[2*i] + ".gpuledger.dev"}
		if memory := wants[2*i+1]; memory != "" {
			exactly["capacity"] = object{"requests": object{"memory": memory}}
		}
		requests = append(requests, object{"name": request, "exactly": exactly})
	}
	return object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
		"metadata": object{"name": name}, "spec": object{"devices": object{"requests": requests}}}
}

// withSide gives a pod a container "side" that is as its container "main".
func withSide(pod, main object) object {
	side := object{}
	for key, value := range main {
		side[key] = value
	}
	side["name"] = "side"
	spec := pod["spec"].(object)
	spec["containers"] = append(spec["containers"].([]object), side)
	return side
}

// ofRequests is a pod with the containers main and side, and a claim of which each names a request.
func ofRequests(name, claim, main, side string) object {
	naming := func(request string) object {
		entry := object{"name": "gpu"}
		if request != "" {
			entry["request"] = request
		}
		return object{"claims": []object{entry}}
	}
	return clusterPod(name, func(pod, container object) {
		pod["spec"].(object)["resourceClaims"] = []object{{"name": "gpu", "resourceClaimName": claim}}
		withSide(pod, container)["resources"] = naming(side)
		container["resources"] = naming(main)
	})
}

// grantOf returns the grant of an owner.
func (s *site) grantOf(owner string) rig.Listed {
	s.T.Helper()
	all := s.Grants()
	i := slices.IndexFunc(all, func(g rig.Listed) bool { return string(g.Owner) == owner })
	if i < 0 {
		s.T.Fatalf("%s has no grant: %+v", owner, all)
	}
	return all[i]
}

func (s *site) uidOf(claim string) string {
	s.T.Helper()
	return s.administer("get", "resourceclaim", claim, "-n", "team", "-o", "jsonpath={.metadata.uid}")
}

// reachOther wants the containers of a pod to reach one GPU each, and not the same.
func (s *site) reachOther(pod string) {
	s.T.Helper()
	outs := []string{s.runsIn(pod, "main"), s.runsIn(pod, "side")}
	if !slices.Contains(outs, only0) || !slices.Contains(outs, gpu1) {
		s.T.Errorf("the containers of pod %s reach\n%q, want a GPU each", pod, outs)
	}
}

// requests tests claims with two requests.
func (s *site) requests() {
	// Different modes, so different GPUs: each container reaches that of its request alone.
	s.applied(twoRequests("modes", "exclusive", "", "limit", "4Gi"),
		ofRequests("modes", "modes", "main", "side"))
	s.reachOther("modes")
	uid := s.uidOf("modes")
	main, side := s.grantOf("claim:"+uid+".main"), s.grantOf("claim:"+uid+".side")
	if len(main.Bindings) != 1 || len(side.Bindings) != 1 || main.Mode != grant.Exclusive ||
		side.Mode != grant.Limit || side.GPUs[0].Memory != 4*grant.GiB || len(s.Grants()) != 2 {
		s.T.Errorf("got %+v and %+v, want each used by one container", main, side)
	}
	s.isFor(main.ID, []string{"team"}, "modes")
	s.isFor(side.ID, []string{"team"}, "modes")
	s.applied(clusterPod("joins", func(pod, container object) {
		pod["spec"].(object)["resourceClaims"] = []object{{"name": "gpu", "resourceClaimName": "modes"}}
		container["resources"] = object{"claims": []object{{"name": "gpu", "request": "side"}}}
	}))
	if out := s.runs("joins"); out != s.runsIn("modes", "side") {
		s.T.Errorf("another pod that names the request side reaches\n%s", out)
	}
	s.isFor(main.ID, []string{"team"}, "modes", "joins")
	if g := s.grantOf("claim:" + uid + ".side"); len(g.Bindings) != 2 {
		s.T.Errorf("got %+v, want two containers to use it", g)
	}
	program, err := filepath.Abs("../../bin/kubectl-gpuledger")
	must(s.T, err)
	r := rig.Run(s.Command(program, "explain", "--kubeconfig", adminConfig, "-n", "team", "modes"))
	if r.Code != 0 || !strings.Contains(r.Stdout, "claim modes/side has 4 GiB of GPU ") {
		s.T.Errorf("kubectl gpuledger explain: %+v", r)
	}
	s.removed("joins", "modes")
	s.nothingLeft()

	// Two shares, which may be of one GPU. A container that names the whole claim gets the names of
	// both grants, and uses one.
	s.applied(twoRequests("shares", "limit", "2Gi", "limit", "3Gi"), joining("shares", "shares"))
	const several = `gpuledger: refused (annotation-mismatch): container "main" has the CDI names of grant g-`
	described := s.describes("shares", several)
	for _, part := range []string{", and a container uses one grant",
		"hint: of a claim with several requests, name one request of the claim"} {
		if !strings.Contains(described, part) {
			s.T.Errorf("the pod's events do not have %q:\n%s", part, described)
		}
	}
	s.removed("shares")
	s.nothingLeft()

	// One grant for both, by a parameter of the claim.
	one := twoRequests("one", "limit", "2Gi", "limit", "2Gi")
	devices := one["spec"].(object)["devices"].(object)
	devices["constraints"] = []object{{"distinctAttribute": "gpuledger.dev/uuid"}}
	devices["config"] = []object{{"opaque": object{"driver": "gpuledger.dev", "parameters": object{
		"apiVersion": "gpuledger.dev/v1", "kind": "GrantConfig", "grant": "claim"}}}}
	s.applied(one, ofRequests("one", "one", "", "side"))
	for _, container := range []string{"main", "side"} {
		if out := s.runsIn("one", container); out != let+let+let+let+let {
			s.T.Errorf("container %s reaches\n%s, want both GPUs", container, out)
		}
	}
	if g := s.claimOf("one"); len(g.GPUs) != 2 || len(g.Bindings) != 2 || len(s.Grants()) != 1 {
		s.T.Errorf("got %+v", s.Grants())
	}

	for name, wants := range map[string]string{"shares-of-mps": "", "together": "a GPU has one MPS daemon"} {
		claim := twoRequests(name, "mps", "1Gi", "mps", "1Gi")
		if wants != "" {
			claim["spec"].(object)["devices"].(object)["config"] = devices["config"]
		}
		if r := s.apply(claim); (r.Code != 0) != (wants != "") || !strings.Contains(r.Stderr, wants) {
			s.T.Errorf("two requests in mode mps, %s: %+v, want %q", name, r, wants)
		}
	}
}

// extended tests pods that ask for the device plugin's whole GPUs. The node has no device plugin,
// so the scheduler makes a claim for each pod.
func (s *site) extended() {
	for _, verb := range []string{"create", "delete"} {
		s.administer("auth", "can-i", verb, "resourceclaims", "--as=system:kube-scheduler", "-n", "team")
	}
	whole := func(n int) object { return object{"limits": object{"gpuledger.dev/gpu": n}} }
	first := func(n int) []object {
		return []object{{"name": "first", "image": image, "imagePullPolicy": "Never", "resources": whole(n),
			"command": []string{"/bin/sh", "-c", "test -c /dev/nvidiactl"}}}
	}
	s.applied(clusterPod("plain", func(pod, container object) {
		container["resources"] = whole(1)
		withSide(pod, container)
		pod["spec"].(object)["initContainers"] = first(1)
	}))
	s.reachOther("plain")
	claim := s.administer("get", "pod", "plain", "-n", "team", "-o",
		"jsonpath={.status.extendedResourceClaimStatus.resourceClaimName}")
	uid := s.uidOf(claim)
	for _, g := range s.Grants() {
		if !strings.HasPrefix(string(g.Owner), "claim:"+uid+".container-") || g.Mode != grant.Exclusive ||
			len(g.GPUs) != 1 || len(g.Bindings) != 1 {
			s.T.Errorf("got %+v, want a whole GPU of its own for each container", g)
		}
	}
	program, err := filepath.Abs("../../bin/kubectl-gpuledger")
	must(s.T, err)
	r := rig.Run(s.Command(program, "explain", "--kubeconfig", adminConfig, "-n", "team", "plain"))
	if want := fmt.Sprintf("claim %s/container-", claim); r.Code != 0 || strings.Count(r.Stdout, want) != 2 ||
		strings.Contains(r.Stdout, "device plugin") {
		s.T.Errorf("kubectl gpuledger explain: %+v, want %q twice", r, want)
	}
	s.applied(clusterPod("waits", func(_, container object) { container["resources"] = whole(1) }))
	s.waits("waits")
	s.removed("plain")
	s.runs("waits")
	s.removed("waits")
	s.nothingLeft()

	// A container gets several GPUs by one request. An init container that asks for more than the
	// container after it gets two requests.
	s.applied(clusterPod("both", func(_, container object) { container["resources"] = whole(2) }))
	if out := s.runs("both"); out != let+let+let+let+let {
		s.T.Errorf("a container that asks for both GPUs reaches\n%s", out)
	}
	s.removed("both")
	s.applied(clusterPod("more", func(pod, container object) {
		container["resources"] = whole(1)
		pod["spec"].(object)["initContainers"] = first(2)
	}))
	s.describes("more",
		`gpuledger: refused (annotation-mismatch): container "first" has the CDI names of grant g-`)
}
