//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// placing is a node whose pods gpuledger's scheduler places: its processes.
type placing struct {
	*site
	extender, plugin, scheduler *daemon
}

const extenderAddress = "127.0.0.1:9839"

// schedulerPlaces starts the scheduler with the rights, the policies and the configuration of the
// manifests, and the device plugin that leaves placing to it.
func (s *site) schedulerPlaces() (p placing, end func()) {
	s.T.Helper()
	leave := s.schedulerEntered()
	p = s.placesBy(s.schedulerFile("resources\\.toml"), s.schedulerFile("kube-scheduler\\.yaml"))
	s.hasUnitsOf("32") // the GPUs' 31.6 GiB: the scheduler and the ledger count
	return p, func() { p.ended(); leave() }
}

// schedulerEntered makes the objects of the scheduler and the device plugin's account, and has the
// node adopt.
func (s *site) schedulerEntered() (leave func()) {
	s.T.Helper()
	for _, file := range []string{"node", "policy", "rbac", "config"} { // its pods have no images here
		s.administer("apply", "-f", "../../kube/manifests/scheduler/"+file+".yaml")
	}
	before, err := os.ReadFile(s.Config)
	must(s.T, err)
	s.Write("config.toml", string(before)+"\n[annotations]\ntrust = \"adopt\"\n")

	// a pod's token names its node, also where none can be made for a node itself (1.30)
	bearer := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "bearer"},
		"spec": object{"nodeName": clusterNode, "serviceAccountName": "gpuledger-device-plugin",
			"containers": []object{{"name": "main", "image": image, "imagePullPolicy": "Never",
				"command": []string{"sleep", "100000"}}}, "terminationGracePeriodSeconds": 1}}
	if r := s.kubectlWith(string(encode(s.T, bearer)), "apply", "-n", "gpuledger-system", "-f",
		"-"); r.Code != 0 {
		s.T.Fatalf("%+v", r)
	}
	uid := s.administer("get", "pod", "bearer", "-n", "gpuledger-system", "-o", "jsonpath={.metadata.uid}")
	s.account("gpuledger-device-plugin", "--bound-object-kind=Pod", "--bound-object-name=bearer",
		"--bound-object-uid="+uid)
	s.account("gpuledger-scheduler")
	return func() {
		s.administer("delete", "pod", "bearer", "-n", "gpuledger-system", "--wait=true")
		s.administer("delete", "validatingadmissionpolicybinding", "allocations.gpuledger.dev",
			"nodes.gpuledger.dev")
		s.Write("config.toml", string(before))
	}
}

// placesBy starts the processes with these names of resources and this configuration of
// kube-scheduler.
func (s *site) placesBy(names, config string) placing {
	s.T.Helper()
	resources, own := etcKubernetes+"/resources.toml", etcKubernetes+"/gpuledger-scheduler.yaml"
	writeFile(s.T, resources, names)
	p := placing{site: s}
	p.plugin = s.startAgent("device-plugin", "--placed-by", "scheduler", "--resources-file", resources,
		"--node-name", clusterNode, "--kubeconfig", etcKubernetes+"/gpuledger-device-plugin.yaml",
		"--interval", "200ms")
	p.extender = s.startAgent("scheduler", "--extender", extenderAddress, "--resources-file", resources,
		"--kubeconfig", own)
	file := etcKubernetes + "/kube-scheduler.yaml"
	writeFile(s.T, file, config+"\nclientConnection: {kubeconfig: "+own+"}\n")
	p.scheduler = s.startAgentOf(built(kubernetesVersion()+"/kube-scheduler"), "--config="+file,
		"--bind-address=127.0.0.1", "--secure-port=10261", "--authentication-skip-lookup=true")
	s.published(0, 1)
	eventually(s.T, "the extender serves", p.serves)
	return p
}

func (p placing) ended() {
	p.T.Helper()
	p.ends(p.scheduler)
	p.ends(p.extender)
	p.ends(p.plugin)
}

func kubernetesVersion() string {
	return strings.TrimSuffix("kubernetes-"+os.Getenv(versionVar), "-")
}

func (p placing) serves() bool {
	conn, err := net.Dial("tcp", extenderAddress)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// schedulerFile returns a file of the scheduler's configuration in the cluster.
func (s *site) schedulerFile(key string) string {
	s.T.Helper()
	return s.administer("get", "configmap", "gpuledger-scheduler", "-n", "gpuledger-system", "-o",
		"jsonpath={.data."+key+"}")
}

// account makes a kubeconfig of a service account, and returns its path.
func (s *site) account(name string, args ...string) string {
	s.T.Helper()
	token := s.administer(append([]string{"create", "token", name, "-n", "gpuledger-system"}, args...)...)
	path := etcKubernetes + "/" + name + ".yaml"
	writeFile(s.T, path, fmt.Sprintf(kubeconfig, token))
	return path
}

// published waits until the Node says that these GPUs have no grant, and the others have.
func (s *site) published(free ...int) {
	s.T.Helper()
	eventually(s.T, fmt.Sprintf("the Node says that GPUs %v are free", free), func() bool {
		text := s.kubectl("get", "node", clusterNode, "-o",
			`jsonpath={.metadata.annotations.gpuledger\.dev/ledger}`).Stdout
		for i := range 2 {
			_, of, _ := strings.Cut(text, fmt.Sprintf(`"index":%d,`, i))
			of, _, _ = strings.Cut(of, "}")
			if text == "" || strings.Contains(of, `"mode"`) == slices.Contains(free, i) {
				return false
			}
		}
		return true
	})
}

// placedPod is a pod for the scheduler, with these limits.
func placedPod(name string, limits object, change func(pod, container object)) object {
	return clusterPod(name, func(pod, container object) {
		pod["spec"].(object)["schedulerName"] = "gpuledger-scheduler"
		container["resources"] = object{"limits": limits}
		if change != nil {
			change(pod, container)
		}
	})
}

func gibs(n int) object { return object{"gpuledger.dev/gpu-memory": n} }

// adopted returns the grant of a pod's container.
func (s *site) adopted(pod string) rig.Listed {
	s.T.Helper()
	owner := grant.PodOwner(s.podNamed(pod).Metadata.UID, "main")
	all := s.Grants()
	i := slices.IndexFunc(all, func(g rig.Listed) bool { return g.Owner == owner })
	if i < 0 {
		s.T.Fatalf("pod %s has adopted nothing: %+v", pod, all)
	}
	return all[i]
}

// unplaced waits until the scheduler says why it does not place a pod.
func (s *site) unplaced(pod string, reasons ...string) {
	s.T.Helper()
	said := ""
	defer func() {
		if said != "" {
			s.T.Logf("pod %s: %s", pod, said)
		}
	}()
	eventually(s.T, "pod "+pod+" waits, and the reason is in its conditions", func() bool {
		for _, c := range s.podNamed(pod).Status.Conditions {
			if c.Type == "PodScheduled" && c.Status == "False" {
				said = c.Message
			}
		}
		return !slices.ContainsFunc(reasons, func(r string) bool { return !strings.Contains(said, r) })
	})
}

// schedulerCases are what the scheduler, the kubelet and the node's ledger do together.
func schedulerCases(s *site) {
	p, end := s.schedulerPlaces()
	defer end()
	for _, c := range []struct {
		name string
		test func(placing)
	}{
		{"a fragmented node", placing.fragmented},
		{"past the extender", placing.past},
		{"tenants cannot write allocations", placing.forged},
		{"4 GiB over two GPUs", placing.overTwo},
		{"exclusive beside shared", placing.beside},
		{"replicas on different GPUs", placing.apart},
		{"a pod that its node refuses is moved", placing.moved},
		{"the scheduler is killed", placing.killed},
	} {
		s.T.(*testing.T).Run(c.name, func(t *testing.T) {
			at := p
			at.site = s.in(t)
			c.test(at)
			at.administer("delete", "deployments,pods", "--all", "-n", "team", "--wait=true",
				"--grace-period=1")
			at.nothingLeft()
			at.published(0, 1)
		})
	}
}

// placedStorm is a storm over pods that the scheduler places. Its processes are killed, too.
func (s *site) placedStorm() {
	p, end := s.schedulerPlaces()
	defer end()
	for name, d := range map[string]*daemon{"gpuledger-kube": p.plugin, "extender": p.extender,
		"kube-scheduler of GPUs": p.scheduler} {
		s.daemons[name] = d
		defer delete(s.daemons, name)
	}
	storm := s.newStorm(placedPodKinds(), append(s.victims(), "extender", "kube-scheduler of GPUs")...)
	storm.run()
	within(s.T, stormPatience, "each container that runs has a grant of its own, and there is no other",
		storm.oneEach)
	storm.over()
}

// placedPodKinds are those of the device plugin, for the scheduler.
func placedPodKinds() (kinds []podKind) {
	for _, p := range unitPodKinds() {
		if p.static { // no scheduler places it
			continue
		}
		make := p.pod
		p.pod = func(name string) object {
			pod := make(name)
			pod["spec"].(object)["schedulerName"] = "gpuledger-scheduler"
			return pod
		}
		kinds = append(kinds, p)
	}
	return kinds
}

// fragmented has 6 GiB free on each GPU: no pod of 8 GiB is placed, until there is room.
func (s placing) fragmented() {
	s.applied(placedPod("a", gibs(9), nil), placedPod("b", gibs(9), nil))
	s.runs("a")
	s.runs("b")
	if a, b := s.adopted("a"), s.adopted("b"); a.GPUs[0].UUID == b.GPUs[0].UUID || a.Source != "adopted" ||
		a.GPUs[0].Memory != 9*grant.GiB || a.Mode != grant.Limit {
		s.T.Errorf("got %+v and %+v, want 9 GiB of each GPU", a, b)
	}
	s.applied(placedPod("c", gibs(8), nil), placedPod("small", gibs(6), nil))
	s.runs("small")
	s.unplaced("c", "8GiB", "free")
	s.removed("a")
	if out := s.runs("c"); out != only0 && out != gpu1 {
		s.T.Errorf("it reaches\n%s", out)
	}
	if g := s.adopted("c"); g.GPUs[0].Memory != 8*grant.GiB {
		s.T.Errorf("got %+v", g)
	}
}

// past has pods that another scheduler, or nobody, has placed.
func (s placing) past() {
	s.applied(clusterPod("past", func(_, container object) {
		container["resources"] = object{"limits": gibs(4)}
	}), clusterPod("bound", func(pod, container object) {
		pod["spec"].(object)["nodeName"] = clusterNode
		container["resources"] = object{"limits": gibs(4)}
	}))
	for _, name := range []string{"past", "bound"} {
		eventually(s.T, "pod "+name+" is refused, with a sentence", func() bool {
			if p := s.podNamed(name); p.Status.Phase == "Running" {
				s.T.Fatalf("pod %s runs", name)
			}
			events := s.eventsOf(name)
			return strings.Contains(events, "refused (grant-not-found)") &&
				strings.Contains(events, "must adopt the GPU that a scheduler allocates to it") &&
				strings.Contains(events, "placed past gpuledger's scheduler")
		})
	}
	if g := s.Grants(); len(g) != 0 {
		s.T.Errorf("there are grants: %+v", g)
	}
}

// forged has tenants that write what only the scheduler may.
func (s placing) forged() {
	// the administrator has all rights, so what is refused the policies refuse
	const only = "only gpuledger's scheduler may set or change "
	noted := func(name string, notes object) object {
		return placedPod(name, gibs(1), func(pod, _ object) {
			pod["metadata"].(object)["annotations"] = notes
		})
	}
	for key, value := range map[string]string{"gpuledger.dev/gpus.main": "0",
		"gpuledger.dev/gpu.main": "0", "gpuledger.dev/memory.main": "9GiB", "gpuledger.dev/compute": "90",
		"gpuledger.dev/mode.main": "exclusive", "gpuledger.dev/node": clusterNode,
		"ALIYUN_COM_GPU_MEM_IDX": "0", "scheduler.framework.gpushare.allocation": `{"main":{"0":9}}`} {
		eventually(s.T, "a pod with "+key+" is not created", func() bool { // the policies take a moment
			r := s.apply(noted("forged", object{key: value}))
			if r.Code == 0 {
				s.removed("forged")
			}
			return r.Code != 0 && strings.Contains(r.Stderr, only+key)
		})
	}
	if r := s.apply(noted("forged", object{"gpuledger.dev/grant": "adopt"})); r.Code == 0 ||
		!strings.Contains(r.Stderr, "the kubelet gives it to containers") {
		s.T.Errorf("the mark: %+v", r)
	}
	s.applied(noted("fine", object{"gpuledger.dev/grant.other": "g-aaaaaaaaaaaa", "example.com/note": "1"}))
	s.runs("fine")
	g := s.adopted("fine")
	for _, args := range [][]string{
		{"annotate", "pod", "fine", "-n", "team", "gpuledger.dev/memory.main-"},
		{"annotate", "pod", "fine", "-n", "team", "--overwrite", "gpuledger.dev/memory.main=9GiB"},
		{"patch", "pod", "fine", "-n", "team", "--subresource=status", "-p",
			`{"metadata":{"annotations":{"gpuledger.dev/memory.main":"9GiB"}}}`},
	} {
		if r := s.kubectl(args...); r.Code == 0 ||
			!strings.Contains(r.Stderr, only+"gpuledger.dev/memory.main") {
			s.T.Errorf("kubectl %v: %+v", args, r)
		}
	}
	s.administer("annotate", "pod", "fine", "-n", "team", "--overwrite", "example.com/note=2")
	// a binding's annotations become the pod's
	s.applied(clusterPod("waiting", func(pod, _ object) {
		pod["spec"].(object)["schedulerName"] = "nobody"
	}))
	binding := object{"apiVersion": "v1", "kind": "Binding", "metadata": object{"name": "waiting",
		"annotations": object{"gpuledger.dev/memory.main": "9GiB"}},
		"target": object{"apiVersion": "v1", "kind": "Node", "name": clusterNode}}
	if r := s.kubectlWith(string(encode(s.T, binding)), "create", "--raw",
		"/api/v1/namespaces/team/pods/waiting/binding", "-f", "-"); r.Code == 0 ||
		!strings.Contains(r.Stderr, only) {
		s.T.Errorf("a binding: %+v", r)
	}
	if again := s.adopted("fine"); again.ID != g.ID {
		s.T.Errorf("its grant was %+v and is %+v", g, again)
	}
	s.forgedNode()
}

// forgedNode has a device plugin's account that changes more than its own annotation.
func (s placing) forgedNode() {
	plugin := etcKubernetes + "/gpuledger-device-plugin.yaml"
	s.applied(object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "another"},
		"spec": object{"unschedulable": true}})
	defer s.administer("delete", "node", "another")
	for what, args := range map[string][]string{
		"its annotation of another node": {"annotate", "node", "another", "gpuledger.dev/ledger=x"},
		"another annotation of its node": {"annotate", "node", clusterNode, "example.com/x=y"},
		"a label of its node":            {"label", "node", clusterNode, "example.com/x=y"},
		"the taints of its node":         {"taint", "node", clusterNode, "x=y:NoSchedule"},
		"whether pods are placed on it":  {"patch", "node", clusterNode, "-p", `{"spec":{"unschedulable":true}}`},
		"its node's status":              {"patch", "node", clusterNode, "--subresource=status", "-p", `{"status":{"phase":"x"}}`},
	} {
		if r := s.kubectl(append([]string{"--kubeconfig", plugin}, args...)...); r.Code == 0 ||
			!strings.Contains(r.Stderr, "the device plugin") && what != "its node's status" {
			s.T.Errorf("it changes %s: %+v", what, r)
		}
	}
	s.administer("annotate", "node", clusterNode, "gpuledger.dev/ledger-")
	s.published(slices.DeleteFunc([]int{0, 1}, func(i int) bool {
		return slices.ContainsFunc(s.Grants(), func(g rig.Listed) bool { return g.GPUs[0].Index == i })
	})...)
}

func (s placing) overTwo() {
	s.applied(placedPod("two", gibs(4), func(pod, _ object) {
		pod["metadata"].(object)["annotations"] = object{"gpuledger.dev/gpu-count": "2"}
	}))
	s.runs("two")
	if g := s.adopted("two"); len(g.GPUs) != 2 || g.GPUs[0].Memory != 2*grant.GiB ||
		g.GPUs[1].Memory != 2*grant.GiB {
		s.T.Errorf("got %+v, want 2 GiB of each GPU", g)
	}
}

func (s placing) beside() {
	s.applied(placedPod("share", gibs(2), nil))
	s.runs("share")
	s.applied(placedPod("whole", object{"gpuledger.dev/gpu": 1}, nil))
	s.runs("whole")
	share, whole := s.adopted("share"), s.adopted("whole")
	if whole.Mode != grant.Exclusive || share.GPUs[0].UUID == whole.GPUs[0].UUID {
		s.T.Errorf("got %+v and %+v", share, whole)
	}
	s.applied(placedPod("whole-2", object{"gpuledger.dev/gpu": 1}, nil), placedPod("more", gibs(2), nil))
	s.runs("more")
	s.unplaced("whole-2", "GPU")
	if more := s.adopted("more"); more.GPUs[0].UUID != share.GPUs[0].UUID {
		s.T.Errorf("got %+v, want the shared GPU", more)
	}
}

// deployment has replicas of a pod.
func deployment(replicas int, pod object, notes object) object {
	pod["spec"].(object)["restartPolicy"] = "Always"
	return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "web"},
		"spec": object{"replicas": replicas, "selector": object{"matchLabels": object{"app": "web"}},
			"template": object{"metadata": object{"labels": object{"app": "web"}, "annotations": notes},
				"spec": pod["spec"]}}}
}

// moved has a node that does not publish a grant of its administrator, and refuses what is placed.
// A pod with a refusal's words as its program is not moved.
func (s placing) moved() {
	s.administer("delete", "clusterrolebinding", "gpuledger-device-plugin")
	id := s.Grant("--mode", "exclusive", "--gpus", "2").ID
	s.applied(deployment(1, placedPod("replica", gibs(2), nil), object{}))
	said := ""
	eventually(s.T, "its ReplicaSet makes another one", func() bool {
		said = s.kubectl("get", "events", "-n", "team", "--field-selector", "reason=GPUMoved", "-o",
			"jsonpath={.items[*].message}").Stdout
		return said != ""
	})
	if !strings.Contains(said, "node "+clusterNode+" refuses the pod's GPUs (mode-conflict)") {
		s.T.Errorf("the event says %q", said)
	}
	s.T.Logf("%s", said)
	s.Must("release", string(id))
	s.administer("apply", "-f", "../../kube/manifests/scheduler/node.yaml")
	eventually(s.T, "a replica has a grant", func() bool { return len(s.Grants()) == 1 })
	s.administer("delete", "deployment", "web", "-n", "team", "--wait=true")
	s.applied(deployment(1, placedPod("replica", gibs(2), func(_, container object) {
		container["command"] = []string{"gpuledger: refused (no-capacity): words of its own"}
	}), object{}))
	name := ""
	eventually(s.T, "it has failed to start three times, which takes longer than a move", func() bool {
		name = s.kubectl("get", "pods", "-n", "team", "-l", "app=web", "-o",
			"jsonpath={.items[*].metadata.name}").Stdout
		return strings.Contains(s.eventsOf(name), "gpuledger: refused (no-capacity): words of its own") &&
			s.failures(name) > 2
	})
	if now := s.kubectl("get", "pods", "-n", "team", "-l", "app=web", "-o",
		"jsonpath={.items[*].metadata.name} {.items[*].metadata.deletionTimestamp}").Stdout; now != name+" " {
		s.T.Errorf("pod %s became %s", name, now)
	}
	s.administer("delete", "deployment", "web", "-n", "team", "--wait=true")
}

// failures returns how often a pod's events say that a container has failed.
func (s *site) failures(pod string) (sum int) {
	counts := s.kubectl("get", "events", "-n", "team", "--field-selector",
		"reason=Failed,involvedObject.name="+pod, "-o", "jsonpath={.items[*].count}").Stdout
	for _, text := range strings.Fields(counts) {
		n, _ := strconv.Atoi(text)
		sum += n
	}
	return sum
}

// apart has two replicas of a Deployment.
func (s placing) apart() {
	s.applied(deployment(2, placedPod("replica", gibs(2), nil),
		object{"gpuledger.dev/spread-replicas": "true"}))
	eventually(s.T, "two replicas have grants on different GPUs", func() bool {
		g := s.Grants()
		return len(g) == 2 && g[0].GPUs[0].UUID != g[1].GPUs[0].UUID
	})
	s.administer("delete", "deployment", "web", "-n", "team", "--wait=true")
}

// killed ends the extender as a crash would, between pods that come.
func (s placing) killed() {
	for round := range 3 {
		first, second := fmt.Sprintf("before-%d", round), fmt.Sprintf("after-%d", round)
		s.applied(placedPod(first, gibs(5), nil))
		s.extender.kill()
		s.applied(placedPod(second, gibs(4), nil))
		must(s.T, s.extender.start())
		s.runs(first)
		s.runs(second)
		s.removed(first, second)
	}
}
