package webhook

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/dialect"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// leaf returns the certificate that a server uses.
func leaf(t *testing.T, c *Certificate) *x509.Certificate {
	t.Helper()
	pair, err := c.Serving(nil)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func trusts(t *testing.T, trust []byte, c *Certificate, now time.Time) bool {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trust)
	_, err := leaf(t, c).Verify(x509.VerifyOptions{Roots: roots, DNSName: "hook.ns.svc", CurrentTime: now})
	return err == nil
}

// Two replicas use one certificate. While it is renewed, what the API server trusts always has the
// certificate that each of them uses.
func TestCertificateOfReplicas(t *testing.T) {
	client, now := fake.NewClientset(), time.Now()
	replica := func() *Certificate {
		return &Certificate{Client: client, Namespace: "ns", Name: "hook", Hosts: []string{"hook.ns.svc"},
			Now: func() time.Time { return now }}
	}
	a, b := replica(), replica()
	if _, err := a.Serving(nil); err == nil {
		t.Error("a certificate before the first look")
	}
	ensure := func(c *Certificate) []byte {
		t.Helper()
		trust, err := c.Ensure(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []*Certificate{a, b} {
			if other.serving != nil && !trusts(t, trust, other, now) {
				t.Errorf("%v: a certificate in use is not trusted", now)
			}
		}
		return trust
	}
	first := ensure(a)
	if second := ensure(b); !bytes.Equal(first, second) || !leaf(t, a).Equal(leaf(t, b)) {
		t.Error("two replicas have two certificates")
	}
	before := leaf(t, a)
	now = now.Add(validFor - renewBefore + time.Hour)
	ensure(b) // renews it, and goes on with the old one
	if !leaf(t, b).Equal(before) {
		t.Error("the new certificate is used before the API server knows it")
	}
	ensure(a)
	ensure(b)
	ensure(a)
	if leaf(t, a).Equal(before) || !leaf(t, a).Equal(leaf(t, b)) {
		t.Error("the new certificate is not used")
	}
	// a Secret that was damaged is made again
	secret, _ := client.CoreV1().Secrets("ns").Get(context.Background(), "hook", metav1.GetOptions{})
	secret.Data[corev1.TLSCertKey] = []byte("x")
	_, _ = client.CoreV1().Secrets("ns").Update(context.Background(), secret, metav1.UpdateOptions{})
	if _, err := a.Ensure(context.Background()); err != nil {
		t.Error(err)
	}
}

func share(t *testing.T, gib int) (want placement.Demand) {
	t.Helper()
	return placement.Demand{Container: "train", GPUs: 1, Memory: grant.Bytes(gib) * grant.GiB}
}

// A template lives while pods name it, and for a while after the last admission.
func TestTemplatesAreMadeOnceAndCollected(t *testing.T) {
	ctx, now := context.Background(), time.Now()
	client := fake.NewClientset()
	templates := Templates{Client: client, Now: func() time.Time { return now }}
	one, err := template("team", share(t, 4), placement.Wish{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := template("team", share(t, 8), placement.Wish{}, 0)
	if err != nil || other.Name == one.Name {
		t.Fatalf("%s, %v", other.Name, err)
	}
	made := func() (names []string) {
		list, err := client.ResourceV1().ResourceClaimTemplates("team").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Items {
			names = append(names, i.Name)
		}
		slices.Sort(names)
		return names
	}
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	must(templates.make(ctx, one), templates.make(ctx, one), templates.make(ctx, other))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
			{Name: "g", ResourceClaimTemplateName: &one.Name}}}}
	if _, err := client.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	must(templates.Collect(ctx))
	if got := made(); len(got) != 2 {
		t.Fatalf("new templates were collected: %v", got)
	}
	now = now.Add(collectAfter - time.Minute)
	must(templates.make(ctx, other)) // a new pod renews its time
	now = now.Add(2 * time.Minute)
	must(templates.Collect(ctx))
	if got := made(); len(got) != 2 {
		t.Fatalf("a template in use was collected: %v", got)
	}
	now = now.Add(collectAfter)
	must(templates.Collect(ctx))
	if got := made(); len(got) != 1 || got[0] != one.Name {
		t.Fatalf("got %v, want only that of the pod", got)
	}
	// one that somebody else has made with this name is not used
	foreign := other.DeepCopy()
	foreign.Labels = nil
	_, err = client.ResourceV1().ResourceClaimTemplates("team").Create(ctx, foreign, metav1.CreateOptions{})
	must(err)
	if err := templates.make(ctx, other); err == nil ||
		!strings.Contains(err.Error(), "is not what gpuledger makes") {
		t.Errorf("%v", err)
	}
}

// What is no review, and what does not concern the webhook, changes nothing.
func TestReviews(t *testing.T) {
	h := Handler{Rules: sampleOf(t, "ours-whole").rules(true), Log: slog.New(slog.DiscardHandler)}
	mux := h.Mux(func() error { return nil })
	ask := func(body string) (int, *admissionv1.AdmissionResponse) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, MutatePath, strings.NewReader(body)))
		var review admissionv1.AdmissionReview
		_ = json.Unmarshal(w.Body.Bytes(), &review)
		return w.Code, review.Response
	}
	for _, body := range []string{"", "{", "{}", `{"request":null}`, `"a"`} {
		if code, _ := ask(body); code != http.StatusBadRequest {
			t.Errorf("%q: %d", body, code)
		}
	}
	const pods = `"uid":"1","namespace":"team","operation":"CREATE",` +
		`"resource":{"version":"v1","resource":"pods"}`
	for name, c := range map[string]struct {
		request string
		allowed bool
		patched bool
	}{
		"no pod":       {`"uid":"1","operation":"CREATE","resource":{"resource":"services"}`, true, false},
		"an update":    {`"uid":"1","operation":"UPDATE","resource":{"resource":"pods"}`, true, false},
		"no object":    {pods + `,"object":7`, false, false},
		"no GPU":       {pods + `,"object":{"spec":{"containers":[{"name":"a"}]}}`, true, false},
		"a GPU":        {pods + `,"object":{"spec":{"containers":[{"name":"a","resources":{"limits":{"gpuledger.dev/gpu":"1"}}}]}}`, true, true},
		"a mirror pod": {pods + `,"object":{"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"containers":[{"name":"a","resources":{"limits":{"gpuledger.dev/gpu":"1"}}}]}}`, true, false},
		"its own node": {pods + `,"object":{"spec":{"nodeName":"a","containers":[{"name":"a","resources":{"limits":{"gpuledger.dev/gpu":"1"}}}]}}`, false, false},
	} {
		code, r := ask(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{` +
			c.request + `}}`)
		if code != http.StatusOK || r == nil || r.UID != "1" || r.Allowed != c.allowed ||
			(len(r.Patch) > 0) != c.patched {
			t.Errorf("%s: %d, %+v", name, code, r)
		}
	}
}

// While the names change, the API server asks by those of one process, and asks all processes. One
// with other names cannot answer: it would let a pod pass as it is, or change a part of it.
func TestAProcessWithOldNamesLetsNoPodPass(t *testing.T) {
	config := func(names ...string) dialect.Config {
		text := ""
		for _, name := range names {
			text += fmt.Sprintf("[[resource]]\nname = %q\n", name)
		}
		c, err := dialect.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	name := metav1.ObjectMeta{Name: "gpuledger"}
	client := fake.NewClientset(&admissionregistration.MutatingWebhookConfiguration{ObjectMeta: name},
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: name})
	process := func(c dialect.Config) *Registration {
		return &Registration{Client: client, Name: name.Name, Namespace: "ns", Service: "hook", Dialect: c}
	}
	tick := func(r *Registration) {
		t.Helper()
		if err := r.Ensure(t.Context(), []byte("trust")); err != nil {
			t.Fatal(err)
		}
	}
	paths := func() (mutating, validating string) {
		m, _ := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), name.Name,
			metav1.GetOptions{})
		v, _ := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), name.Name,
			metav1.GetOptions{})
		return *m.Webhooks[0].ClientConfig.Service.Path, *v.Webhooks[0].ClientConfig.Service.Path
	}
	answer := func(c dialect.Config, path, pod string) *admissionv1.AdmissionResponse {
		t.Helper()
		h := Handler{Rules: Rules{Dialect: c}, Log: slog.New(slog.DiscardHandler)}
		w := httptest.NewRecorder()
		h.Mux(func() error { return nil }).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path,
			strings.NewReader(`{"request":{"uid":"1","namespace":"team","operation":"CREATE",`+
				`"resource":{"version":"v1","resource":"pods"},"object":`+pod+`}}`)))
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil {
			t.Fatal(err)
		}
		return review.Response
	}
	before, after := config("nvidia.com/gpu"), config("nvidia.com/gpu", "nvidia.com/gpumem", "gpu-memory")
	pods := map[string]string{
		"a new name": `{"spec":{"containers":[{"name":"a","resources":{"limits":` +
			`{"nvidia.com/gpumem":"4"}}}]}}`,
		"an old and a new name": `{"spec":{"containers":[{"name":"a","resources":{"limits":` +
			`{"nvidia.com/gpu":"1","nvidia.com/gpumem":"4"}}}]}}`,
		"an annotation": `{"metadata":{"annotations":{"gpu-memory":"2000"}},` +
			`"spec":{"containers":[{"name":"a"}]}}`,
	}
	older := process(before)
	tick(older)
	oldMutating, oldValidating := paths()
	newer := process(after)
	tick(newer)
	mutating, validating := paths()
	if mutating == oldMutating || validating == oldValidating {
		t.Fatalf("the API server asks at %s and %s by all names", mutating, validating)
	}
	for _, r := range []*Registration{older, newer, older} {
		tick(r)
		if m, v := paths(); m != mutating || v != validating {
			t.Errorf("the old names are back: %s, %s", m, v)
		}
	}
	for name, pod := range pods {
		for _, c := range []struct {
			of    dialect.Config
			path  string
			other bool
		}{{before, mutating, true}, {before, validating, true}, {after, mutating, false},
			{after, validating, false}, {after, oldMutating, true}, {after, oldValidating, true},
			{before, oldMutating, false}, {after, MutatePath, false}, {after, ValidatePath, false}} {
			r := answer(c.of, c.path, pod)
			if r.Allowed == c.other || c.other && r.Result.Code != http.StatusServiceUnavailable {
				t.Errorf("%s, names %v at %s: %+v", name, c.of.Resources, c.path, r)
			}
		}
	}
	back := process(before) // the names are set back
	tick(back)
	tick(newer)
	if m, v := paths(); m != oldMutating || v != oldValidating {
		t.Errorf("the names that were set back are asked at %s, %s", m, v)
	}
}

// A configuration of an older version has no names in its path. The process enters its own each
// time, as it does where another Service is entered.
func TestAConfigurationWithoutNamesIsReplaced(t *testing.T) {
	name := metav1.ObjectMeta{Name: "gpuledger"}
	client := fake.NewClientset(&admissionregistration.MutatingWebhookConfiguration{ObjectMeta: name},
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: name})
	r := &Registration{Client: client, Name: name.Name, Namespace: "ns", Service: "hook",
		Dialect: configuration(t, "resources.toml")}
	api := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for _, at := range []admissionregistration.WebhookClientConfig{r.client(MutatePath, nil), {},
		(&Registration{Namespace: "ns", Service: "other"}).client(MutatePath+"/0", nil),
		(&Registration{URL: "https://127.0.0.1:1"}).client(MutatePath+"/0", nil)} {
		if err := r.Ensure(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		c, _ := api.Get(t.Context(), name.Name, metav1.GetOptions{})
		c.Webhooks[0].ClientConfig = at
		_, _ = api.Update(t.Context(), c, metav1.UpdateOptions{})
		if err := r.Ensure(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		c, _ = api.Get(t.Context(), name.Name, metav1.GetOptions{})
		if s := c.Webhooks[0].ClientConfig.Service; s == nil || *s.Path != MutatePath+"/"+hash(r.Dialect) {
			t.Errorf("%+v is left as it is", at)
		}
	}
}

// The scheduler may take one GPU twice for a request of two shares, and it cannot tell which GPUs
// one MPS daemon can serve together. It may take GPUs of two modes if none is named.
func TestSharesOfSeveralGPUs(t *testing.T) {
	d := share(t, 4)
	d.GPUs = 2
	made, err := template("team", d, placement.Wish{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	devices := made.Spec.Spec.Devices
	if len(devices.Constraints) != 2 || *devices.Constraints[0].DistinctAttribute != "gpuledger.dev/uuid" ||
		*devices.Constraints[1].MatchAttribute != "gpuledger.dev/mode" ||
		len(devices.Requests[0].Exactly.Selectors) != 1 ||
		!strings.Contains(devices.Requests[0].Exactly.Selectors[0].CEL.Expression, `mode != "mps"`) {
		t.Errorf("got %+v", devices)
	}
	d.Mode = grant.MPS
	if _, err := template("team", d, placement.Wish{}, 0); err == nil {
		t.Error("shares of two GPUs in mode mps")
	}
	d.Mode = grant.Limit
	if made, err := template("team", d, placement.Wish{}, 0); err != nil ||
		len(made.Spec.Spec.Devices.Constraints) != 1 {
		t.Errorf("a mode that is named: %+v, %v", made, err)
	}
	if _, err := template("team", d, placement.Wish{Products: []string{`a") || true || ("`}}, 0); err == nil {
		t.Error("a product that is an expression")
	}
}

// Each GPU has to be so large in all, however much of it is left. Drivers of older versions do not
// publish that, and an error in a selector would keep the claim from all nodes.
func TestAClaimForLargeGPUs(t *testing.T) {
	for least, want := range map[grant.Bytes]string{
		40 * grant.GiB: `"memoryTotal" in device.attributes["gpuledger.dev"] ? ` +
			`device.attributes["gpuledger.dev"].memoryTotal >= 42949672960 : ` +
			`device.capacity["gpuledger.dev"].memory.compareTo(quantity("42949672960")) >= 0`,
		// more than an integer of CEL
		math.MaxUint64: `"memoryTotal" in device.attributes["gpuledger.dev"] ? ` +
			`device.attributes["gpuledger.dev"].memoryTotal >= 9223372036854775807 : ` +
			`device.capacity["gpuledger.dev"].memory.compareTo(quantity("9223372036854775807")) >= 0`,
	} {
		made, err := template("team", share(t, 4), placement.Wish{AtLeast: least}, 0)
		if err != nil {
			t.Fatal(err)
		}
		all := made.Spec.Spec.Devices.Requests[0].Exactly.Selectors
		if len(all) != 1 || all[0].CEL.Expression != want {
			t.Errorf("of at least %s: %+v, want %s", least, all, want)
		}
	}
}

// TestAnInitContainersClaim is that of an equal container that never runs beside it: not of one
// that has started before and runs on.
func TestAnInitContainersClaim(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	asks := func(name string, restart *corev1.ContainerRestartPolicy) corev1.Container {
		return corev1.Container{Name: name, RestartPolicy: restart, Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"gpuledger.dev/gpu-memory": resource.MustParse("4")}}}
	}
	rules := sampleOf(t, "ours-memory").rules(true)
	for name, c := range map[string]struct {
		inits, containers []corev1.Container
		want              map[string]string // the claim's container, by container
	}{
		"beside one that runs on": {
			[]corev1.Container{asks("side", &always), asks("prep", nil), asks("again", nil)},
			[]corev1.Container{asks("main", nil)},
			map[string]string{"side": "side", "prep": "main", "again": "main", "main": "main"}},
		"before one that runs on": {[]corev1.Container{asks("prep", nil), asks("side", &always)},
			[]corev1.Container{asks("main", nil)},
			map[string]string{"prep": "side", "side": "side", "main": "main"}},
		"only beside one that runs on": {[]corev1.Container{asks("side", &always), asks("prep", nil)}, nil,
			map[string]string{"side": "side", "prep": "prep"}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: c.inits, Containers: c.containers}}
		change, err := rules.changeOf(pod)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := map[string]string{}
		for key, list := range map[string][]corev1.Container{"initContainers": c.inits,
			"containers": c.containers} {
			for i, container := range list {
				at := fmt.Sprintf("/spec/%s/%d/resources/claims", key, i)
				for _, o := range change.patch {
					if claims, is := o.Value.([]corev1.ResourceClaim); is && o.Path == at {
						got[container.Name] = strings.TrimPrefix(claims[0].Name, "gpu-")
					}
				}
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
