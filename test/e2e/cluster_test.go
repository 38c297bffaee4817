//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// clusterRow is a row of the tests of a cluster. The driver is the one that runs, nil if none was
// started.
type clusterRow struct {
	name string
	test func(s *site, driver **daemon)
}

// claimRows need dynamic resource allocation (DRA).
var claimRows = []clusterRow{
	{"the scheduler sees the GPUs", func(s *site, _ **daemon) { s.seesGPUs() }},
	{"two pods share a GPU and a third waits", func(s *site, _ **daemon) { s.sharing() }},
	{"exclusive and shared exclude each other", func(s *site, _ **daemon) { s.excluding() }},
	{"the status of a pod says that its GPU is unhealthy", func(s *site, _ **daemon) { s.unhealthy() }},
	{"several shared modes, where a pool lists them", func(s *site, _ **daemon) { s.severalModes() }},
	{"shares on distinct GPUs", func(s *site, _ **daemon) { s.distinct() }},
	{"each container has its own request of a claim", func(s *site, _ **daemon) { s.requests() }},
	{"whole GPUs as the device plugin's resource", func(s *site, _ **daemon) { s.extended() }},
	{"more than there is", func(s *site, _ **daemon) { s.tooMuch() }},
	{"refused with the reason in the pod's events", func(s *site, _ **daemon) { s.refusals() }},
	{"the driver is killed and updated", func(s *site, d **daemon) { s.upgrade(d) }},
	{"a reference is good in its claim's pods alone", func(s *site, d **daemon) { s.stolen(d) }},
	{"refused when it is prepared, with the reason in the pod's events",
		func(s *site, d **daemon) { s.preparing(d) }},
	{"the driver is updated beside the old one", func(s *site, d **daemon) { s.rollingUpdate(*d) }},
	{"manifests of others become claims", func(s *site, _ **daemon) { s.claimsOfOthers() }},
	{"pods come and go while all is killed",
		func(s *site, d **daemon) { (*d).kill(); *d = s.claimStorm() }},
}

// unitRows are those of the device plugin, which run on every version.
var unitRows = []clusterRow{
	{"a device plugin", func(s *site, d **daemon) { s.ends(*d); s.devicePlugin() }},
	{"the device plugin's reference is good in its pod alone",
		func(s *site, d **daemon) { s.ends(*d); s.stolenUnits() }},
	{"the same with the device plugin", func(s *site, d **daemon) { s.ends(*d); s.unitStorm() }},
	{"a scheduler places", func(s *site, d **daemon) { s.ends(*d); schedulerCases(s) }},
	{"manifests of others", func(s *site, d **daemon) { s.ends(*d); s.manifestsOfOthers() }},
	{"pods that a scheduler places come and go while all is killed",
		func(s *site, d **daemon) { s.ends(*d); s.placedStorm() }},
}

// noClaims is why a version of Kubernetes runs none of claimRows.
const noClaims = "this Kubernetes has no API resource.k8s.io/v1: what its scheduler, its kubelet and " +
	"gpuledger's DRA driver do with claims is not shown"

// cluster tests what the cluster's scheduler and the node's ledger do together. The node has two
// GPUs of 16160 MiB.
func cluster(t *testing.T, s *site) {
	agent, why := "dra", ""
	if s.kubectl("get", "--raw", "/apis/resource.k8s.io/v1").Code != 0 {
		agent, why = "device-plugin", noClaims
	}
	s.administer("apply", "-k", "../../kube/manifests/"+agent)
	// the agent runs here without an image, before the label would start it
	s.administer("delete", "daemonset", "gpuledger-"+agent, "-n", "gpuledger-system")
	s.administer("label", "node", clusterNode, "gpuledger.dev/node=shared")
	s.administer("create", "namespace", "team")
	s.administer("create", "namespace", "other")
	var driver *daemon
	if why == "" {
		driver = s.startDRA()
	}
	for _, row := range claimRows {
		s.clusterRow(t, row, &driver, why)
	}
	for _, row := range unitRows {
		s.clusterRow(t, row, &driver, "")
	}
	s.ends(driver)
}

// clusterRow runs a row, unless there is a reason to skip it.
func (s *site) clusterRow(t *testing.T, row clusterRow, driver **daemon, why string) {
	o := outcome{Engine: s.engine.name, Client: "kubelet", Entry: s.entry.name, Case: row.name, Result: "ok"}
	t.Run(row.name, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				o.Result = "FAIL"
			}
			note(t, o)
		}()
		if why != "" {
			o.Result, o.Why = "-", why
			t.Skip(why)
		}
		at := s.in(t)
		row.test(at, driver)
		at.administer("delete", "pods", "--all", "-n", "team", "--wait=true", "--grace-period=1")
		if *driver != nil {
			at.administer("delete", "resourceclaims,resourceclaimtemplates", "--all", "-n", "team",
				"--wait=true")
		}
		at.nothingLeft()
	})
}

// nothingLeft fails if a grant is in the ledger, or a grant's CDI file exists.
func (s *site) nothingLeft() {
	s.T.Helper()
	eventually(s.T, "no grant is left", func() bool { return len(s.Grants()) == 0 })
	eventually(s.T, "no grant's CDI file is left", func() bool {
		files, err := filepath.Glob("/var/run/cdi/gpuledger.dev-grant_*")
		must(s.T, err)
		return len(files) == 0
	})
	s.CheckSound("after the pods")
}

// clusterPod is a pod with a container that prints what it reaches and then runs until it is
// deleted.
func clusterPod(name string, change func(pod, container object)) object {
	// the probe needs it, and CRI-O gives it only on request
	security := object{"capabilities": object{"add": []string{"MKNOD"}}}
	container := object{"name": "main", "image": image, "imagePullPolicy": "Never",
		"securityContext": security, "command": []string{
			"/bin/sh", "-c", probe + "\necho " + strings.TrimSpace(endMark) + "; exec sleep 100000"}}
	spec := object{"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
		"runtimeClassName": "gpuledger", "containers": []object{container}}
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name}, "spec": spec}
	if change != nil {
		change(pod, container)
	}
	return pod
}

// claiming is a pod with a claim of its own: a class, the number of devices, and the capacity of
// each.
func claiming(name, class string, count int, capacity object, distinct bool) []object {
	request := object{"deviceClassName": class + ".gpuledger.dev", "count": count}
	if capacity != nil {
		request["capacity"] = object{"requests": capacity}
	}
	devices := object{"requests": []object{{"name": "gpu", "exactly": request}}}
	if distinct {
		devices["constraints"] = []object{{"distinctAttribute": "gpuledger.dev/uuid"}}
	}
	claim := object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
		"metadata": object{"name": name}, "spec": object{"devices": devices}}
	return []object{claim, clusterPod(name, func(pod, container object) {
		pod["spec"].(object)["resourceClaims"] = []object{{"name": "gpu", "resourceClaimName": name}}
		container["resources"] = object{"claims": []object{{"name": "gpu"}}}
	})}
}

// podSeen is the part of a pod's status that the tests use.
type podSeen struct {
	Metadata struct{ UID string }
	Status   struct {
		Phase, Reason, Message string
		Conditions             []struct{ Type, Status, Message string }
		ContainerStatuses      []struct {
			ContainerID  string
			RestartCount int
		}
	}
}

func (s *site) podNamed(name string) (p podSeen) {
	s.read(&p, "pod", name)
	return p
}

// runs waits until a pod has printed what it reaches, and returns that.
func (s *site) runs(name string) string {
	s.T.Helper()
	return s.runsIn(name, "main")
}

// runsIn is runs for one container of a pod.
func (s *site) runsIn(name, container string) string {
	s.T.Helper()
	var text string
	defer func() {
		if text == "" {
			s.T.Logf("pod %s: %s\nthe node offers: %s", name,
				s.kubectl("describe", "pod", name, "-n", "team").Stdout+
					s.kubectl("describe", "resourceclaim", name, "-n", "team").Stdout,
				s.kubectl("get", "resourceslices", "-o", "json").Stdout)
		}
	}()
	// The scheduler can count a claim twice while it writes it. It tries a pod that did not fit
	// then again after five minutes (docs/kubernetes.md).
	within(s.T, 8*time.Minute, "pod "+name+" runs", func() bool {
		p := s.podNamed(name)
		if p.Status.Phase == "Failed" {
			s.T.Fatalf("pod %s has failed: %+v\n%s", name, p, s.eventsOf(name))
		}
		files, _ := filepath.Glob("/var/log/pods/team_" + name + "_" + p.Metadata.UID + "/" + container +
			"/0.log")
		if len(files) == 0 || p.Metadata.UID == "" {
			return false
		}
		log, _ := os.ReadFile(files[0])
		text = containerOutput(string(log))
		return p.Status.Phase == "Running" && strings.HasSuffix(text, endMark)
	})
	return strings.TrimSuffix(text, endMark)
}

// containerOutput is a container's output, taken from CRI's log: "time stream F line".
func containerOutput(log string) string {
	var text strings.Builder
	for line := range strings.Lines(log) {
		if words := strings.SplitN(line, " ", 4); len(words) == 4 {
			text.WriteString(words[3])
		}
	}
	return text.String()
}

// waits wants the scheduler not to place a pod, and to give the reason.
func (s *site) waits(name string) {
	s.T.Helper()
	eventually(s.T, "pod "+name+" waits, and its events have the reason", func() bool {
		p := s.podNamed(name)
		if p.Status.Phase == "Running" {
			s.T.Fatalf("pod %s runs, want it to wait\n%+v", name, s.Grants())
		}
		for _, c := range p.Status.Conditions {
			if c.Type == "PodScheduled" && c.Status == "False" &&
				strings.Contains(c.Message, "cannot allocate all claims") {
				return true
			}
		}
		return false
	})
}

func (s *site) removed(names ...string) {
	s.T.Helper()
	s.administer(append([]string{"delete", "pod", "-n", "team", "--wait=true", "--grace-period=1"},
		names...)...)
}

// eventsOf are the messages of a pod's events.
func (s *site) eventsOf(name string) string {
	return s.kubectl("get", "events", "-n", "team", "--field-selector", "involvedObject.name="+name, "-o",
		`jsonpath={range .items[*]}{.message}{"\n"}{end}`).Stdout
}

// claimOf is a claim's grant.
func (s *site) claimOf(name string) rig.Listed {
	s.T.Helper()
	uid := s.administer("get", "resourceclaim", name, "-n", "team", "-o", "jsonpath={.metadata.uid}")
	all := s.Grants()
	i := slices.IndexFunc(all, func(g rig.Listed) bool { return g.Owner == grant.Owner("claim:"+uid) })
	if i < 0 {
		s.T.Fatalf("claim %s has no grant: %+v", name, all)
	}
	return all[i]
}

// idsOf are the grants of a claim and its requests.
func (s *site) idsOf(claim string) (ids []grant.ID) {
	s.T.Helper()
	for uid, all := s.uidOf(claim), s.Grants(); len(all) > 0; all = all[1:] {
		if strings.HasPrefix(string(all[0].Owner), "claim:"+uid) {
			ids = append(ids, all[0].ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func (s *site) seesGPUs() {
	s.offers("two GPUs, whole or in shares of one mode, without counters", "limit true  limit true  ")
	s.applied(clusterPod("plain", nil))
	if out := s.runs("plain"); out != nothing {
		s.T.Errorf("a pod without a request reaches\n%s", out)
	}
}

// offers waits until the node's devices have these modes, attributes whole and counters.
func (s *site) offers(what, want string) {
	s.T.Helper()
	eventually(s.T, what, func() bool {
		return s.kubectl("get", "resourceslices", "-o", `jsonpath={range .items[*].spec.devices[*]}`+
			`{.attributes.mode.string} {.attributes.whole.bool} `+
			`{.consumesCounters[*].counters.gpu.value} {end}`,
		).Stdout == want
	})
}

// pools writes the modes of both GPUs into the node's configuration, and takes them back at the
// end.
func (s *site) pools(gpu0, gpu1 string) (end func()) {
	s.T.Helper()
	before, err := os.ReadFile(s.Config)
	must(s.T, err)
	s.Write("config.toml", fmt.Sprintf("%s\n[[pool]]\ngpus = [\"0\"]\nmodes = [%s]\n"+
		"[[pool]]\ngpus = [\"1\"]\nmodes = [%s]\n", before, gpu0, gpu1))
	return func() { s.Write("config.toml", string(before)) }
}

const (
	oneShared     = `"exclusive", "limit"`
	severalShared = `"exclusive", "timeslice", "limit"`
)

// severalModes has claims of two shared modes. A claim for a whole GPU that was made before stays.
func (s *site) severalModes() {
	explains := func(name, want string) {
		s.T.Helper()
		program, err := filepath.Abs("../../bin/kubectl-gpuledger")
		must(s.T, err)
		if r := rig.Run(s.Command(program, "explain", "--kubeconfig", adminConfig, "-n", "team",
			name)); r.Code != 0 || !strings.Contains(r.Stdout, want) {
			s.T.Errorf("kubectl gpuledger explain: %+v, want %q", r, want)
		}
	}
	s.applied(append(claiming("whole", "exclusive", 1, nil, false),
		claiming("slice", "timeslice", 1, object{"memory": "1Gi"}, false)...)...)
	s.runs("whole")
	s.waits("slice")
	explains("slice", "and no node offers that mode")
	defer s.offers("one shared mode again", "limit true  limit true  ")
	defer s.pools(severalShared, severalShared)()
	all := "exclusive true 1 timeslice false 1 limit false 1 "
	s.offers("each GPU in three modes, with a counter", all+all)
	s.runs("slice")
	s.applied(claiming("share", "limit", 1, object{"memory": "1Gi"}, false)...)
	s.waits("share") // one GPU is whole, and on the other nothing limits the memory
	s.removed("slice")
	s.runs("share")
	s.applied(claiming("another", "exclusive", 1, nil, false)...)
	s.waits("another")
	s.removed("whole")
	s.runs("another")
	s.removed("another", "share")
}

const only0 = let + absent + let + let + denied

func (s *site) sharing() {
	s.applied(append(append(claiming("whole", "exclusive", 1, nil, false),
		claiming("a", "limit", 1, object{"memory": "6Gi", "compute": "30"}, false)...),
		claiming("b", "limit", 1, object{"memory": "8Gi"}, false)...)...)
	outs := map[string]bool{s.runs("whole"): true, s.runs("a"): true}
	if out := s.runs("b"); !outs[only0] || !outs[gpu1] || !outs[out] {
		s.T.Errorf("want one GPU for the first, the other for the two others, got %q", out)
	}
	a, b, whole := s.claimOf("a"), s.claimOf("b"), s.claimOf("whole")
	if a.GPUs[0].UUID != b.GPUs[0].UUID || whole.GPUs[0].UUID == a.GPUs[0].UUID ||
		a.GPUs[0].Memory != 6*grant.GiB || b.GPUs[0].Memory != 8*grant.GiB {
		s.T.Errorf("got %+v, %+v and %+v", a, b, whole)
	}
	eventually(s.T, "the status of a claim says what it has", func() bool {
		return s.kubectl("get", "resourceclaim", "a", "-n", "team", "-o",
			"jsonpath={.status.devices[*].conditions[*].message}").Stdout ==
			"6GiB and 30% of the compute in mode limit, strength none"
	})
	for _, g := range []rig.Listed{a, b, whole} {
		if g.State != grant.Bound || g.Source != "dra" {
			s.T.Errorf("got %+v, want it bound", g)
		}
	}
	s.applied(claiming("c", "limit", 1, object{"memory": "4Gi"}, false)...)
	s.waits("c")
	s.removed("a")
	if out := s.runs("c"); out != only0 && out != gpu1 {
		s.T.Errorf("got %q", out)
	}
	s.seesCluster()
}

// seesCluster wants kubectl gpuledger to show the same as the ledger.
func (s *site) seesCluster() {
	s.T.Helper()
	program, err := filepath.Abs("../../bin/kubectl-gpuledger")
	must(s.T, err)
	cmd := s.Command(program, "inspect", "-d", "--kubeconfig", adminConfig)
	if r := rig.Run(cmd); r.Code != 0 || !strings.Contains(r.Stdout, "12/15.8 limit") ||
		!strings.Contains(r.Stdout, "15.8/15.8 exclusive") {
		s.T.Errorf("kubectl gpuledger inspect: %+v", r)
	}
	cmd = s.Command(program, "explain", "--kubeconfig", adminConfig, "-n", "team", "c")
	if r := rig.Run(cmd); r.Code != 0 || !strings.Contains(r.Stdout, "claim c has 4 GiB of GPU ") {
		s.T.Errorf("kubectl gpuledger explain: %+v", r)
	}
}

func (s *site) excluding() {
	s.applied(append(claiming("w1", "exclusive", 1, nil, false),
		claiming("w2", "exclusive", 1, nil, false)...)...)
	s.runs("w1")
	s.runs("w2")
	s.applied(claiming("share", "limit", 1, object{"memory": "1Gi"}, false)...)
	s.waits("share")
	s.removed("w1")
	s.runs("share")
	s.applied(claiming("w3", "exclusive", 1, nil, false)...)
	s.waits("w3")
	s.applied(claiming("all", "limit", 1, nil, false)...) // all the memory, but not the whole GPU
	s.waits("all")
	s.removed("share", "w2")
	s.runs("w3")
	s.runs("all")
	if g := s.claimOf("all"); g.Mode != grant.Limit {
		s.T.Errorf("got %+v, want a share of all the memory", g)
	}
	if r := s.apply(claiming("part", "exclusive", 1, object{"memory": "1Gi"}, false)...); r.Code == 0 ||
		!strings.Contains(r.Stderr, "names no capacity") {
		s.T.Errorf("got %+v, want a whole GPU of an amount refused before it is scheduled", r)
	}
}

// unhealthy wants the kubelet to write the health of a pod's GPU into the pod's status (KEP 4680).
func (s *site) unhealthy() {
	s.applied(claiming("watched", "limit", 1, object{"memory": "1Gi"}, false)...)
	s.runs("watched")
	status := func(health string) func() bool {
		return func() bool {
			out := s.kubectl("get", "pod", "watched", "-n", "team", "-o",
				"jsonpath={.status.containerStatuses[*].allocatedResourcesStatus}").Stdout
			return strings.Contains(out, `"health":"`+health+`"`)
		}
	}
	eventually(s.T, "the GPU is healthy", status("Healthy"))
	file := filepath.Join(s.Dir, "node.json")
	before, err := os.ReadFile(file)
	must(s.T, err)
	set := func(description string) {
		must(s.T, os.WriteFile(file, []byte(description), 0o644))
		s.Must("inventory", "refresh")
	}
	broken := strings.ReplaceAll(string(before), `"health": "ok"`, `"health": "fell off the bus"`)
	if broken == string(before) {
		s.T.Fatalf("no GPU is healthy in %s", before)
	}
	set(broken)
	eventually(s.T, "the GPU is unhealthy", status("Unhealthy"))
	set(string(before))
	eventually(s.T, "the GPU is healthy again", status("Healthy"))
}

func (s *site) distinct() {
	s.applied(claiming("two", "limit", 2, object{"memory": "4Gi"}, true)...)
	if out := s.runs("two"); out != let+let+let+let+let {
		s.T.Errorf("got %q, want both GPUs", out)
	}
	if g := s.claimOf("two"); len(g.GPUs) != 2 || g.GPUs[0].UUID == g.GPUs[1].UUID ||
		g.GPUs[0].Memory != 4*grant.GiB || g.GPUs[1].Memory != 4*grant.GiB {
		s.T.Errorf("got %+v, want 4 GiB on each of two GPUs", g)
	}
	if r := s.apply(claiming("twice", "limit", 2, object{"memory": "1Gi"}, false)...); r.Code == 0 ||
		!strings.Contains(r.Stderr, "distinctAttribute: gpuledger.dev/uuid") {
		s.T.Errorf("got %+v, want it refused before it is scheduled", r)
	}
	if r := s.apply(claiming("set", "mps", 2, object{"memory": "1Gi"}, true)...); r.Code == 0 ||
		!strings.Contains(r.Stderr, "a GPU has one MPS daemon") {
		s.T.Errorf("got %+v, want a claim over two GPUs in mode mps refused before it is scheduled", r)
	}
}

func (s *site) tooMuch() {
	s.applied(append(claiming("huge", "limit", 1, object{"memory": "64Gi"}, false),
		claiming("many", "exclusive", 3, nil, false)...)...)
	s.waits("huge")
	s.waits("many")
}

// upgrade ends the driver in both ways while pods run, and deletes one pod while no driver runs.
func (s *site) upgrade(driver **daemon) {
	s.applied(append(claiming("stays", "limit", 1, object{"memory": "2Gi"}, false),
		claiming("goes", "limit", 1, object{"memory": "2Gi"}, false)...)...)
	s.runs("stays")
	s.runs("goes")
	before := s.claimOf("stays")
	(*driver).kill()
	s.kubectl("delete", "pod", "goes", "-n", "team", "--wait=false", "--grace-period=1")
	*driver = s.startDRA()
	eventually(s.T, "the pod that went has given its grant up", func() bool { return len(s.Grants()) == 1 })
	s.ends(*driver)
	*driver = s.startDRA()
	s.applied(claiming("comes", "limit", 1, object{"memory": "2Gi"}, false)...)
	s.runs("comes")
	p := s.podNamed("stays")
	if after := s.claimOf("stays"); after.ID != before.ID || after.State != grant.Bound ||
		p.Status.Phase != "Running" || p.Status.ContainerStatuses[0].RestartCount != 0 {
		s.T.Errorf("the pod that stays: %+v and %+v, want nothing to have happened to it", after, p)
	}
}

// oldKubeVar names the gpuledger-kube of an older version, which the driver is updated from.
// Without it the update is from the same version.
const oldKubeVar = "OLD_KUBE"

// rollingUpdate starts a second driver beside the first, as the DaemonSet does. It ends the old
// one, and then kills the new one.
func (s *site) rollingUpdate(before *daemon) {
	s.ends(before)
	older := s.startDRAOf(cmp.Or(os.Getenv(oldKubeVar), "../../bin/gpuledger-kube"), "--pod-uid", "uid-1")
	share := func(name string) {
		s.T.Helper()
		s.applied(claiming(name, "limit", 1, object{"memory": "2Gi"}, false)...)
		s.runs(name)
	}
	share("stays")
	share("goes")
	s.applied(claiming("whole", "exclusive", 1, nil, false)...)
	s.runs("whole")
	// to a driver whose claims are one grant each, these requests are one
	s.applied(twoRequests("pair", "limit", "1Gi", "limit", "1Gi"), ofRequests("pair", "pair", "main", "side"))
	s.runsIn("pair", "main")
	s.runsIn("pair", "side")
	pair := s.idsOf("pair")
	pod, granted := s.podNamed("stays"), s.claimOf("stays")
	newer := s.startDRA("--pod-uid", "uid-2")
	share("between")
	s.removed("goes")
	s.ends(older)
	share("after")
	newer.kill()
	last := s.startDRA("--pod-uid", "uid-3")
	share("last")
	if ids := s.idsOf("pair"); !slices.Equal(ids, pair) {
		s.T.Errorf("the claim of two requests had the grants %v and has %v", pair, ids)
	}
	s.T.Logf("a claim of two requests has the grants %v over the update", pair)
	s.removed("between", "pair")
	eventually(s.T, "the grants are those of the pods that are there",
		func() bool { return len(s.Grants()) == 4 })
	if g := s.claimOf("whole"); g.Mode != grant.Exclusive || g.State != grant.Bound {
		s.T.Errorf("the pod with a whole GPU has %+v", g)
	}
	s.removed("whole")
	s.offers("both GPUs after the last claim on an older driver's device", "limit true  limit true  ")
	p := s.podNamed("stays")
	if g := s.claimOf("stays"); g.ID != granted.ID || g.State != grant.Bound || p.Status.Phase != "Running" ||
		!slices.Equal(p.Status.ContainerStatuses, pod.Status.ContainerStatuses) {
		s.T.Errorf(
			"the pod that stays was %+v and is %+v, with the grant %+v; want nothing to have happened to it",
			pod, p, g)
	}
	for _, pattern := range []string{"/var/lib/kubelet/plugins_registry/gpuledger.dev-*",
		"/var/lib/kubelet/plugins/gpuledger.dev/dra*.sock"} {
		files, err := filepath.Glob(pattern)
		must(s.T, err)
		if len(files) != 1 || !strings.Contains(files[0], "uid-3") {
			s.T.Errorf("the sockets are %v, want those of the driver that runs", files)
		}
	}
	s.removed("stays", "after", "last")
	s.nothingLeft()
	s.ends(last)
}

// devicePlugin is for clusters without DRA: the guard is the same, and the kubelet counts the
// units.
func (s *site) devicePlugin() {
	plugin := s.startAgent("device-plugin", "--interval", "200ms")
	defer s.ends(plugin)
	s.hasUnits()
	units := func(n int) object { return object{"limits": object{"gpuledger.dev/gpu-memory": n}} }
	beside := func(pod object, kind, name, script string, n int) {
		spec := pod["spec"].(object)
		list, _ := spec[kind].([]object)
		spec[kind] = append(list, object{"name": name, "image": image, "imagePullPolicy": "Never",
			"command": []string{"/bin/sh", "-c", script}, "resources": units(n)})
	}
	s.applied(clusterPod("equal", func(pod, container object) {
		container["resources"] = units(4)
		beside(pod, "containers", "twin", "exec sleep 100000", 4)
		beside(pod, "initContainers", "first", "test -c /dev/nvidiactl", 4)
	}))
	if out := s.runs("equal"); out != only0 && out != gpu1 {
		s.T.Errorf("got %q, want one GPU", out)
	}
	eventually(s.T, "each of two equal containers has a grant of its own", func() bool {
		bound := 0
		for _, g := range s.Grants() {
			if g.State == grant.Bound && g.GPUs[0].Memory == 4*grant.GiB {
				bound++
			}
		}
		return bound == 2
	})
	// the node has that many units, but no single GPU has
	s.applied(clusterPod("too-large", func(_, container object) { container["resources"] = units(16) }))
	eventually(s.T, "the kubelet admits no pod that no GPU has room for, and reports what is free where",
		func() bool {
			p := s.podNamed("too-large")
			return p.Status.Phase == "Failed" &&
				strings.Contains(p.Status.Message, "refused (no-capacity)") &&
				strings.Contains(p.Status.Message, "GPU 0 ")
		})
	s.removed("equal", "too-large")
	s.nothingLeft()
}
