//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// printing is a pod whose container also prints its reference, which is in its environment and so
// can be read.
func printing(pod object) object {
	container := pod["spec"].(object)["containers"].([]object)[0]
	script := container["command"].([]string)[2]
	container["command"] = []string{"/bin/sh", "-c", "echo $GPULEDGER_GRANT; " + script}
	return pod
}

// joining is another pod for a claim.
func joining(name, claim string) object {
	pod := claiming(claim, "limit", 1, nil, false)[1]
	pod["metadata"].(object)["name"] = name
	return pod
}

// reference waits until a pod runs, and returns the reference that it prints.
func (s *site) reference(name string) string {
	s.T.Helper()
	text, reached, _ := strings.Cut(s.runs(name), "\n")
	if _, err := grant.ParseReference(text); err != nil || reached != only0 && reached != gpu1 {
		s.T.Fatalf("pod %s prints %q and reaches\n%s", name, text, reached)
	}
	return text
}

// isFor wants a claim's or pod's grant to be tied to these pods, and to the namespace if it is a
// claim's.
func (s *site) isFor(id grant.ID, namespaces []string, pods ...string) {
	s.T.Helper()
	var want []grant.Tie
	for _, pod := range pods {
		want = append(want, grant.PodTie(s.podNamed(pod).Metadata.UID))
	}
	slices.Sort(want)
	for _, namespace := range namespaces {
		want = append([]grant.Tie{grant.NamespaceTie(namespace)}, want...)
	}
	eventually(s.T, fmt.Sprintf("grant %s is for %v", id, pods), func() bool {
		all := s.Grants()
		i := slices.IndexFunc(all, func(g rig.Listed) bool { return g.ID == id })
		return i >= 0 && slices.Equal(all[i].For, want)
	})
}

// runs matches a pod's description with that status.
var runs = regexp.MustCompile(`(?m)^Status: +Running$`)

// refusesThieves starts pods that use another pod's reference, in the namespace of that pod and in
// another. Their events must have the code, and no name.
func (s *site) refusesThieves(round, reference string, its ...string) {
	s.T.Helper()
	id, _, _ := strings.Cut(reference, ".")
	for namespace, text := range map[string]string{"team": "other pods", "other": "another namespace"} {
		name := "thief-" + round
		pod := clusterPod(name, with(grant.ReferenceEnv, reference))
		if r := s.kubectlWith(string(encode(s.T, pod)), "apply", "-n", namespace, "-f", "-"); r.Code != 0 {
			s.T.Fatalf("kubectl apply: %+v", r)
		}
		want,
			described := fmt.Sprintf(
			`gpuledger: refused (%s): container "main" refers to grant %s by GPULEDGER_GRANT, which `+
				`is tied to `, grant.GrantOwnerMismatch, id), ""
		eventually(s.T, "a thief is refused in namespace "+namespace, func() bool {
			described = s.kubectl("describe", "pod", name, "-n", namespace).Stdout
			if runs.MatchString(described) {
				s.T.Fatalf("a pod of namespace %s runs with a stolen reference:\n%s", namespace, described)
			}
			return strings.Contains(described, want)
		})
		_, events, _ := strings.Cut(described, "\nEvents:")
		// the plugin's grants are for a pod, wherever it is
		if !strings.Contains(events, want+text) && !strings.Contains(events, want+"other pods") {
			s.T.Errorf("a thief of namespace %s gets:\n%s", namespace, events)
		}
		for _, pod := range its {
			if uid := s.podNamed(pod).Metadata.UID; strings.Contains(events, uid) ||
				strings.Contains(events, `"`+pod+`"`) {
				s.T.Errorf("a thief of namespace %s gets the name of pod %s:\n%s", namespace, pod, events)
			}
		}
		s.T.Logf("a refused pod with restartPolicy Never is %s",
			s.kubectl("get", "pod", name, "-n", namespace, "-o",
				"jsonpath={.status.phase} {.status.containerStatuses[0].state}").Stdout)
		s.administer("delete", "pod", name, "-n", namespace, "--wait=true", "--grace-period=1")
	}
}

// stolen tests that the reference in the environment of a claim's pod is valid only in the claim's
// pods, whether a driver runs or not. Each pod of the claim may use it.
func (s *site) stolen(driver **daemon) {
	*driver = s.startDRA() // the driver of the test before has ended with it
	list := claiming("shared", "limit", 1, object{"memory": "2Gi"}, false)
	s.applied(list[0], printing(list[1]), joining("second", "shared"))
	reference := s.reference("shared")
	if out := s.runs("second"); out != only0 && out != gpu1 {
		s.T.Errorf("the second pod of a claim reaches\n%s", out)
	}
	g := s.claimOf("shared")
	s.isFor(g.ID, []string{"team"}, "shared", "second")
	s.refusesThieves("beside", reference, "shared", "second")

	(*driver).kill()
	s.refusesThieves("without-driver", reference, "shared", "second")
	*driver = s.startDRA()
	s.refusesThieves("after-driver", reference, "shared", "second")
	s.isFor(g.ID, []string{"team"}, "shared", "second")
	s.removed("second")
	s.isFor(g.ID, []string{"team"}, "shared")
	for i := range 3 { // one after the other, as fast as they come
		name := fmt.Sprint("comes-", i)
		s.applied(joining(name, "shared"))
		s.runs(name)
		if p := s.podNamed(name); p.Status.ContainerStatuses[0].RestartCount != 0 ||
			strings.Contains(s.eventsOf(name), "refused") {
			s.T.Errorf("pod %s of the claim was refused first: %s", name, s.eventsOf(name))
		}
	}
	if again := s.claimOf("shared"); again.ID != g.ID || len(again.Bindings) != 4 {
		s.T.Errorf("the claim's grant was %+v and is %+v, want four pods to use it", g, again)
	}
}

// stolenUnits is the same test for grants of the device plugin.
func (s *site) stolenUnits() {
	plugin := s.startAgent("device-plugin", "--interval", "200ms")
	defer func() { s.ends(plugin) }()
	s.hasUnits()
	s.applied(printing(clusterPod("units", func(pod, container object) {
		container["resources"] = object{"limits": object{"gpuledger.dev/gpu-memory": 4}}
		first := object{"name": "first", "image": image, "imagePullPolicy": "Never",
			"command":   []string{"/bin/sh", "-c", "test -c /dev/nvidiactl"},
			"resources": container["resources"]}
		pod["spec"].(object)["initContainers"] = []object{first}
	})))
	reference := s.reference("units")
	r, err := grant.ParseReference(reference)
	must(s.T, err)
	s.isFor(r.ID, nil, "units")
	s.refusesThieves("units", reference, "units")
	s.ends(plugin)
	s.refusesThieves("without-plugin", reference, "units")
	plugin = s.startAgent("device-plugin", "--interval", "200ms")
	s.hasUnits()
	s.refusesThieves("after-plugin", reference, "units")
	s.removed("units")
	s.nothingLeft()
}
