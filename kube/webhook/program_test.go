package webhook

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With the rights of its account, the program enters itself into the API server. While it is
// killed, pods without GPUs are created and pods with GPUs are not. When it is back, it goes on
// with the same certificate.
func TestTheProgramIsKilledAndComesBack(t *testing.T) {
	p := startPlane(t, false)
	file := filepath.Join(p.dir, "gpuledger-kube")
	build := exec.Command("go", "build", "-o", file, "../cmd/gpuledger-kube")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	ctx, registered := t.Context(), p.client.AdmissionregistrationV1()
	if _, err := p.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply := exec.Command(program(t, "kubernetes/kubectl"), "--kubeconfig", p.dir+"/admin.yaml", "apply",
		"-k", "../manifests/webhook")
	apply.Stderr = os.Stderr
	if err := apply.Run(); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	start := func() *exec.Cmd {
		cmd := exec.Command(file, "webhook", "--agent", "dra", "--kubeconfig", p.dir+"/hook.yaml", "--listen",
			address, "--url", "https://"+address, "--resources-file", "testdata/resources.toml", "--interval",
			"1s")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	create := func(text string, dry ...string) error {
		_, err := p.create(sampleOf(t, text), metav1.CreateOptions{DryRun: dry})
		return err
	}
	refuses := func() error {
		if err := create("two-dialects"); err == nil ||
			!strings.Contains(err.Error(), "a container uses one dialect") {
			return fmt.Errorf("answered %v", err)
		}
		return create("ours-memory", "All")
	}
	cmd := start()
	p.until("the webhook is asked", refuses)
	before, err := p.client.CoreV1().Secrets("gpuledger-system").Get(ctx, "gpuledger-webhook",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// a review that is not the API server's gets an answer, and nothing is made for it
	entered, err := registered.MutatingWebhookConfigurations().Get(ctx, "gpuledger", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	caller := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := caller.Post(*entered.Webhooks[0].ClientConfig.URL, "application/json", strings.NewReader(
		`{"request":{"uid":"1","namespace":"team","operation":"CREATE","resource":{"version":"v1",`+
			`"resource":"pods"},"object":{"spec":{"containers":[{"name":"a","resources":{"limits":`+
			`{"gpuledger.dev/gpu-memory":"77"}}}]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || !strings.Contains(string(text), `"patch":`) {
		t.Errorf("a review of others: %s, %v", text, err)
	}
	if err := create("gpushare-memory"); err != nil {
		t.Error(err)
	}
	p.until("the template of the pod is made, and no other", func() error {
		all, err := p.client.ResourceV1().ResourceClaimTemplates("").List(ctx, metav1.ListOptions{})
		if err == nil && (len(all.Items) != 1 ||
			!strings.HasPrefix(all.Items[0].Name, "gpuledger-shared-3gi-")) {
			err = fmt.Errorf("there are %d", len(all.Items))
		}
		return err
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := create("ours-whole"); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("without the webhook a pod with a GPU: %v", err)
	}
	cpu := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cpu"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := p.client.CoreV1().Pods("team").Create(ctx, cpu, metav1.CreateOptions{}); err != nil {
		t.Errorf("without the webhook a pod without a GPU: %v", err)
	}
	// what others have removed is entered again
	entered, err = registered.MutatingWebhookConfigurations().Get(ctx, "gpuledger", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	entered.Webhooks = nil
	if _, err := registered.MutatingWebhookConfigurations().Update(ctx, entered,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	start()
	p.until("the webhook is asked again", refuses)
	after, err := p.client.CoreV1().Secrets("gpuledger-system").Get(ctx, "gpuledger-webhook",
		metav1.GetOptions{})
	if err != nil || string(after.Data[corev1.TLSCertKey]) != string(before.Data[corev1.TLSCertKey]) {
		t.Errorf("another certificate, %v", err)
	}
}
