//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// stormVar is how many pods a storm creates and deletes. The default keeps it to a few minutes.
const (
	stormVar     = "STORM"
	stormDefault = 24
)

// stormPatience is longer than five minutes. The scheduler leaves a pod alone for that long if it
// missed an event, for example because the API server was killed.
const stormPatience = 12 * time.Minute

// triesUnderKills is how many pods of a kind are tried while daemons are killed. A device plugin
// keeps the grant of a deleted pod until it has watched one kubelet for a minute, so pods that need
// that memory are not admitted as long as either is killed more often.
const triesUnderKills = 10

// atOnce is how many pods of a storm there are at a time: more than the node has room for.
const atOnce = 6

// reference matches a reference to a grant.
var reference = regexp.MustCompile(`g-[a-z]{12}\.[0-9a-f]{32}`)

// podKind is a kind of pod in a storm.
type podKind struct {
	name string
	mode grant.Mode
	gpus int
	// on each GPU, by container; "": of the pod's one claim, which its containers share
	memory map[string]grant.Bytes
	pod    func(name string) object
	static bool // a file for the kubelet, which no scheduler has placed
}

// asks is what a container may have on each GPU, and the holder of the grant: the pod with its
// claim, or the container itself.
func (p podKind) asks(pod, container string) (holder string, memory grant.Bytes) {
	if m, claim := p.memory[""]; claim {
		return pod, m
	}
	return pod + "/" + container, p.memory[container]
}

// storm creates and deletes pods while daemons are killed.
type storm struct {
	*site
	*api
	podKinds []podKind
	victims  []string // names of daemons
	random   *rand.Rand
	ran      map[string]bool
	failed   map[string]string
	kills    map[string]int
	down     sync.Mutex           // held while a daemon is down on purpose
	odds     string               // the differences in the last comparison
	created  map[string]time.Time // when containers were first seen that are created and not started
	lookedAt time.Time            // when endLeft last looked
	logged   int64                // the size of the agents' log before the storm; an older agent may write it
}

// newStorm makes a storm from a seed, which it prints. The seed shifts kills and deletions, and
// must not change the outcome.
func (s *site) newStorm(podKinds []podKind, victims ...string) *storm {
	seed := uint64(time.Now().UnixNano())
	s.T.Logf("seed %d", seed)
	st := &storm{site: s, api: newAPI(), podKinds: podKinds, victims: victims,
		random: rand.New(rand.NewPCG(seed, 0)),
		ran:    map[string]bool{}, failed: map[string]string{}, kills: map[string]int{},
		created: map[string]time.Time{}}
	if info, err := os.Stat(s.agentsLog()); err == nil {
		st.logged = info.Size()
	}
	s.T.Cleanup(func() {
		if s.T.Failed() && st.odds != "" {
			s.T.Log("in the last comparison: ", st.odds)
		}
	})
	return st
}

// agentsLog is the log of the agents of Kubernetes, one after the other.
func (s *site) agentsLog() string { return filepath.Join(s.dir, "log", "gpuledger-kube") }

// run runs the storm. After it everything answers again, and some pods are left.
func (s *storm) run() {
	n := stormDefault
	if text := os.Getenv(stormVar); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(s.T, err)
	}
	began := time.Now()
	watch := s.watch()
	defer s.keeper()()
	strike, recovered := s.killer()
	var there []string
	for i := range n {
		p := s.podKinds[i%len(s.podKinds)]
		name := fmt.Sprintf("%s-%d", p.name, i)
		s.create(p, name)
		there = append(there, name)
		strike <- struct{}{}
		if len(there) >= atOnce {
			gone := s.chosen(there)
			s.delete(gone, i%5 == 0)
			there = slices.DeleteFunc(there, func(o string) bool { return o == gone })
		}
	}
	there = s.eachRuns(there, strike)
	close(strike)
	<-recovered
	for name, d := range s.daemons {
		eventually(s.T, name+" answers again", func() bool { return d.answers == nil || d.answers() })
	}
	s.settle(there)
	looks := watch()
	s.T.Logf("%d pods in %s: %d were seen to run, %d were not admitted; killed: %v; %d comparisons with "+
		"what containers reach", n, time.Since(began).Round(time.Second), len(s.ran), len(s.failed),
		s.kills, looks)
	for name, why := range s.failed {
		s.T.Logf("not admitted: %s: %s", name, why)
	}
}

// eachRuns continues until a pod of each kind was seen to run. A pod that needs much may not have
// found room, so it deletes others, and after some tries nothing is killed any more. It returns the
// pods that exist then.
func (s *storm) eachRuns(there []string, strike chan<- struct{}) []string {
	s.T.Helper()
	for i, p := range s.podKinds {
		of := func(name string) bool { return strings.HasPrefix(name, p.name+"-") }
		for try := 0; !s.hasRun(of); try++ {
			there = slices.DeleteFunc(there, func(name string) bool {
				if !of(name) || s.failed[name] != "" {
					s.delete(name, false)
					return true
				}
				return false
			})
			if !slices.ContainsFunc(there, of) {
				name := fmt.Sprintf("%s-again-%d-%d", p.name, i, try)
				s.create(p, name)
				there = append(there, name)
			}
			if try < triesUnderKills {
				strike <- struct{}{}
			} else {
				time.Sleep(5 * time.Second) // or each try is another pod that was not admitted
			}
			s.chosen(there)
		}
	}
	return there
}

// hasRun reports whether one of these pods was seen to run.
func (s *storm) hasRun(of func(name string) bool) bool {
	for name := range s.ran {
		if of(name) {
			return true
		}
	}
	return false
}

// killer kills one victim after another, at random moments, one for each strike. recovered is
// closed when all that were killed have been started again.
func (s *storm) killer() (strike chan struct{}, recovered chan struct{}) {
	strike, recovered = make(chan struct{}, 2), make(chan struct{})
	random := rand.New(rand.NewPCG(s.random.Uint64(), 0))
	order := slices.Clone(s.victims)
	// varies the times, and decides nothing
	pause := func(most time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(most)))) }
	go func() {
		defer close(recovered)
		for i := 0; ; i++ {
			if _, more := <-strike; !more {
				return
			}
			if i%len(order) == 0 {
				random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			}
			name := order[i%len(order)]
			pause(2 * time.Second)
			d := s.daemons[name]
			s.down.Lock()
			d.kill()
			s.kills[name]++
			pause(time.Second)
			if err := d.start(); err != nil {
				s.T.Errorf("cannot start %s again: %v", name, err)
			}
			s.down.Unlock()
		}
	}()
	return strike, recovered
}

// keeper restarts daemons that end by themselves, as systemd does: a kubelet without an engine
// ends.
func (s *storm) keeper() (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
			}
			s.down.Lock()
			for name, d := range s.daemons {
				if d.over() {
					if err := d.start(); err != nil {
						s.T.Errorf("cannot start %s again: %v", name, err)
					}
				}
			}
			s.down.Unlock()
		}
	}()
	return func() { close(stop); <-stopped }
}

func (s *storm) create(p podKind, name string) {
	s.T.Helper()
	pod := p.pod(name)
	if !p.static {
		s.insists(s.T, http.MethodPost, podsOfTeam, pod, nil)
		return
	}
	pod["metadata"].(object)["namespace"] = "team"
	draft := filepath.Join(staticPods, "."+name) // the kubelet reads no such file
	writeFile(s.T, draft, string(encode(s.T, pod)))
	must(s.T, os.Rename(draft, filepath.Join(staticPods, name+".json")))
}

// delete ends a pod; by force, the API forgets it before its containers have ended.
func (s *storm) delete(name string, force bool) {
	s.T.Helper()
	if s.podKindOf(name).static {
		must(s.T, os.Remove(filepath.Join(staticPods, name+".json")))
		return
	}
	grace := 1
	if force {
		grace = 0
	}
	s.insists(s.T, http.MethodDelete, podsOfTeam+"/"+name,
		object{"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}, nil)
}

// podKindOf is the kind of a pod, by its name.
func (s *storm) podKindOf(pod string) *podKind {
	i := slices.IndexFunc(s.podKinds, func(p podKind) bool { return strings.HasPrefix(pod, p.name+"-") })
	if i < 0 {
		return nil
	}
	return &s.podKinds[i]
}

// look lists the pods and records their outcomes. A static pod's name ends with its node's name.
func (s *storm) look() (all listed, ok bool) {
	s.endLeft()
	if status, _ := s.call(http.MethodGet, podsOfTeam, nil, &all); status != http.StatusOK {
		return all, false
	}
	for i := range all.Items {
		p := &all.Items[i]
		p.Metadata.Name = strings.TrimSuffix(p.Metadata.Name, "-"+clusterNode)
		switch p.Status.Phase {
		case "Running":
			s.ran[p.Metadata.Name] = true
		case "Failed":
			if p.Status.Reason != "" { // else it was deleted, and its container killed
				s.failed[p.Metadata.Name] = p.Status.Reason + ": " + p.Status.Message
			}
		}
	}
	return all, true
}

// chosen waits until one of these pods has an outcome. It returns that pod or, one time in three,
// any.
func (s *storm) chosen(there []string) (name string) {
	s.T.Helper()
	within(s.T, stormPatience, "one of "+strings.Join(there, ", ")+" runs or has failed", func() bool {
		all, ok := s.look()
		var some []string
		for _, p := range all.Items {
			if slices.Contains(there, p.Metadata.Name) &&
				(p.Status.Phase == "Running" || p.Status.Phase == "Failed") {
				some = append(some, p.Metadata.Name)
			}
		}
		if !ok || len(some) == 0 {
			return false
		}
		slices.Sort(some)
		if name = some[s.random.IntN(len(some))]; s.random.IntN(3) == 0 {
			name = there[s.random.IntN(len(there))]
		}
		return true
	})
	return name
}

// settle waits until only these pods are left, and each of them runs, waits for room, or was not
// admitted. The kubelet does not report a static pod that it has not admitted, and does not try it
// again. That happens after the kubelet's start, before a plugin has registered.
func (s *storm) settle(there []string) {
	s.T.Helper()
	var state string
	done := func() bool {
		all, ok := s.look()
		left := map[string]bool{}
		for _, name := range there {
			left[name] = s.podKindOf(name).static
		}
		for _, p := range all.Items {
			running := 0
			for _, c := range p.Status.ContainerStatuses {
				if c.State.Running != nil {
					running++
				}
			}
			unplaced := p.Status.Phase == "Pending" && len(p.Status.ContainerStatuses) == 0
			if p.Metadata.DeletionTimestamp != "" || !slices.Contains(there, p.Metadata.Name) ||
				p.Status.Phase == "Running" && running < len(p.Status.ContainerStatuses) ||
				p.Status.Phase == "Pending" && !unplaced {
				ok = false
			}
			left[p.Metadata.Name] = true
		}
		state = fmt.Sprintf("%+v", all.Items)
		return ok && !slices.Contains(slices.Collect(maps.Values(left)), false)
	}
	// a container that was killed half-way is started again after some waiting
	for end := time.Now().Add(stormPatience); !done(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			s.T.Fatalf("the pods do not settle: want %v, got %s", there, state)
		}
	}
}

// over deletes what is left, and wants nothing of it to stay.
func (s *storm) over() {
	s.T.Helper()
	statics, err := filepath.Glob(filepath.Join(staticPods, "*.json"))
	must(s.T, err)
	for _, file := range statics {
		must(s.T, os.Remove(file))
	}
	eventually(s.T, "the pods are deleted", func() bool {
		all, ok := s.look()
		for _, p := range all.Items {
			if of := s.podKindOf(p.Metadata.Name); p.Metadata.DeletionTimestamp == "" &&
				(of == nil || !of.static) {
				s.delete(p.Metadata.Name, false)
			}
		}
		return ok && len(all.Items) == 0
	})
	eventually(s.T, "no claim is left", func() bool {
		var all listed
		status, _ := s.call(http.MethodGet, claimsOfTeam, nil, &all)
		// not found: this version has no claims
		return status == http.StatusNotFound || status == http.StatusOK && len(all.Items) == 0
	})
	s.nothingLeft()
	log, err := os.ReadFile(s.agentsLog())
	must(s.T, err)
	if found := reference.FindString(string(log[min(s.logged, int64(len(log))):])); found != "" {
		s.T.Errorf("the agent has logged a reference, with its secret: %s", found)
	}
	for _, pattern := range []string{"/var/run/cdi/.gpuledger.dev-*",
		"/var/lib/kubelet/plugins/gpuledger.dev/references/*",
		"/var/lib/kubelet/plugins/gpuledger.dev/references/.*"} {
		eventually(s.T, "nothing is left at "+pattern, func() bool {
			files, err := filepath.Glob(pattern)
			must(s.T, err)
			return len(files) == 0
		})
	}
}

// claimPodKinds are pods with a claim each, which the cluster makes from a template and deletes
// with its pod.
func claimPodKinds(s *storm) []podKind {
	var all []podKind
	for _, c := range []struct {
		name, class string
		mode        grant.Mode
		gpus        int
		memory      grant.Bytes
	}{
		{"share", "limit", grant.Limit, 1, 2 * grant.GiB},
		{"whole", "exclusive", grant.Exclusive, 1, 0},
		{"large", "limit", grant.Limit, 1, 9 * grant.GiB},
		{"two", "limit", grant.Limit, 2, 3 * grant.GiB},
		{"slice", "timeslice", grant.Timeslice, 1, 4 * grant.GiB},
	} {
		var capacity object
		if c.memory > 0 {
			capacity = object{"memory": fmt.Sprint(uint64(c.memory))}
		}
		claim := claiming(c.name, c.class, c.gpus, capacity, c.gpus > 1)[0]
		s.insists(s.T, http.MethodPost, templatesOfTeam,
			object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
				"metadata": object{"name": c.name},
				"spec":     object{"spec": claim["spec"]}}, nil)
		all = append(all, podKind{name: c.name, mode: c.mode, gpus: c.gpus,
			memory: map[string]grant.Bytes{"": c.memory}, pod: func(name string) object {
				return clusterPod(name, func(pod, container object) {
					spec := pod["spec"].(object)
					spec["restartPolicy"] = "Always"
					spec["resourceClaims"] = []object{{"name": "gpu", "resourceClaimTemplateName": c.name}}
					container["resources"] = object{"claims": []object{{"name": "gpu"}}}
				})
			}})
	}
	// The containers of a pod have a request each.
	pair := twoRequests("pair", "limit", "2Gi", "limit", "3Gi")
	s.insists(s.T, http.MethodPost, templatesOfTeam,
		object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
			"metadata": object{"name": "pair"}, "spec": object{"spec": pair["spec"]}}, nil)
	return append(all, podKind{name: "pair", mode: grant.Limit, gpus: 1,
		memory: map[string]grant.Bytes{"main": 2 * grant.GiB, "side": 3 * grant.GiB},
		pod: func(name string) object {
			pod := ofRequests(name, "", "main", "side")
			spec := pod["spec"].(object)
			spec["restartPolicy"] = "Always"
			spec["resourceClaims"] = []object{{"name": "gpu", "resourceClaimTemplateName": "pair"}}
			return pod
		}})
}

// claimStorm is a storm over the DRA driver, which it returns.
func (s *site) claimStorm() *daemon {
	storm := s.newStorm(nil, s.victims()...)
	storm.podKinds = claimPodKinds(storm)
	defer s.pools(oneShared, severalShared)() // without a counter, and with one
	driver := s.startDRA()
	s.daemons["gpuledger-kube"] = driver
	defer delete(s.daemons, "gpuledger-kube")
	storm.run()
	eventually(s.T, "ledger and claims agree", storm.agree)
	storm.over()
	s.applied(claiming("both", "exclusive", 2, nil, true)...) // all GPUs can be allocated again
	s.runs("both")
	return driver
}

// victims are the daemons that a storm kills.
func (s *site) victims() []string {
	return []string{"gpuledger-kube", "kubelet", strings.ReplaceAll(string(s.engine.trust), "-", ""),
		"kube-apiserver"}
}

// wholeMemory is what a claim for a whole GPU consumes.
const wholeMemory = "16160Mi"

// agree reports whether each request of an allocated claim is a grant, each grant such a request,
// and both have the same values.
func (s *storm) agree() bool {
	var claims listed
	if status, _ := s.call(http.MethodGet, claimsOfTeam, nil, &claims); status != http.StatusOK {
		return false
	}
	want := map[string]string{}
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			continue
		}
		parts := map[string][]string{} // by request
		for _, r := range c.Status.Allocation.Devices.Results {
			device, amount := r.Device, r.ConsumedCapacity.Memory
			if amount == wholeMemory { // of a device that others could share
				device, amount = device[:strings.LastIndex(device, "-")]+"-exclusive", ""
			}
			parts[r.Request] = append(parts[r.Request], device+" "+amount)
		}
		for request, of := range parts {
			owner := "claim:" + c.Metadata.UID
			if len(parts) > 1 {
				owner += "." + request
			}
			slices.Sort(of)
			want[owner] = strings.Join(of, ", ")
		}
	}
	got := map[string]string{}
	for _, g := range s.Grants() {
		var parts []string
		for _, share := range g.GPUs {
			amount := ""
			if g.Mode != grant.Exclusive {
				amount = fmt.Sprintf("%dGi", share.Memory/grant.GiB)
			}
			parts = append(parts, strings.ToLower(share.UUID)+"-"+string(g.Mode)+" "+amount)
		}
		slices.Sort(parts)
		got[string(g.Owner)] = strings.Join(parts, ", ")
	}
	s.odds = fmt.Sprintf("claims are %v, grants are %v", want, got)
	if len(want) != len(got) || len(want) == 0 {
		return false
	}
	for owner, what := range want {
		if got[owner] != what {
			return false
		}
	}
	return true
}

// unitPodKinds are pods with units of memory or whole GPUs.
func unitPodKinds() []podKind {
	const gib = grant.GiB
	of := func(resource string, n int) object { return object{"limits": object{resource: n}} }
	units := func(n int) object { return of("gpuledger.dev/gpu-memory", n) }
	more := func(pod object, kind, name, script string, n int) {
		spec := pod["spec"].(object)
		list, _ := spec[kind].([]object)
		spec[kind] = append(list, object{"name": name, "image": image, "imagePullPolicy": "Never",
			"command": []string{"/bin/sh", "-c", script}, "resources": units(n)})
	}
	make := func(change func(pod, container object)) func(string) object {
		return func(name string) object {
			return clusterPod(name, func(pod, container object) {
				pod["spec"].(object)["restartPolicy"] = "Always"
				change(pod, container)
			})
		}
	}
	const forever = "exec sleep 100000"
	return []podKind{
		{name: "equal", mode: grant.Limit, gpus: 1, memory: map[string]grant.Bytes{
			"first": 3 * gib, "main": 3 * gib, "twin": 3 * gib}, pod: make(func(pod, c object) {
			c["resources"] = units(3)
			more(pod, "containers", "twin", forever, 3)
			more(pod, "initContainers", "first", "test -c /dev/nvidiactl", 3)
		})},
		{name: "static", mode: grant.Limit, gpus: 1, static: true,
			memory: map[string]grant.Bytes{"main": 2 * gib, "twin": 2 * gib}, pod: make(func(pod, c object) {
				delete(pod["spec"].(object), "runtimeClassName") // the default is the same
				c["resources"] = units(2)
				more(pod, "containers", "twin", forever, 2)
			})},
		{name: "whole", mode: grant.Exclusive, gpus: 1, memory: map[string]grant.Bytes{"main": 0},
			pod: make(func(_, c object) { c["resources"] = of("gpuledger.dev/gpu", 1) })},
		{name: "wide", mode: grant.Limit, gpus: 1, memory: map[string]grant.Bytes{
			"first": 6 * gib, "main": 2 * gib, "twin": 2 * gib}, pod: make(func(pod, c object) {
			c["resources"] = units(2)
			more(pod, "containers", "twin", forever, 2)
			more(pod, "initContainers", "first", "test -c /dev/nvidiactl", 6)
		})},
		{name: "single", mode: grant.Limit, gpus: 1, memory: map[string]grant.Bytes{"main": 5 * gib},
			pod: make(func(_, c object) { c["resources"] = units(5) })},
	}
}

// unitStorm is a storm over the device plugin.
func (s *site) unitStorm() {
	storm := s.newStorm(unitPodKinds(), s.victims()...)
	plugin := s.startAgent("device-plugin", "--interval", "200ms")
	s.daemons["gpuledger-kube"] = plugin
	defer func() { delete(s.daemons, "gpuledger-kube"); s.ends(plugin) }()
	s.hasUnits()
	storm.run()
	// the kubelet forgets ended pods when it allocates
	storm.create(storm.podKinds[len(storm.podKinds)-1], "single-last")
	// The plugin waits ten minutes for a pod that the kubelet has noted in its checkpoint and has
	// no cgroup for.
	within(s.T, stormPatience, "each container that runs has a grant of its own, and there is no other",
		storm.oneEach)
	storm.over()
}

// forgotten is what CRI-O logs at its start about a container that it cannot find any more.
var forgotten = regexp.MustCompile(`Could not restore container ([0-9a-f]{64})`)

// endLeft ends the containers that a killed CRI-O has left, as an administrator does: those that it
// has forgotten, because it was killed before it had written them down, and those that it had
// created and not started. Each keeps its grant, so the next container of its pod is refused.
// One that is about to be started is left alone.
func (s *storm) endLeft() {
	s.T.Helper()
	if time.Since(s.lookedAt) < 5*time.Second {
		return
	}
	s.lookedAt = time.Now()
	said, err := os.ReadFile(filepath.Join(s.dir, "log", "crio"))
	if err != nil {
		return // another engine
	}
	for _, m := range forgotten.FindAllSubmatch(said, -1) {
		id := string(m[1])
		if _, err := os.Stat("/run/runc/" + id); err == nil {
			s.T.Logf("CRI-O has forgotten container %s; runc delete: %+v", id,
				s.command(s.engine.runtime, "--root", "/run/runc", "delete", "--force", id))
		}
	}
	waiting := s.command(crictl, "ps", "--state", "Created", "-q", "--no-trunc").Stdout
	for _, id := range strings.Fields(waiting) {
		if first, seen := s.created[id]; !seen {
			s.created[id] = time.Now()
		} else if time.Since(first) > time.Minute {
			s.T.Logf("CRI-O has not started container %s; crictl rm: %+v", id,
				s.command(crictl, "rm", "--force", id))
		}
	}
}

// hasUnits waits until the kubelet knows the plugin: 15 whole GiB on each of two GPUs.
func (s *site) hasUnits() { s.hasUnitsOf("30") }

func (s *site) hasUnitsOf(number string) {
	s.T.Helper()
	eventually(s.T, "the node has units of memory", func() bool {
		return s.kubectl("get", "node", clusterNode, "-o",
			`jsonpath={.status.allocatable.gpuledger\.dev/gpu-memory}`).Stdout == number
	})
}

// oneEach compares the running containers of the API with those that use a grant by the ledger.
func (s *storm) oneEach() bool {
	all, ok := s.look()
	want, got := map[string]bool{}, map[string]bool{}
	for _, p := range all.Items {
		for _, c := range p.Status.ContainerStatuses {
			if _, id, _ := strings.Cut(c.ContainerID, "://"); c.State.Running != nil {
				want[id] = true
			}
		}
	}
	grants := s.Grants()
	for _, g := range grants {
		for _, b := range g.Bindings {
			got[b.Container] = true
		}
	}
	for id := range want {
		ok = ok && got[id]
	}
	s.odds = fmt.Sprintf("containers %v run, %v use a grant; grants are %+v; pods are %+v", want, got,
		grants, all.Items)
	return ok && len(want) == len(got) && len(want) == len(grants)
}
