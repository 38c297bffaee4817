package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// controlPlane is a real etcd, API server and kube-scheduler, and the extender between two proxies.
type controlPlane struct {
	*testing.T
	dir    string
	client kubernetes.Interface
	api    *httptest.Server // the API as the extender reaches it

	mu       sync.Mutex
	extender *exec.Cmd
	at       string // where kube-scheduler finds it
	started  int
	filters  int // calls of kube-scheduler
	// strike is called before and after a binding is forwarded. It reports whether it has ended the
	// extender.
	strike func(before bool) bool
}

// engine returns a program of the control plane, or skips the test.
func engine(t *testing.T, path string) string {
	t.Helper()
	root := os.Getenv("GPULEDGER_ENGINES")
	if root == "" {
		root = "../../../.cache/engines"
	}
	full, err := filepath.Abs(filepath.Join(root, path))
	if err == nil {
		_, err = os.Stat(full)
	}
	if err != nil {
		t.Skipf("not tried: the extender with a real kube-scheduler (test/engines/build.sh etcd "+
			"kubernetes): %v", err)
	}
	return full
}

func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (p *controlPlane) start(name, path string, args ...string) {
	log, err := os.Create(p.dir + "/" + name + ".log")
	must(p.T, err)
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(p.T, cmd.Start())
	p.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.Failed() {
			p.Logf("%s: %s", name, p.logged(name))
		}
	})
}

func (p *controlPlane) logged(name string) string {
	text, _ := os.ReadFile(p.dir + "/" + name + ".log")
	return string(text[max(0, len(text)-3000):])
}

func kubeconfigOf(server string) string {
	return "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"" + server +
		"\", insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: admin}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
}

func newControlPlane(t *testing.T) *controlPlane {
	etcd, apiserver := engine(t, "etcd/etcd"), engine(t, "kubernetes/kube-apiserver")
	p := &controlPlane{T: t, dir: t.TempDir()}
	store, peer, address := "http://"+free(t), "http://"+free(t), free(t)
	host := "https://" + address
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	front := httptest.NewServer(http.HandlerFunc(p.forward))
	t.Cleanup(front.Close)
	p.api = httptest.NewServer(p.toAPI(host))
	t.Cleanup(p.api.Close)
	for name, text := range map[string]string{
		"tokens.csv": "admin,admin,admin,\"system:masters\"\n", "admin.yaml": kubeconfigOf(host),
		"sa.key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"extender.yaml": kubeconfigOf(p.api.URL),
		"scheduler.yaml": "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" +
			"leaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: " + p.dir +
			"/admin.yaml}\npodMaxBackoffSeconds: 2\n" +
			"extenders: [{urlPrefix: \"" + front.URL +
			"\", filterVerb: filter, prioritizeVerb: prioritize, bindVerb: bind, weight: 1, " +
			"nodeCacheCapable: true}]\n",
	} {
		must(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
	}
	p.start("etcd", etcd, "--data-dir", p.dir+"/etcd", "--log-level=warn", "--listen-client-urls="+store,
		"--advertise-client-urls="+store, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
		"--initial-cluster=default="+peer)
	_, port, _ := net.SplitHostPort(address)
	p.start("apiserver", apiserver, "--etcd-servers="+store, "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--secure-port="+port, "--endpoint-reconciler-type=none",
		"--cert-dir="+p.dir+"/certs", "--token-auth-file="+p.dir+"/tokens.csv", "--anonymous-auth=false",
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--service-account-issuer="+host, "--service-account-key-file="+p.dir+"/sa.key",
		"--service-account-signing-key-file="+p.dir+"/sa.key", "--service-cluster-ip-range=10.96.0.0/24")
	p.client, err = kubernetes.NewForConfig(&rest.Config{Host: host, BearerToken: "admin", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	must(t, err)
	p.until("the API server answers", func() bool {
		_, err := p.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	p.start("kube-scheduler", engine(t, "kubernetes/kube-scheduler"), "--config="+p.dir+"/scheduler.yaml",
		"--secure-port=0")
	return p
}

func (p *controlPlane) until(what string, is func() bool) {
	p.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("%s: not in a minute\n%s", what, p.logged(fmt.Sprint("extender-", p.started)))
		}
	}
}

// forward forwards kube-scheduler's calls to the extender that runs now.
func (p *controlPlane) forward(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	at := p.at
	if r.URL.Path == "/filter" {
		p.filters++
	}
	p.mu.Unlock()
	quiet(&url.URL{Scheme: "http", Host: at}).ServeHTTP(w, r)
}

func quiet(to *url.URL) *httputil.ReverseProxy {
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusBadGateway)
	}
	return proxy
}

// toAPI forwards the extender's requests to the API server, and strikes at its bindings.
func (p *controlPlane) toAPI(host string) http.Handler {
	to, err := url.Parse(host)
	must(p.T, err)
	proxy := quiet(to)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer admin") // clients send no token without TLS
		p.mu.Lock()
		strike := p.strike
		p.mu.Unlock()
		if strike == nil || r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/binding") {
			proxy.ServeHTTP(w, r)
			return
		}
		if strike(true) {
			return
		}
		// its end must not end the request that it has sent
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context())))
		strike(false)
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	})
}

// extend starts the extender, in the place of one that runs.
func (p *controlPlane) extend() {
	p.mu.Lock()
	p.started++
	at := free(p.T)
	cmd, err := program(fmt.Sprint(p.dir, "/extender-", p.started, ".log"), "scheduler", "--kubeconfig",
		p.dir+"/extender.yaml", "--extender", at, "--interval", "200ms")
	must(p.T, err, cmd.Start())
	p.extender, p.at = cmd, at
	p.mu.Unlock()
	p.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p.until("the extender serves", func() bool {
		r, err := http.Post("http://"+at+"/filter", "application/json", strings.NewReader("{}"))
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// kill ends the extender as kill -9 does, and waits for its end.
func (p *controlPlane) kill() {
	p.mu.Lock()
	cmd := p.extender
	p.mu.Unlock()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// publish makes or changes a node with GPUs of 16 GiB, each with this many GiB free.
func (p *controlPlane) publish(name string, free ...int) {
	p.Helper()
	var s nodestate.Published
	for i, gib := range free {
		g := nodestate.PublishedGPU{UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Memory: 16 * grant.GiB,
			Free: grant.Bytes(gib) * grant.GiB, Compute: 100,
			Modes: []grant.Mode{grant.Exclusive, grant.Limit}}
		if gib < 16 {
			g.Mode = grant.Limit
		}
		s.GPUs = append(s.GPUs, g)
	}
	text, err := s.Encode()
	must(p.T, err)
	nodes := p.client.CoreV1().Nodes()
	room := corev1.ResourceList{"cpu": resource.MustParse("64"), "pods": resource.MustParse("110"),
		"memory": resource.MustParse("64Gi"), "gpuledger.dev/gpu-memory": resource.MustParse("1000")}
	if _, err := nodes.Create(p.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{nodestate.Annotation: text}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, metav1.CreateOptions{}); err == nil {
		return
	}
	_, err = nodes.Patch(p.Context(), name, types.MergePatchType, fmt.Appendf(nil,
		`{"metadata":{"annotations":{%q:%q}}}`, nodestate.Annotation, text), metav1.PatchOptions{})
	must(p.T, err)
}

func (p *controlPlane) ask(gib int, names ...string) {
	p.Helper()
	for _, name := range names {
		_, err := p.client.CoreV1().Pods("default").Create(p.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
					"gpuledger.dev/gpu-memory": *resource.NewQuantity(int64(gib), resource.DecimalSI)}}}}}},
			metav1.CreateOptions{})
		must(p.T, err)
	}
}

func (p *controlPlane) remove(names ...string) {
	p.Helper()
	for _, name := range names {
		must(p.T, p.client.CoreV1().Pods("default").Delete(p.Context(), name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
}

// bound counts the pods that have a node, and fails if they have more of a GPU than there is, or if
// one has a node without GPUs or GPUs without a node.
func (p *controlPlane) bound() (count int) {
	p.Helper()
	list, err := p.client.CoreV1().Pods("default").List(p.Context(), metav1.ListOptions{})
	must(p.T, err)
	sum := map[string]grant.Bytes{}
	for _, pod := range list.Items {
		gpu := pod.Annotations["gpuledger.dev/gpus.main"]
		if (pod.Spec.NodeName == "") != (gpu == "") ||
			!strings.HasPrefix(gpu, "GPU-"+pod.Spec.NodeName) && gpu != "" {
			p.Fatalf("pod %s is on node %q with GPU %q", pod.Name, pod.Spec.NodeName, gpu)
		}
		if gpu == "" {
			continue
		}
		count++
		memory, err := grant.ParseBytes(pod.Annotations["gpuledger.dev/memory.main"])
		must(p.T, err)
		if sum[gpu] += memory; sum[gpu] > 16*grant.GiB {
			p.Fatalf("%s has %s", gpu, sum[gpu])
		}
	}
	return count
}

func (p *controlPlane) untilBound(what string, want int) {
	p.Helper()
	p.until(what, func() bool { return p.bound() == want })
}

func names(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

// The extender with a real kube-scheduler: pods at once, room that appears, and kill -9 at each
// step of a binding.
func TestTheExtenderOnAControlPlane(t *testing.T) {
	p := newControlPlane(t)
	p.publish("a", 16, 16)
	p.publish("b", 16, 16)
	p.extend()

	p.ask(4, names("many-", 20)...)
	p.untilBound("as many pods run as there is room for", 16)
	p.until("the event of a waiting pod is one sentence with the closest fit", func() bool {
		list, err := p.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range list.Items {
			if strings.Contains(e.Message, "no GPU has 4GiB free in mode limit: the most is 0MiB, GPU 0 of "+
				"node ") {
				return true
			}
		}
		return false
	})
	var gone []string
	list, err := p.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, pod := range list.Items {
		if pod.Spec.NodeName != "" && len(gone) < 6 {
			gone = append(gone, pod.Name)
		}
	}
	p.remove(gone...)
	p.untilBound("waiting pods have the room of others", 14)

	for i, before := range []bool{true, false} {
		name := fmt.Sprint("struck-", i)
		struck := make(chan struct{})
		var once sync.Once
		p.mu.Lock()
		p.strike = func(now bool) bool {
			if now == before {
				once.Do(func() { p.kill(); close(struck) })
			}
			return now == before
		}
		p.mu.Unlock()
		p.ask(4, name)
		<-struck
		p.mu.Lock()
		p.strike = nil
		p.mu.Unlock()
		p.extend()
		p.untilBound(fmt.Sprintf("a pod runs whose binding was struck, before it was written: %t", before),
			15+i)
	}
	p.ask(4, "waits")
	p.until("a pod waits", func() bool { return p.unschedulable("waits") })
	p.woken("waits")
	p.untilBound("there is room for no more", 16)
	p.published("c")
}

func (p *controlPlane) unschedulable(name string) bool {
	pod, err := p.client.CoreV1().Pods("default").Get(p.Context(), name, metav1.GetOptions{})
	must(p.T, err)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

// woken wants kube-scheduler to try a pod again when its annotation changes, and not without that.
func (p *controlPlane) woken(name string) {
	p.Helper()
	filters := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.filters
	}
	before := filters()
	time.Sleep(4 * time.Second)
	if now := filters(); now != before {
		p.Logf("%d filters without a change", now-before)
	}
	before = filters()
	_, err := p.client.CoreV1().Pods("default").Patch(p.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"gpuledger.dev/tried":"now"}}}`), metav1.PatchOptions{})
	must(p.T, err)
	p.until("kube-scheduler tries a pod whose annotation has changed", func() bool {
		return filters() > before
	})
}

// published waits until a pod that waits has the room that a node publishes, without any other
// event in the cluster.
func (p *controlPlane) published(node string) {
	p.Helper()
	p.publish(node, 0)
	p.until("kube-scheduler has tried the new node", func() bool {
		list, err := p.client.CoreV1().Events("default").List(p.Context(), metav1.ListOptions{})
		must(p.T, err)
		for _, e := range list.Items {
			if strings.Contains(e.Message, "0/3 nodes are available") {
				return true
			}
		}
		return false
	})
	p.publish(node, 4)
	p.untilBound("a waiting pod has the room that a node publishes", 17)
	pod, err := p.client.CoreV1().Pods("default").Get(p.Context(), "waits", metav1.GetOptions{})
	must(p.T, err)
	p.Logf("tried again by the extender: %q", pod.Annotations["gpuledger.dev/tried"])
}
