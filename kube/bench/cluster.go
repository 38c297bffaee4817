package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/kube/dra"
)

// cluster is a control plane on loopback.
type cluster struct {
	dir      string
	config   *rest.Config
	client   kubernetes.Interface
	programs []*program

	list []resourceapi.ResourceSlice // at the last look
}

// program is a part of the control plane.
type program struct {
	name string
	cmd  *exec.Cmd
}

const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q%s}
`

// startCluster starts etcd, the API server and the scheduler, each when the previous one answers.
func startCluster(ctx context.Context, dir string, o options) (c *cluster, err error) {
	c = &cluster{dir: dir, config: &rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "admin", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}}
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.said())
			c.stop()
		}
	}()
	kubeconfig := dir + "/admin.yaml"
	limit := ""
	if o.qps > 0 {
		limit = fmt.Sprintf(", qps: %d, burst: %d", o.qps, 2*o.qps)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"admin.yaml": "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " +
			"\"https://127.0.0.1:6443\", insecure-skip-tls-verify: true}}]\n" +
			"users: [{name: u, user: {token: admin}}]\ncontexts: [{name: c, context: {cluster: c, user: " +
			"u}}]\ncurrent-context: c\n",
		"tokens.csv": "admin,admin,admin,\"system:masters\"\n",
		"sa.key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"scheduler.yaml": fmt.Sprintf(schedulerConfig, kubeconfig, limit),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	kubernetes := o.engines + "/kubernetes/"
	if err := c.start("etcd", o.engines+"/etcd/etcd", "--data-dir", dir+"/etcd",
		"--log-level=warn"); err != nil {
		return nil, err
	}
	if err := c.start("apiserver", kubernetes+"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", "--cert-dir="+dir+"/certs", "--token-auth-file="+dir+"/tokens.csv",
		"--anonymous-auth=false", "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--service-account-issuer=https://127.0.0.1:6443", "--service-account-key-file="+dir+"/sa.key",
		"--service-account-signing-key-file="+dir+"/sa.key",
		"--service-cluster-ip-range=10.96.0.0/24"); err != nil {
		return nil, err
	}
	ready := func() bool {
		_, err := c.client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	}
	if err := until(ctx, "the API server answers", ready); err != nil {
		return nil, err
	}
	return c, c.start("scheduler", kubernetes+"kube-scheduler", "--config="+dir+"/scheduler.yaml",
		"--bind-address=127.0.0.1", "--cert-dir="+dir+"/certs",
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
}

func (c *cluster) start(name, path string, args ...string) error {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s: %w (test/engines/build.sh etcd kubernetes builds it)", name, err)
	}
	c.programs = append(c.programs, &program{name, cmd})
	return nil
}

// stop ends the programs, the last one first.
func (c *cluster) stop() {
	for _, p := range slices.Backward(c.programs) {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// said returns the end of each program's log.
func (c *cluster) said() (all error) {
	for _, p := range c.programs {
		text, _ := os.ReadFile(filepath.Join(c.dir, p.name+".log"))
		all = errors.Join(all, fmt.Errorf("%s: ...%s", p.name, text[max(0, len(text)-1500):]))
	}
	return all
}

// until waits some minutes at most until done returns true.
func until(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// prepare makes the DeviceClasses, and nodes that are ready.
func (c *cluster) prepare(ctx context.Context, o options) error {
	text, err := os.ReadFile(o.classes)
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.UnmarshalStrict([]byte(document), &class); err != nil {
			return err
		}
		if _, err := c.client.ResourceV1().DeviceClasses().Create(ctx, &class,
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	room := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"),
		"pods": resource.MustParse("110")}
	return together(o.nodes, 10, func(i int) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i),
			Labels: map[string]string{"kubernetes.io/hostname": nodeName(i), "gpuledger.dev/node": "shared"}},
			Status: corev1.NodeStatus{Capacity: room, Allocatable: room,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		_, err := c.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		return err
	})
}

// untilSlices waits until the API has the slices of all nodes and enough returns true. outside is
// the number of GPUs that are used outside the ledger.
func (c *cluster) untilSlices(ctx context.Context, enough func(outside int) bool, o options) error {
	return until(ctx, "slices of all nodes", func() bool {
		// from the API server's cache
		list, err := c.client.ResourceV1().ResourceSlices().List(ctx,
			metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false
		}
		c.list = list.Items
		gpus, counters, counted, outside := map[string]bool{}, 0, map[string]bool{}, map[string]bool{}
		for _, s := range c.list {
			counters += len(s.Spec.SharedCounters)
			for _, d := range s.Spec.Devices {
				uuid, memory := *d.Attributes["uuid"].StringValue, d.Capacity["memory"].Value
				gpus[uuid] = true
				if len(d.ConsumesCounters) > 0 {
					counted[uuid] = true
				}
				if memory.Value() < int64(memoryOfGPU) {
					outside[uuid] = true
				}
			}
		}
		return len(gpus) == o.nodes*o.gpus && counters == len(counted) && enough(len(outside))
	})
}

func (c *cluster) slices() int { return len(c.list) }

func (c *cluster) devices() (n int) {
	for _, s := range c.list {
		n += len(s.Spec.Devices)
	}
	return n
}

// schedule makes n claims with a pod each. It returns how long each pod took from its creation
// until it was seen bound. During long work it prints its progress on standard error.
func (c *cluster) schedule(ctx context.Context, name string, n int,
	patience time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := c.client.CoreV1().Pods("default")
	look := metav1.ListOptions{LabelSelector: "set=" + name}
	watch, err := pods.Watch(ctx, look)
	if err != nil {
		return nil, err
	}
	defer func() { watch.Stop() }()
	var mu sync.Mutex
	created, took := map[string]time.Time{}, []time.Duration(nil)
	if err := together(n, 20, func(i int) error {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", name, i)}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "limit." + dra.DriverName,
				Capacity: &resourceapi.CapacityRequirements{
					Requests: map[resourceapi.QualifiedName]resource.Quantity{
						"memory": resource.MustParse("4Gi")}}}}}
		_, err := c.client.ResourceV1().ResourceClaims("default").Create(ctx, claim, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	made := make(chan error, 1)
	go func() {
		made <- together(n, 20, func(i int) error {
			mu.Lock()
			created[fmt.Sprintf("%s-%d", name, i)] = time.Now()
			mu.Unlock()
			_, err := pods.Create(ctx, podOf(fmt.Sprintf("%s-%d", name, i), name), metav1.CreateOptions{})
			return err
		})
	}()
	bound, began := map[string]bool{}, time.Now()
	progress := time.NewTicker(10 * time.Second)
	defer progress.Stop()
	for len(took) < n {
		select {
		case <-ctx.Done():
			return took, fmt.Errorf("%d of %d pods are bound: %w", len(took), n, ctx.Err())
		case <-progress.C:
			fmt.Fprintf(os.Stderr, "%s: %d of %d are bound after %.0f s\n", name, len(took), n,
				time.Since(began).Seconds())
		case err := <-made:
			if err != nil {
				return nil, err
			}
			made = nil
		case e, open := <-watch.ResultChan():
			// The API server ends watches, too. A new watch begins with all existing pods.
			if !open {
				again, err := pods.Watch(ctx, look)
				if err != nil {
					return nil, fmt.Errorf("%d of %d pods are bound, and no more can be seen: %w", len(took),
						n, err)
				}
				watch = again
				continue
			}
			if p, is := e.Object.(*corev1.Pod); is && p.Spec.NodeName != "" && !bound[p.Name] {
				mu.Lock()
				took = append(took, time.Since(created[p.Name]))
				mu.Unlock()
				bound[p.Name] = true
			}
		}
	}
	return took, nil
}

func podOf(name, set string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"set": set}},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers: []corev1.Container{{Name: "main", Image: "none",
				Resources: corev1.ResourceRequirements{
					Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}}}
}

// requestCounts counts requests to the API by verb and resource.
type requestCounts map[string]int

// requests reads the API server's own counts.
func (c *cluster) requests(ctx context.Context) requestCounts {
	text, err := c.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil
	}
	all := requestCounts{}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "apiserver_request_total{"); found {
			labels, value, _ := strings.Cut(rest, "} ")
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			resource := label(labels, "resource")
			if sub := label(labels, "subresource"); sub != "" {
				resource += "/" + sub
			}
			all[label(labels, "verb")+" "+resource] += int(n)
		}
	}
	return all
}

func label(labels, name string) string {
	for part := range strings.SplitSeq(labels, ",") {
		if value, found := strings.CutPrefix(part, name+"=\""); found {
			return strings.TrimSuffix(value, "\"")
		}
	}
	return ""
}

// since returns the requests for some resources since an earlier count.
func (t requestCounts) since(before requestCounts, resources ...string) string {
	var parts []string
	for key, n := range t {
		_, resource, _ := strings.Cut(key, " ")
		main, _, _ := strings.Cut(resource, "/")
		if n -= before[key]; n > 0 && slices.Contains(resources, main) {
			parts = append(parts, fmt.Sprintf("%s %d", key, n))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// seconds holds the CPU seconds of each program, and of this one.
type seconds map[string]float64

func (c *cluster) usage() seconds {
	all := seconds{"drivers and bench": cpu("self")}
	for _, p := range c.programs {
		all[p.name] = cpu(strconv.Itoa(p.cmd.Process.Pid))
	}
	return all
}

// cpu reads a process's utime and stime (proc(5)), in ticks of 10 ms, and returns seconds.
func cpu(pid string) float64 {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}

func (s seconds) since(before seconds) string {
	var parts []string
	for name, n := range s {
		parts = append(parts, fmt.Sprintf("%s %.1f s", name, n-before[name]))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// scheduler returns a client of the scheduler's own endpoints.
func (c *cluster) scheduler() (rest.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.Host, config.QPS = "https://127.0.0.1:10259", -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.CoreV1().RESTClient(), nil
}

// profile writes a CPU profile of the scheduler over the next 20 seconds. Without a path it does
// nothing.
func (c *cluster) profile(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	client, err := c.scheduler()
	if err != nil {
		return err
	}
	data, err := client.Get().AbsPath("/debug/pprof/profile").Param("seconds",
		"20").Timeout(time.Minute).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("cannot profile the scheduler: %w", err)
	}
	return os.WriteFile(path, data, 0o644)
}

// schedulerSays returns the mean time of a scheduling attempt by the scheduler's own metrics. It
// includes neither the waiting nor the binding.
func (c *cluster) schedulerSays(ctx context.Context) string {
	client, err := c.scheduler()
	if err != nil {
		return err.Error()
	}
	text, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return err.Error()
	}
	sums := map[string]float64{}
	for scanner := bufio.NewScanner(strings.NewReader(string(text))); scanner.Scan(); {
		name, value, _ := strings.Cut(scanner.Text(), " ")
		metric, labels, _ := strings.Cut(name, "{")
		n, _ := strconv.ParseFloat(value, 64)
		switch metric {
		case "scheduler_scheduling_algorithm_duration_seconds_sum",
			"scheduler_scheduling_algorithm_duration_seconds_count":
			sums[metric] += n
		case "scheduler_framework_extension_point_duration_seconds_sum",
			"scheduler_framework_extension_point_duration_seconds_count":
			sums[strings.TrimPrefix(metric, "scheduler_framework_extension_point_duration_seconds_")+label(
				strings.TrimSuffix(labels, "}"), "extension_point")] += n
		}
	}
	mean := func(sum, count string) float64 { return 1000 * sums[sum] / max(1, sums[count]) }
	text2 := fmt.Sprintf("choosing a node %.1f ms a pod",
		mean("scheduler_scheduling_algorithm_duration_seconds_sum",
			"scheduler_scheduling_algorithm_duration_seconds_count"))
	for _, point := range []string{"Filter", "PreBind", "Bind"} {
		text2 += fmt.Sprintf(", %s %.1f ms", point, mean("sum"+point, "count"+point))
	}
	return text2
}
