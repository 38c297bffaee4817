//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// sample is a manifest of kube/webhook/testdata.
type sample struct {
	name, text string
	config     string            // the file that its first line names
	labels     map[string]string // of the node that it selects
	mps        bool              // its only container gets a GPU in mode mps
	each       grant.Bytes       // and so much of it
	becomes    string            // with our scheduler, as the table says
	claims     string            // with the DRA driver, as the table says
}

const (
	samplesDir  = "../../kube/webhook/testdata/"
	samplesPage = "../../docs/kubernetes-dialects.md"
)

// waiting are the samples that no GPU of the machine serves, and the reason that their users read.
var waiting = map[string]string{
	"ours-product": "no GPU is one of A100, H100",
}

// standInMPS is what mode mps is shown with.
const standInMPS = "manifests in mode mps run with gpuledgerd and a stand-in for NVIDIA's programs of MPS " +
	"(test/fakemps)"

func samples(t testing.TB) (all []sample) {
	t.Helper()
	page, err := os.ReadFile(samplesPage)
	must(t, err)
	files, err := filepath.Glob(samplesDir + "*.yaml")
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		s := sample{name: name, text: string(text)}
		first, _, _ := strings.Cut(s.text, "\n")
		s.config = strings.TrimPrefix(first, "# configuration: ")
		_, row, found := strings.Cut(string(page), "\n| ["+name+"](")
		cells := strings.SplitN(row, " | ", 3)
		if !found || len(cells) < 3 {
			t.Fatalf("%s has no row about %s", samplesPage, name)
		}
		s.becomes = cells[1]
		s.claims, _, _ = strings.Cut(cells[2], " |\n")
		s.labels = podSpec(t, s.text).NodeSelector
		s.mps = strings.HasSuffix(s.becomes, ", mode mps") || s.labels["ack.node.gpu.schedule"] == "mps"
		if s.mps {
			s.each, _ = memoryOf(gets.FindStringSubmatch(s.becomes)[3])
		}
		all = append(all, s)
	}
	if len(all) < 26 {
		t.Fatalf("%s has %d manifests", samplesDir, len(all))
	}
	return all
}

type sampleSpec struct {
	NodeSelector map[string]string `yaml:"nodeSelector"`
}

func podSpec(t testing.TB, text string) sampleSpec {
	t.Helper()
	var o struct {
		Kind string
		Spec struct {
			sampleSpec `yaml:",inline"`
			Template   struct{ Spec sampleSpec }
		}
	}
	must(t, yaml.Unmarshal([]byte(text), &o))
	if o.Kind == "Job" {
		return o.Spec.Template.Spec
	}
	return o.Spec.sampleSpec
}

// seesNodes prints the container's GPUs. An init container ends after that.
const (
	seesNodes = `for gpu in /dev/nvidia[0-9]*; do test -c $gpu && echo $gpu; done; `
	initNodes = seesNodes + "test -c /dev/nvidiactl"
)

var imageLine = regexp.MustCompile(`(?m)^( *)image: registry\.example\.com/(\w+)$`)

// forThisNode is the manifest with an image that the node has. Nothing else is changed.
func (s sample) forThisNode() string {
	return imageLine.ReplaceAllStringFunc(s.text, func(line string) string {
		part := imageLine.FindStringSubmatch(line)
		command := seesNodes + "echo " + strings.TrimSpace(endMark) + "; exec sleep 100000"
		if s.mps {
			command = seesNodes + s.allocates() + command[len(seesNodes):]
		}
		if part[2] == "loader" {
			command = initNodes
		}
		return fmt.Sprintf("%[1]simage: %[2]s\n%[1]simagePullPolicy: Never\n"+
			"%[1]scommand: [/bin/sh, -c, %[3]q]", part[1], image, command)
	})
}

// allocates is a client of MPS that takes all that the table says, and one MiB more.
func (s sample) allocates() string {
	return fmt.Sprintf("client 0:%d 0:1; ", s.each/grant.MiB)
}

// memoryOf reads an amount or a part of a GPU, and returns whether it is a share.
func memoryOf(text string) (memory grant.Bytes, share bool) {
	if percent, is := strings.CutSuffix(text, "%"); is {
		part, _ := strconv.Atoi(percent)
		return ofTheNode * grant.Bytes(part) / 100, true
	}
	memory, err := grant.ParseBytes(text)
	return memory, err == nil
}

// manifestsOfOthers applies each manifest, with the webhook and the scheduler. It runs with what
// the table says, or it is refused with the table's sentence.
func (s *site) manifestsOfOthers() {
	note(s.T, outcome{Engine: s.engine.name, Client: "kubelet", Entry: s.entry.name,
		Case: "manifests of others", Result: "ok", Why: standInMPS})
	defer s.schedulerEntered()()
	defer s.webhookEntered()()
	for _, group := range inGroups(samples(s.T)) {
		s.T.(*testing.T).Run(group[0].config, func(t *testing.T) { s.in(t).samplesOf(group) })
	}
}

// inGroups puts samples together that are tried with one configuration and one set of labels.
func inGroups(all []sample) (groups [][]sample) {
	at := map[string]int{}
	for _, m := range all {
		key := fmt.Sprint(m.config, m.labels)
		if _, known := at[key]; !known {
			at[key], groups = len(groups), append(groups, nil)
		}
		groups[at[key]] = append(groups[at[key]], m)
	}
	return groups
}

// webhookEntered makes the webhook's objects. Its process fills the configurations.
func (s *site) webhookEntered() (leave func()) {
	s.T.Helper()
	s.administer("apply", "-k", "../../kube/manifests/webhook")
	s.administer("delete", "deployment,service", "gpuledger-webhook", "-n", "gpuledger-system")
	s.account("gpuledger-webhook")
	return func() { // a pod with GPUs cannot be created while it is entered and does not run
		s.administer("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "gpuledger")
		s.administer("delete", "secret", "gpuledger-webhook", "-n", "gpuledger-system",
			"--ignore-not-found")
	}
}

const webhookAddress = "127.0.0.1:9443"

// samplesOf tries the manifests of one configuration, for nodes with one set of labels.
func (s *site) samplesOf(all []sample) {
	config, err := os.ReadFile(samplesDir + all[0].config)
	must(s.T, err)
	defer s.labeled(all[0].labels)() // first: all processes read it before there is a pod
	if slices.ContainsFunc(all, func(m sample) bool { return m.mps }) {
		defer s.servesMPS()()
	}
	names, annotations := namesIn(string(config))
	p := s.placesBy(string(config), schedulerOf(s.T, names, annotations))
	defer func() {
		p.ended()
		s.offersEach(names, false) // or the next plugin's pods come before its first list
	}()
	hook := s.startWebhook("device-plugin")
	defer s.ends(hook)
	s.offersEach(names, true)
	s.webhookIsAsked(names[0])
	for _, m := range all {
		s.T.(*testing.T).Run(m.name, func(t *testing.T) {
			at := p
			at.site = s.in(t)
			at.tried(m)
		})
	}
}

// labeled gives the node labels, and takes them back at the end.
func (s *site) labeled(labels map[string]string) (end func()) {
	s.T.Helper()
	for key, value := range labels {
		s.administer("label", "node", clusterNode, key+"="+value)
	}
	return func() {
		for key := range labels {
			s.administer("label", "node", clusterNode, key+"-")
		}
	}
}

func (s *site) startWebhook(agent string) *daemon {
	s.T.Helper()
	return s.startAgent("webhook", "--agent", agent, "--kubeconfig", etcKubernetes+"/gpuledger-webhook.yaml",
		"--listen", webhookAddress, "--url", "https://"+webhookAddress, "--resources-file",
		etcKubernetes+"/resources.toml", "--interval", "200ms")
}

// webhookIsAsked waits until the API server asks the webhook about pods with a resource.
func (s *site) webhookIsAsked(resource string) {
	s.T.Helper()
	asked := clusterPod("asked", func(pod, container object) {
		pod["spec"].(object)["nodeName"] = "another"
		container["resources"] = object{"limits": object{resource: 1}}
	})
	eventually(s.T, "the webhook is asked", func() bool {
		return strings.Contains(s.kubectlWith(string(encode(s.T, asked)), "create", "-n", "team",
			"--dry-run=server", "-f", "-").Stderr, "use a nodeSelector instead of nodeName")
	})
}

var nameLine = regexp.MustCompile(`(?m)^name = "(.*)"$`)

// namesIn returns the resources that a configuration has nodes offer, and whether it has
// annotations that ask for GPUs.
func namesIn(config string) (names []string, annotations bool) {
	for _, match := range nameLine.FindAllStringSubmatch(config, -1) {
		if strings.Contains(match[1], "/") {
			names = append(names, match[1])
		} else {
			annotations = true
		}
	}
	if strings.Contains(config, "renameByDefault: true") {
		names = append(names, "nvidia.com/gpu.shared")
	}
	return names, annotations
}

// schedulerOf is the configuration of kube-scheduler that the chart writes for these names. Pods
// with annotations ask for no resource, so the extender is then asked about all pods.
func schedulerOf(t testing.TB, names []string, annotations bool) string {
	extender := object{"urlPrefix": "http://" + extenderAddress, "filterVerb": "filter",
		"prioritizeVerb": "prioritize", "bindVerb": "bind", "weight": 5, "nodeCacheCapable": true,
		"httpTimeout": "10s"}
	var profiles []object
	for _, name := range []string{"gpuledger-scheduler", "kai-scheduler"} {
		profile := object{"schedulerName": name}
		if annotations {
			profile["pluginConfig"] = []object{{"name": "NodeResourcesFit", "args": object{
				"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "NodeResourcesFitArgs",
				"ignoredResources": names, "scoringStrategy": object{"type": "LeastAllocated",
					"resources": []object{{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}}}}}}
		}
		profiles = append(profiles, profile)
	}
	if !annotations {
		var managed []object
		for _, name := range names {
			managed = append(managed, object{"name": name, "ignoredByScheduler": true})
		}
		extender["managedResources"] = managed
	}
	text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" +
		"leaderElection: {leaderElect: false}\n"
	return text + "profiles: " + string(encode(t, profiles)) + "\nextenders: [" +
		string(encode(t, extender)) + "]\n"
}

// offersEach waits until the kubelet counts some of each resource, or none of any.
func (s *site) offersEach(names []string, some bool) {
	s.T.Helper()
	eventually(s.T, fmt.Sprintf("the node offers %v: %v", names, some), func() bool {
		for _, name := range names {
			number := s.kubectl("get", "node", clusterNode, "-o", "jsonpath={.status.allocatable."+
				strings.ReplaceAll(name, ".", `\.`)+"}").Stdout
			if (number != "" && number != "0") != some {
				return false
			}
		}
		return true
	})
}

// tried applies a manifest and waits for what becomes of it.
func (s placing) tried(m sample) {
	o := outcome{Engine: s.engine.name, Client: "kubelet", Entry: s.entry.name, Case: "  " + m.name}
	defer func() {
		if s.T.Failed() {
			o.Result = "FAIL"
		}
		note(s.T, o)
	}()
	r := s.kubectlWith(m.forThisNode(), "apply", "-n", "team", "-f", "-")
	defer func() {
		s.administer("delete", "jobs,pods", "--all", "-n", "team", "--wait=true", "--grace-period=1")
		s.nothingLeft()
		s.published(0, 1)
	}()
	if reason, refused := strings.CutPrefix(m.becomes, "refused: "); refused {
		o.Result = "refused"
		s.sampleRefused(m, r.Stderr, reason)
		return
	}
	pod := s.podOf(m, r)
	if reason := waiting[m.name]; reason != "" {
		o.Result = "waits"
		s.unplaced(pod, reason)
		return
	}
	o.Result = "runs"
	s.hasWhatTheTableSays(m, pod)
}

func (m sample) isJob() bool { return strings.Contains(m.text, "kind: Job") }

// podOf returns the name of a sample's pod, after it was applied.
func (s *site) podOf(m sample, applied rig.Result) (pod string) {
	s.T.Helper()
	if applied.Code != 0 {
		s.T.Fatalf("kubectl apply: %+v", applied)
	}
	if !m.isJob() {
		return m.name
	}
	eventually(s.T, "the Job has a pod", func() bool {
		pod = s.kubectl("get", "pods", "-n", "team", "-l", "job-name="+m.name, "-o",
			"jsonpath={.items[*].metadata.name}").Stdout
		return pod != ""
	})
	return pod
}

func (s *site) sampleRefused(m sample, stderr, reason string) {
	s.T.Helper()
	if !m.isJob() {
		if !strings.Contains(stderr, reason) {
			s.T.Errorf("kubectl apply says %q, want %q", stderr, reason)
		}
		return
	}
	eventually(s.T, "the events of the Job have the sentence", func() bool {
		return strings.Contains(s.eventsOf(m.name), reason)
	})
}

// gets is what the table says about a container.
var gets = regexp.MustCompile(`^([a-z]+): (?:a whole GPU|(\d+) whole GPUs|` +
	`(\S+) of (?:a GPU|each of (\d+) GPUs))(?:, (\d+)% compute)?(?:, mode (\w+))?$`)

const ofTheNode = 16160 * grant.MiB // the memory of each GPU

// hasWhatTheTableSays waits until the pod runs, and compares its grants with the table.
func (s placing) hasWhatTheTableSays(m sample, pod string) {
	s.T.Helper()
	owners := 0
	for part := range strings.SplitSeq(m.becomes, "; ") {
		if !strings.Contains(part, ": ") { // how the GPUs are chosen
			continue
		}
		found := gets.FindStringSubmatch(part)
		if found == nil {
			s.T.Fatalf("the table says %q", part)
		}
		if strings.Contains(m.text, "name: "+found[1]+"\n      image: registry.example.com/loader") {
			continue // an init container: its grant ends with it, before the others start
		}
		owners++
		s.has(m, pod, found)
	}
	eventually(s.T, fmt.Sprintf("there are the grants of %d containers", owners),
		func() bool { return len(s.Grants()) == owners })
}

// has compares a container's grant with what the table says, and with the nodes that it sees.
func (s placing) has(m sample, pod string, want []string) {
	s.T.Helper()
	sees := s.runsIn(pod, want[1])
	owner, all := grant.PodOwner(s.podNamed(pod).Metadata.UID, want[1]), s.Grants()
	i := slices.IndexFunc(all, func(g rig.Listed) bool { return g.Owner == owner })
	if i < 0 {
		s.T.Fatalf("container %s has adopted nothing: %+v", want[1], all)
	}
	number, memory, mode := 1, ofTheNode, grant.Exclusive
	for _, n := range []string{want[2], want[4]} {
		if n != "" {
			number, _ = strconv.Atoi(n)
		}
	}
	if amount, share := memoryOf(want[3]); share {
		memory, mode = amount, grant.Limit
	}
	if want[6] != "" {
		mode = grant.Mode(want[6])
	}
	if m.mps {
		mode = grant.MPS
	}
	g, nodes := all[i], ""
	for _, share := range g.GPUs {
		nodes += fmt.Sprintf("/dev/nvidia%d\n", share.Index)
		if share.Memory != memory {
			s.T.Errorf("container %s has %+v, want %s of each GPU", want[1], g, memory)
		}
	}
	if g.Source != grant.Adopted || g.Mode != mode || len(g.GPUs) != number ||
		want[5] != "" && strconv.Itoa(g.Compute) != want[5] || want[5] == "" && g.Compute != 0 {
		s.T.Errorf("container %s has %+v, want %d GPUs in mode %s, compute %q", want[1], g, number, mode,
			want[5])
	}
	if m.mps {
		nodes += fmt.Sprintf("mps threads=%d\n0:%d CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n",
			cmp.Or(g.Compute, 100), memory/grant.MiB)
	}
	if sees != nodes {
		s.T.Errorf("container %s sees %q and has %+v", want[1], sees, g)
	}
	s.T.Logf("container %s: %+v", want[1], g)
}
