//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// refused is what a pod is told in its events.
type refused struct {
	change func(pod, container object)
	code   grant.Code
	text   string // of the sentence
}

func podAnnotated(pairs ...string) func(pod, container object) {
	return func(pod, container object) {
		all := object{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		pod["metadata"].(object)["annotations"] = all
	}
}

func with(name, value string) func(pod, container object) {
	return func(_, c object) { c["env"] = []object{{"name": name, "value": value}} }
}

// refusals are pods that want what nobody gave them: they do not start, and `kubectl describe pod` says why.
func (s *site) refusals() {
	s.applied(claiming("victim", "limit", 1, object{"memory": "1Gi"}, false)...)
	s.runs("victim")
	victim := s.claimOf("victim")
	others := s.Grant("--owner", "pod:00000000-0000-4000-8000-000000000000/main", "--gpu", victim.GPUs[0].UUID, "--memory", "1GiB", "--mode", "limit")
	all := map[string]refused{
		"all":            {with("NVIDIA_VISIBLE_DEVICES", "all"), grant.VisibleDevicesAll, "asks for all GPUs through NVIDIA_VISIBLE_DEVICES but holds no grant"},
		"privileged":     {func(_, c object) { c["securityContext"] = object{"privileged": true} }, grant.PrivilegedGPU, ""},
		"wrong-secret":   {podAnnotated("gpuledger.dev/grant.main", string(victim.ID)+"."+strings.Repeat("0", 32)), grant.GrantNotFound, ""},
		"no-secret":      {with(grant.ReferenceEnv, string(victim.ID)), grant.GrantNotFound, ""},
		"anothers-grant": {podAnnotated("gpuledger.dev/grant.main", string(others.ID)), grant.GrantOwnerMismatch, ""},
		"forged": {podAnnotated("gpuledger.dev/gpus.main", victim.GPUs[0].UUID, "gpuledger.dev/memory.main", "8GiB", "gpuledger.dev/mode.main", "limit"),
			grant.GrantNotFound, ""},
		"gpushare": {func(p, c object) {
			podAnnotated("ALIYUN_COM_GPU_MEM_IDX", "0", "ALIYUN_COM_GPU_MEM_POD", "4", "ALIYUN_COM_GPU_MEM_DEV", "15")(p, c)
			with("ALIYUN_COM_GPU_MEM_CONTAINER", "4")(p, c)
		}, grant.GrantNotFound, ""},
		"host-node": {func(p, c object) {
			p["spec"].(object)["volumes"] = []object{{"name": "gpu", "hostPath": object{"path": "/dev/nvidia0"}}}
			c["volumeMounts"] = []object{{"name": "gpu", "mountPath": "/dev/nvidia0"}}
		}, grant.GPUBindMount, ""},
	}
	for name, c := range all {
		s.applied(clusterPod(name, c.change))
	}
	for name, c := range all {
		described := s.told(name, fmt.Sprintf("gpuledger: refused (%s): container \"main\" ", c.code))
		for _, part := range []string{c.text, "hint: "} {
			if !strings.Contains(described, part) {
				s.T.Errorf("kubectl describe pod %s does not say %q:\n%s", name, part, described)
			}
		}
		for _, id := range []grant.ID{victim.ID, others.ID} {
			if strings.Contains(described, string(id)+" ") && !strings.Contains(fmt.Sprint(podText(c)), string(id)) {
				s.T.Errorf("kubectl describe pod %s names grant %s, which is another's:\n%s", name, id, described)
			}
		}
	}
	s.anothersNamespace("victim")
	s.Must("release", string(others.ID))
}

// podText is a pod as its user wrote it.
func podText(c refused) object { return clusterPod("", c.change) }

// told waits until kubectl's description of a pod, which must not run, says something in its events.
func (s *site) told(name, want string) (described string) {
	s.T.Helper()
	eventually(s.T, "pod "+name+"'s events say "+want, func() bool {
		if p := s.podNamed(name); p.Status.Phase == "Running" || p.Status.Phase == "Succeeded" {
			s.T.Fatalf("pod %s is %s, want %q", name, p.Status.Phase, want)
		}
		_, described, _ = strings.Cut(s.kubectl("describe", "pod", name, "-n", "team").Stdout, "\nEvents:")
		return strings.Contains(described, want)
	})
	return described
}

// anothersNamespace names a claim of another namespace: a claim's name is its own namespace's, so there is none. The scheduler of Kubernetes 1.36
// leaves such a pod alone without a word; `kubectl gpuledger explain` says why.
func (s *site) anothersNamespace(claim string) {
	s.T.Helper()
	s.administer("create", "namespace", "intruder")
	defer s.administer("delete", "namespace", "intruder", "--wait=false")
	pod := claiming(claim, "limit", 1, nil, false)[1]
	if r := s.kubectlWith(string(encode(s.T, pod)), "apply", "-n", "intruder", "-f", "-"); r.Code != 0 {
		s.T.Fatalf("kubectl apply: %+v", r)
	}
	program, err := filepath.Abs("../../bin/kubectl-gpuledger")
	must(s.T, err)
	want := fmt.Sprintf("pod intruder/%s is Pending\nclaim %s: there is no claim of that name\n", claim, claim)
	if r := rig.Run(s.Command(program, "explain", "--kubeconfig", adminConfig, "-n", "intruder", claim)); r.Code != 0 || !strings.Contains(r.Stdout, want) {
		s.T.Errorf("kubectl gpuledger explain: %+v, want %q", r, want)
	}
}
