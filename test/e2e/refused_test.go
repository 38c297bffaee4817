//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/test/rig"
)

// refused is the refusal in a pod's events.
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

// refusals tests pods that request what they were not granted. They do not start, and `kubectl
// describe pod` shows why.
func (s *site) refusals() {
	s.applied(claiming("victim", "limit", 1, object{"memory": "1Gi"}, false)...)
	s.runs("victim")
	victim := s.claimOf("victim")
	others := s.Grant("--owner", "pod:00000000-0000-4000-8000-000000000000/main", "--gpu",
		victim.GPUs[0].UUID, "--memory", "1GiB", "--mode", "limit")
	defer func() { s.Must("release", string(others.ID)) }()
	all := map[string]refused{
		"all": {with("NVIDIA_VISIBLE_DEVICES", "all"), grant.VisibleDevicesAll,
			"asks for all GPUs through NVIDIA_VISIBLE_DEVICES but holds no grant"},
		"privileged": {func(_, c object) { c["securityContext"] = object{"privileged": true} },
			grant.PrivilegedGPU, ""},
		"wrong-secret": {podAnnotated("gpuledger.dev/grant.main", string(victim.ID)+"."+
			strings.Repeat("0", 32)), grant.GrantNotFound, ""},
		"no-secret": {with(grant.ReferenceEnv, string(victim.ID)), grant.GrantNotFound, ""},
		"anothers-grant": {podAnnotated("gpuledger.dev/grant.main", string(others.ID)),
			grant.GrantOwnerMismatch, ""},
		"forged": {podAnnotated("gpuledger.dev/gpus.main", victim.GPUs[0].UUID, "gpuledger.dev/memory.main",
			"8GiB", "gpuledger.dev/mode.main", "limit"),
			grant.AskNotAllowed, ""},
		"gpushare": {func(p, c object) {
			podAnnotated("ALIYUN_COM_GPU_MEM_IDX", "0", "ALIYUN_COM_GPU_MEM_POD", "4",
				"ALIYUN_COM_GPU_MEM_DEV", "15")(p, c)
			with("ALIYUN_COM_GPU_MEM_CONTAINER", "4")(p, c)
		}, grant.GrantNotFound, ""},
		"host-node": {func(p, c object) {
			p["spec"].(object)["volumes"] = []object{
				{"name": "gpu", "hostPath": object{"path": "/dev/nvidia0"}}}
			c["volumeMounts"] = []object{{"name": "gpu", "mountPath": "/dev/nvidia0"}}
		}, grant.GPUBindMount, ""},
	}
	for name, c := range all {
		s.applied(clusterPod(name, c.change))
	}
	for name, c := range all {
		described := s.describes(name, fmt.Sprintf("gpuledger: refused (%s): container \"main\" ", c.code))
		for _, part := range []string{c.text, "hint: "} {
			if !strings.Contains(described, part) {
				s.T.Errorf("kubectl describe pod %s does not have %q:\n%s", name, part, described)
			}
		}
		for _, id := range []grant.ID{victim.ID, others.ID} {
			if strings.Contains(described, string(id)+" ") &&
				!strings.Contains(fmt.Sprint(podText(c)), string(id)) {
				s.T.Errorf("kubectl describe pod %s names grant %s, which is another's:\n%s", name,
					id, described)
			}
		}
	}
	s.anothersNamespace("victim")
}

// podText is a pod as its user wrote it.
func podText(c refused) object { return clusterPod("", c.change) }

// describes waits until kubectl's description of a pod, which must not run, has a text in its
// events.
func (s *site) describes(name, want string) (described string) {
	s.T.Helper()
	eventually(s.T, "pod "+name+"'s events have "+want, func() bool {
		if p := s.podNamed(name); p.Status.Phase == "Running" || p.Status.Phase == "Succeeded" {
			s.T.Fatalf("pod %s is %s, want %q", name, p.Status.Phase, want)
		}
		_, described, _ = strings.Cut(s.kubectl("describe", "pod", name, "-n", "team").Stdout, "\nEvents:")
		return strings.Contains(described, want)
	})
	return described
}

// anothersNamespace uses the name of a claim in another namespace. A claim's name is valid in its
// own namespace, so there is no such claim. The scheduler of Kubernetes 1.36 leaves such a pod
// pending without an event; `kubectl gpuledger explain` says why.
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
	want := fmt.Sprintf("pod intruder/%s is Pending\nclaim %s: there is no claim of that name\n",
		claim, claim)
	if r := rig.Run(s.Command(program, "explain", "--kubeconfig", adminConfig, "-n", "intruder",
		claim)); r.Code != 0 || !strings.Contains(r.Stdout, want) {
		s.T.Errorf("kubectl gpuledger explain: %+v, want %q", r, want)
	}
}

// configured is a pod with a claim whose parameters for the driver are these.
func configured(name string, parameters object) []object {
	list := claiming(name, "limit", 1, object{"memory": "1Gi"}, false)
	list[0]["spec"].(object)["devices"].(object)["config"] = []object{
		{"opaque": object{"driver": "gpuledger.dev", "parameters": parameters}}}
	return list
}

// preparing tests claims that the scheduler has placed and the node cannot give. The node's ledger
// decides when the kubelet has them prepared. The pods' events show its sentence, and once there is
// room the pods start.
func (s *site) preparing(driver **daemon) {
	*driver = s.startDRA() // the driver of the test before has ended with it
	opaque := func(more ...any) object {
		all := object{"apiVersion": "gpuledger.dev/v1", "kind": "GrantConfig"}
		for i := 0; i < len(more); i += 2 {
			all[more[i].(string)] = more[i+1]
		}
		return all
	}
	parameters := map[string]struct {
		what object
		want string
	}{
		"typing-error": {opaque("mdoe", "limit"),
			`cannot read the parameters for gpuledger.dev: json: unknown field "mdoe"`},
		"another-mode": {opaque("mode", "timeslice"),
			`request "gpu" is to be in mode limit and in mode timeslice: its class and its claim disagree`},
		"more-strength": {opaque("minimumStrength",
			"hardware"),
			`refused (limit-unenforceable): request "gpu" wants strength hardware, but in mode limit ` +
				`this node has `},
		"another-config": {object{"apiVersion": "gpuledger.dev/v9",
			"kind": "GrantConfig"},
			`cannot read the parameters for gpuledger.dev: want apiVersion gpuledger.dev/v1 and kind ` +
				`GrantConfig, not "gpuledger.dev/v9"`},
	}
	for name, c := range parameters {
		s.applied(configured(name, c.what)...)
	}
	for name, c := range parameters {
		s.describes(name, "gpuledger: "+c.want)
		s.removed(name)
	}
	s.administer("delete", "resourceclaims", "--all", "-n", "team", "--wait=true")

	// the scheduler must not learn of the next change; the kubelet removes the slices of a driver
	// that is gone for 30 s
	(*driver).pause(s.T)
	var ids []string
	for _, gpu := range []string{"0", "1"} {
		ids = append(ids, string(s.Grant("--gpu", gpu, "--memory", "15GiB", "--mode", "timeslice").ID))
	}
	s.applied(claiming("late", "limit", 1, object{"memory": "4Gi"}, false)...)
	eventually(s.T, "the scheduler has placed the claim", func() bool {
		return s.kubectl("get", "resourceclaim", "late", "-n", "team", "-o",
			"jsonpath={.status.allocation.devices.results[0].device}").Stdout != ""
	})
	(*driver).kill()
	*driver = s.startDRA()
	described := s.describes("late",
		"gpuledger: refused (mode-conflict): cannot grant 4GiB on a GPU in mode limit: GPU 0 has ")
	if i := slices.IndexFunc(ids, func(id string) bool { return strings.Contains(described, id) }); i >= 0 {
		s.T.Errorf("the pod's events name grant %s, which is another's:\n%s", ids[i], described)
	}
	s.outside(14 * grant.GiB)
	s.Must(append([]string{"release"}, ids...)...)
	s.describes(
		"late",
		"gpuledger: refused (no-capacity): cannot grant 4GiB on a GPU in mode limit: GPU 0 has 1824MiB "+
			"free, and 14GiB in use outside the ledger; GPU 1 has ")
	s.outside(0)
	s.runs("late")
}

// outside makes this much of each GPU used outside the ledger, as gpuledgerd would find it.
func (s *site) outside(memory grant.Bytes) {
	s.T.Helper()
	n := node.Open(s.Config, host.Default())
	inventory, problem := n.Inventory()
	if problem != nil {
		s.T.Fatal(problem.Message)
	}
	used := map[string]grant.Bytes{}
	for _, g := range inventory.GPUs {
		used[g.UUID] = memory
	}
	must(s.T, n.Ledger.SetFound(ledger.Found{Outside: used}))
}
