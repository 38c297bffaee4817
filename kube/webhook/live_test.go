package webhook

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// enginesVar is where etcd and Kubernetes' programs are, if not in the repository's cache.
const enginesVar = "GPULEDGER_ENGINES"

// plane is a control plane on free ports of loopback.
type plane struct {
	t      *testing.T
	dir    string
	client kubernetes.Interface
	port   int
}

func program(t *testing.T, path string) string {
	t.Helper()
	root := os.Getenv(enginesVar)
	if root == "" {
		root = "../../.cache/engines"
	}
	full, err := filepath.Abs(filepath.Join(root, path))
	if err == nil {
		_, err = os.Stat(full)
	}
	if err != nil {
		t.Skipf("no control plane (test/engines/build.sh etcd kubernetes): %v", err)
	}
	return full
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// run starts a program until the test ends.
func (p *plane) run(name, path string, args ...string) {
	p.t.Helper()
	file := filepath.Join(p.dir, name+".log")
	log, err := os.Create(file)
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.t.Failed() {
			text, _ := os.ReadFile(file)
			p.t.Logf("%s: ...%s", name, text[max(0, len(text)-1500):])
		}
	})
}

func (p *plane) until(what string, done func() error) {
	p.t.Helper()
	var err error
	for range 1200 {
		if err = done(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.t.Fatalf("%s: %v", what, err)
}

func startPlane(t *testing.T, withScheduler bool) *plane {
	t.Helper()
	etcd, api := program(t, "etcd/etcd"), program(t, "kubernetes/kube-apiserver")
	p := &plane{t: t, dir: t.TempDir(), port: freePort(t)}
	url, peer := fmt.Sprintf("http://127.0.0.1:%d", freePort(t)),
		fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	p.run("etcd", etcd, "--data-dir", p.dir+"/etcd", "--log-level=warn", "--listen-client-urls="+url,
		"--advertise-client-urls="+url, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
		"--initial-cluster=default="+peer)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	host := fmt.Sprintf("https://127.0.0.1:%d", p.port)
	account := func(token string) string {
		return "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"" + host +
			"\", insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: " + token + "}}]\n" +
			"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
	}
	for name, text := range map[string]string{
		"tokens.csv": "admin,admin,admin,\"system:masters\"\n" +
			"hook,system:serviceaccount:gpuledger-system:gpuledger-webhook,hook\n",
		"sa.key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"admin.yaml": account("admin"),
		"hook.yaml":  account("hook"),
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.run("apiserver", api, "--etcd-servers="+url, "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", p.port),
		"--endpoint-reconciler-type=none", "--cert-dir="+p.dir+"/certs",
		"--token-auth-file="+p.dir+"/tokens.csv", "--anonymous-auth=false", "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--service-account-issuer="+host,
		"--service-account-key-file="+p.dir+"/sa.key", "--service-account-signing-key-file="+p.dir+"/sa.key",
		"--service-cluster-ip-range=10.96.0.0/24")
	config := &rest.Config{Host: host, BearerToken: "admin", QPS: -1, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if p.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	p.until("the API server answers", func() error {
		_, err := p.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	if withScheduler {
		account := "--kubeconfig=" + p.dir + "/admin.yaml"
		p.run("scheduler", program(t, "kubernetes/kube-scheduler"), account, "--leader-elect=false",
			"--secure-port=0")
		p.run("controllers", program(t, "kubernetes/kube-controller-manager"), account,
			"--leader-elect=false", "--secure-port=0",
			"--controllers=resourceclaim-controller,job-controller")
	}
	return p
}

// serve serves the webhook, and enters it.
func (p *plane) serve(rules Rules) Templates {
	p.t.Helper()
	ctx := p.t.Context()
	for _, namespace := range []string{"gpuledger-system", "team"} {
		_, err := p.client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	name := metav1.ObjectMeta{Name: "gpuledger"}
	if _, err := p.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx,
		&admissionregistration.MutatingWebhookConfiguration{ObjectMeta: name},
		metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: name},
		metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	certificate := &Certificate{Client: p.client, Namespace: "gpuledger-system", Name: "gpuledger-webhook",
		Hosts: []string{"127.0.0.1"}, Now: time.Now}
	trust, err := certificate.Ensure(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	templates := Templates{Client: p.client, Now: time.Now}
	log := slog.New(slog.DiscardHandler)
	handler := Handler{Rules: rules, Log: log}
	server := &http.Server{Handler: handler.Mux(func() error { return nil }),
		TLSConfig: &tls.Config{GetCertificate: certificate.Serving}}
	go func() { _ = server.ServeTLS(l, "", "") }()
	p.t.Cleanup(func() { _ = server.Close() })
	if rules.Claims {
		controller, begun := &Controller{Templates: templates, Rules: rules, Log: log}, make(chan struct{})
		var ended sync.WaitGroup
		ended.Go(func() { _ = controller.Run(ctx, func() { close(begun) }) })
		p.t.Cleanup(ended.Wait)
		<-begun
	}
	r := Registration{Client: p.client, Name: "gpuledger", URL: "https://" + l.Addr().String(),
		Dialect: rules.Dialect, Exempt: []string{"gpuledger-system"}}
	for range 2 { // the second one finds all as it is
		if err := r.Ensure(ctx, trust); err != nil {
			p.t.Fatal(err)
		}
	}
	// until the API server asks the webhook
	p.until("the webhook is asked", func() error {
		refused := sampleOf(p.t, "two-dialects").pod.DeepCopy()
		_, err := p.client.CoreV1().Pods("team").Create(ctx, refused,
			metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil || !strings.Contains(err.Error(), "a container uses one dialect") {
			return fmt.Errorf("answered %v", err)
		}
		return nil
	})
	return templates
}

func sampleOf(t *testing.T, name string) sample {
	t.Helper()
	all := samples(t)
	i := slices.IndexFunc(all, func(s sample) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no sample %s", name)
	}
	return all[i]
}

// create makes the pod of a sample. It returns the pod that the API server has, or the refusal.
func (p *plane) create(s sample, options metav1.CreateOptions) (*corev1.Pod, error) {
	pod := s.pod.DeepCopy()
	pod.Name = s.name
	return p.client.CoreV1().Pods("team").Create(p.t.Context(), pod, options)
}

// refusedAs reports whether an API server's error is a sample's refusal.
func refusedAs(err error, want string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), strings.TrimPrefix(want, "refused: "))
}

// With a real API server, each manifest becomes what the table says, or is refused with its
// sentence.
func TestPodsForTheScheduler(t *testing.T) {
	p := startPlane(t, false)
	config := configuration(t, "resources.toml")
	p.serve(Rules{Dialect: config, Scheduler: "gpuledger-scheduler"})
	for _, s := range samples(t) {
		if !strings.HasPrefix(string(s.text), "# configuration: resources.toml") {
			continue
		}
		got, err := p.create(s, metav1.CreateOptions{})
		want := s.placed(t)
		switch {
		case strings.HasPrefix(want, "refused: "):
			if !refusedAs(err, want) {
				t.Errorf("%s: %v, want %q", s.name, err, want)
			}
		case err != nil:
			t.Errorf("%s: %v", s.name, err)
		case got.Spec.SchedulerName != "gpuledger-scheduler" && s.pod.Spec.SchedulerName == "",
			s.pod.Spec.SchedulerName != "" && got.Spec.SchedulerName != s.pod.Spec.SchedulerName:
			t.Errorf("%s: scheduler %q", s.name, got.Spec.SchedulerName)
		}
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cpu"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	got, err := p.client.CoreV1().Pods("team").Create(t.Context(), other, metav1.CreateOptions{})
	if err != nil || got.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("a pod without a GPU: %v, %v", got.Spec.SchedulerName, err)
	}
}

// With a real control plane of this version, the claims of each manifest are made and allocated as
// one would read it, from two GPUs of 80 GiB that are whole or in shares, and two in mode mps.
func TestPodsWithClaims(t *testing.T) {
	p := startPlane(t, true)
	p.classes()
	p.node("gpu-1", "limit", "shared")
	p.node("gpu-2", "mps", "mps")
	templates := p.serve(sampleOf(t, "ours-whole").rules(true))
	ctx := t.Context()
	ran := 0
	for _, s := range samples(t) {
		if !strings.HasPrefix(string(s.text), "# configuration: resources.toml") {
			continue
		}
		want := s.claimed()
		if got, err := p.create(s, metav1.CreateOptions{DryRun: []string{"All"}}); err == nil &&
			len(got.Spec.ResourceClaims) == 0 {
			t.Errorf("%s: no claims on a dry run", s.name)
		}
		if all, _ := p.client.ResourceV1().ResourceClaimTemplates("team").List(ctx,
			metav1.ListOptions{}); len(all.Items) > 0 {
			t.Fatalf("%s: a dry run made %s", s.name, all.Items[0].Name)
		}
		got, err := p.create(s, metav1.CreateOptions{})
		if strings.HasPrefix(want, "refused: ") {
			if !refusedAs(err, want) {
				t.Errorf("%s: %v, want %q", s.name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		p.until(s.name+" is placed", func() error {
			now, err := p.client.CoreV1().Pods("team").Get(ctx, got.Name, metav1.GetOptions{})
			if err == nil && now.Spec.NodeName == "" {
				err = fmt.Errorf("%+v", now.Status.Conditions)
			}
			return err
		})
		if s.name == "ack-mps" {
			now, _ := p.client.CoreV1().Pods("team").Get(ctx, got.Name, metav1.GetOptions{})
			if now.Spec.NodeName != "gpu-2" {
				t.Errorf("%s is on %s", s.name, now.Spec.NodeName)
			}
		}
		p.allocated(s)
		ran++
		p.gone(s.name)
	}
	if ran < 8 {
		t.Errorf("%d manifests got claims", ran)
	}
	// its claims and templates are gone, so nothing of a pod that is deleted is left but templates
	// in use
	s := sampleOf(t, "gpushare-memory")
	if _, err := p.create(s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.until("the template is made", func() error {
		all, err := p.client.ResourceV1().ResourceClaimTemplates("team").List(ctx, metav1.ListOptions{})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	templates.Now = func() time.Time { return time.Now().Add(time.Hour) }
	if err := templates.Collect(ctx); err != nil {
		t.Fatal(err)
	}
	all, err := p.client.ResourceV1().ResourceClaimTemplates("team").List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 || !strings.HasPrefix(all.Items[0].Name, "gpuledger-shared-3gi-") {
		t.Errorf("after collecting: %d templates, %v", len(all.Items), err)
	}
}

// classes makes the DeviceClasses of the manifests.
func (p *plane) classes() {
	p.t.Helper()
	text, err := os.ReadFile("../manifests/dra/classes.yaml")
	if err != nil {
		p.t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.UnmarshalStrict([]byte(document), &class); err != nil {
			p.t.Fatal(err)
		}
		if _, err := p.client.ResourceV1().DeviceClasses().Create(p.t.Context(), &class,
			metav1.CreateOptions{}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// node makes a node with two GPUs, whole or in shares of a mode, as the DRA driver publishes them.
func (p *plane) node(name, mode, label string) {
	p.t.Helper()
	ctx := p.t.Context()
	room := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"),
		"pods": resource.MustParse("110")}
	_, err := p.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"ack.node.gpu.schedule": label}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}},
		metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	var devices []any
	for i := range 2 {
		devices = append(devices, map[string]any{"name": fmt.Sprintf("gpu-%d", i),
			"allowMultipleAllocations": true,
			"attributes": map[string]any{"uuid": map[string]any{"string": fmt.Sprintf("GPU-%s-%d", name, i)},
				"mode": map[string]any{"string": mode}, "whole": map[string]any{"bool": true},
				"product":     map[string]any{"string": "NVIDIA A100-SXM4-80GB"},
				"memoryTotal": map[string]any{"int": 80 << 30}},
			"capacity": map[string]any{
				"memory": map[string]any{"value": "80Gi", "requestPolicy": map[string]any{"default": "80Gi",
					"validRange": map[string]any{"min": "1Mi", "max": "80Gi", "step": "1Mi"}}},
				"compute": map[string]any{"value": "100", "requestPolicy": map[string]any{"default": "0",
					"validRange": map[string]any{"min": "0", "max": "100", "step": "1"}}}}})
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": name},
		"spec": map[string]any{"driver": "gpuledger.dev", "nodeName": name, "devices": devices,
			"pool": map[string]any{"name": name, "generation": 1, "resourceSliceCount": 1}}})
	if err != nil {
		p.t.Fatal(err)
	}
	slice := &resourceapi.ResourceSlice{}
	if err := json.Unmarshal(text, slice); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.client.ResourceV1().ResourceSlices().Create(ctx, slice,
		metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// allocated checks that the claims of a sample got what its containers ask for.
func (p *plane) allocated(s sample) {
	p.t.Helper()
	pod, err := p.client.CoreV1().Pods("team").Get(p.t.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	wish, _, _ := s.config.Wish(s.pod)
	for _, d := range wish.Demands {
		var name string
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for _, c := range list {
				if c.Name == d.Container && len(c.Resources.Claims) == 1 {
					name = c.Resources.Claims[0].Name
				}
			}
		}
		i := slices.IndexFunc(pod.Status.ResourceClaimStatuses,
			func(c corev1.PodResourceClaimStatus) bool { return c.Name == name })
		if i < 0 {
			p.t.Errorf("%s: container %s has no claim %q", s.name, d.Container, name)
			continue
		}
		claim, err := p.client.ResourceV1().ResourceClaims("team").Get(p.t.Context(),
			*pod.Status.ResourceClaimStatuses[i].ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			p.t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, r := range claim.Status.Allocation.Devices.Results {
			memory, compute := r.ConsumedCapacity["memory"], r.ConsumedCapacity["compute"]
			want := int64(d.Memory)
			if want == 0 {
				want = 80 << 30
			}
			if memory.Value() != want || compute.Value() != int64(d.Compute) || seen[r.Device] {
				p.t.Errorf("%s: %s got %s and %s%% of %s", s.name, d.Container, memory.String(),
					compute.String(), r.Device)
			}
			seen[r.Device] = true
		}
		if len(seen) != d.GPUs {
			p.t.Errorf("%s: %s got %d GPUs", s.name, d.Container, len(seen))
		}
	}
}

// gone deletes a pod, its claims and all templates.
func (p *plane) gone(name string) {
	p.t.Helper()
	now := int64(0)
	ctx := context.Background()
	if err := p.client.CoreV1().Pods("team").Delete(ctx, name,
		metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		p.t.Fatal(err)
	}
	p.until("the claims of "+name+" are gone", func() error {
		all, err := p.client.ResourceV1().ResourceClaims("team").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, c := range all.Items {
			_ = p.client.ResourceV1().ResourceClaims("team").Delete(ctx, c.Name, metav1.DeleteOptions{})
		}
		if len(all.Items) > 0 {
			return fmt.Errorf("%d are left", len(all.Items))
		}
		return nil
	})
	if err := p.client.ResourceV1().ResourceClaimTemplates("team").DeleteCollection(ctx,
		metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		p.t.Fatal(err)
	}
}
