package webhook

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/dialect"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// sample is a manifest of testdata.
type sample struct {
	name   string
	text   []byte
	config dialect.Config
	pod    *corev1.Pod
}

// samples reads all manifests. A Job's pod is that of its template.
func samples(t testing.TB) (all []sample) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d manifests, %v", len(files), err)
	}
	for _, file := range files {
		s := sample{name: strings.TrimSuffix(filepath.Base(file), ".yaml"), pod: &corev1.Pod{}}
		if s.text, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(s.text), "\n")
		s.config = configuration(t, strings.TrimPrefix(first, "# configuration: "))
		var job batchv1.Job
		if strings.Contains(string(s.text), "kind: Job") {
			if err = yaml.UnmarshalStrict(s.text, &job); err == nil {
				s.pod.ObjectMeta, s.pod.Spec = job.Spec.Template.ObjectMeta, job.Spec.Template.Spec
			}
		} else {
			err = yaml.UnmarshalStrict(s.text, s.pod)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, s)
	}
	return all
}

func configuration(t testing.TB, file string) dialect.Config {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialect.Decode(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return c
}

func (s sample) rules(claims bool) Rules {
	return Rules{Dialect: s.config, Claims: claims, Scheduler: "gpuledger-scheduler",
		Replaced: []string{"gpuledger-scheduler", "kai-scheduler"}}
}

// placed says what the scheduler gives the sample.
func (s sample) placed(t testing.TB) string {
	wish, asks, err := s.config.Wish(s.pod)
	if err == nil && asks {
		err = s.rules(false).refusalOf(s.pod)
	}
	switch {
	case err != nil:
		return "refused: " + err.Error()
	case !asks:
		t.Errorf("%s asks for nothing", s.name)
	}
	var all []string
	for _, d := range wish.Demands {
		all = append(all, d.Container+": "+inWords(d))
	}
	text := strings.Join(all, "; ")
	if wish.Policy != "" {
		text += "; " + string(wish.Policy)
	}
	if wish.App != "" {
		text += "; apart from the application's other pods"
	}
	if wish.Products != nil {
		text += "; of the products " + strings.Join(wish.Products, ", ")
	}
	if wish.AtLeast > 0 {
		text += fmt.Sprintf("; GPUs of at least %s", wish.AtLeast)
	}
	return text
}

func inWords(d placement.Demand) string {
	gpus := "a GPU"
	if d.GPUs > 1 {
		gpus = fmt.Sprintf("each of %d GPUs", d.GPUs)
	}
	text := ""
	switch {
	case d.Mode == grant.Exclusive && d.GPUs > 1:
		return fmt.Sprintf("%d whole GPUs", d.GPUs)
	case d.Mode == grant.Exclusive:
		return "a whole GPU"
	case d.Part > 0:
		text = parts(d.Part) + " of " + gpus
	case d.Memory > 0:
		text = d.Memory.String() + " of " + gpus
	default:
		text = "all memory of " + gpus
	}
	if d.Compute > 0 {
		text += fmt.Sprintf(", %d%% compute", d.Compute)
	}
	if d.Mode != "" {
		text += ", mode " + string(d.Mode)
	}
	return text
}

// claimed says which claims the sample gets.
func (s sample) claimed() string {
	pod := s.pod.DeepCopy()
	pod.Namespace = "team"
	c, err := s.rules(true).changeOf(pod)
	if err != nil {
		return "refused: " + err.Error()
	}
	after := patched(pod, c)
	var all []string
	for _, list := range [][]corev1.Container{after.Spec.InitContainers, after.Spec.Containers} {
		for _, container := range list {
			for _, use := range container.Resources.Claims {
				all = append(all, container.Name+": `"+templateOf(after, use.Name)+"`")
			}
		}
	}
	return strings.Join(all, "; ")
}

func templateOf(pod *corev1.Pod, claim string) string {
	i := slices.IndexFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return c.Name == claim
	})
	return *pod.Spec.ResourceClaims[i].ResourceClaimTemplateName
}

// patched returns the pod with the change, by the library that the API server uses.
func patched(pod *corev1.Pod, c change) *corev1.Pod {
	if len(c.patch) == 0 {
		return pod
	}
	before, err := json.Marshal(pod)
	if err != nil {
		panic(err)
	}
	text, err := json.Marshal(c.patch)
	if err != nil {
		panic(err)
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		panic(err)
	}
	changed, err := patch.Apply(before)
	if err != nil {
		panic(fmt.Sprintf("%v: %s", err, text))
	}
	after := &corev1.Pod{}
	if err := json.Unmarshal(changed, after); err != nil {
		panic(err)
	}
	return after
}

// row returns the line of a sample in docs/kubernetes-dialects.md.
func (s sample) row(t testing.TB) string {
	return fmt.Sprintf("| [%s](../kube/webhook/testdata/%s.yaml) | %s | %s |", s.name, s.name, s.placed(t),
		s.claimed())
}

const page = "../../docs/kubernetes-dialects.md"

// Each line of the table is what the code does with that manifest.
func TestTheTableOfManifestsIsTrue(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.HasPrefix(line, "| [") {
			has = append(has, line)
		}
	}
	var want []string
	for _, s := range samples(t) {
		want = append(want, s.row(t))
	}
	for _, line := range want {
		if !slices.Contains(has, line) {
			t.Errorf("%s has no line\n%s", page, line)
		}
	}
	if len(has) != len(want) {
		t.Errorf("the table has %d lines, and there are %d manifests", len(has), len(want))
	}
}

// All parts of a GPU fit on it: by the configurations here, which are also tried with GPUs of
// 16160 MiB, and by what the documents say for an H100 (81559 MiB).
func TestAllPartsOfAGPUFit(t *testing.T) {
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]grant.Bytes{page: 81559 * grant.MiB, "../manifests/helm/values.yaml": 81559 * grant.MiB}
	for _, file := range files {
		has[file] = 16160 * grant.MiB
	}
	size := regexp.MustCompile(`(?:part_of = "|takes a part, such as )([0-9]+[A-Z]iB)`)
	found := 0
	for file, has := range has {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range size.FindAllSubmatch(text, -1) {
			found++
			partOf, err := grant.ParseBytes(string(match[1]))
			if err != nil {
				t.Fatal(err)
			}
			r, err := request(placement.Demand{GPUs: 1, Part: 250}, placement.Wish{}, partOf)
			if err != nil {
				t.Fatal(err)
			}
			quarter := r.Capacity.Requests["memory"]
			if 4*grant.Bytes(quarter.Value()) > has {
				t.Errorf("%s: four quarters of %s are more than the %s of a GPU", file, match[1], has)
			}
		}
	}
	if found != 6 {
		t.Errorf("found %d sizes", found)
	}
}

// A pod that got its claims asks for nothing more, so that it can be reviewed again.
func TestWhatBecameClaimsAsksForNothing(t *testing.T) {
	for _, s := range samples(t) {
		s.pod.Namespace = "team"
		c, err := s.rules(true).changeOf(s.pod)
		if err != nil {
			continue
		}
		after := patched(s.pod, c)
		again, err := s.rules(true).changeOf(after)
		if err != nil || len(again.patch) > 0 || s.rules(true).refusalOf(after) != nil {
			t.Errorf("%s: %+v, %v", s.name, again, err)
		}
		if after.Annotations[AskedFor] == "" ||
			slices.Contains(s.rules(true).Replaced, after.Spec.SchedulerName) {
			t.Errorf("%s: annotations %v, scheduler %q", s.name, after.Annotations, after.Spec.SchedulerName)
		}
	}
}
