package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	kubelet "k8s.io/kubelet/pkg/apis/dra/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// The driver runs as its manifest's pod: with these mounts of a node, a read-only root file system,
// and no capability. The node is a directory, and this test answers as the cluster's API.

const (
	// A podOf as JSON, which this program applies to itself.
	inPod  = "GPULEDGER_TEST_IN_POD"
	asMain = "GPULEDGER_TEST_AS_MAIN"
)

// podOf is what a kubelet and a runtime make of a manifest.
type podOf struct {
	Node, Root string
	// Records reports whether the node has mounted the file system for the records of limits.
	Records   bool
	Mounts    []podMount
	Args, Env []string
}

type podMount struct {
	Source, Target string
	ReadOnly       bool
}

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	if text := os.Getenv(inPod); text != "" {
		var p podOf
		err := json.Unmarshal([]byte(text), &p)
		if err == nil {
			err = p.become()
		}
		fmt.Fprintln(os.Stderr, "cannot become the pod:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// become makes the pod around this process, whose mount namespace is new, and executes its program.
func (p podOf) become() error {
	runtime.LockOSThread() // capabilities belong to a thread
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SLAVE, ""); err != nil {
		return err
	}
	if p.Records {
		if err := syscall.Mount("tmpfs", p.Node+"/run/gpuledger/limits", "tmpfs",
			0, "mode=0700"); err != nil {
			return err
		}
	}
	mounts := append([]podMount{{p.Root, p.Root, true}, {"/proc", p.Root + "/proc", false},
		{"/dev/null", p.Root + "/dev/null", false}}, p.Mounts...)
	for _, m := range mounts {
		if err := syscall.Mount(m.Source, m.Target, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return fmt.Errorf("%s at %s: %w", m.Source, m.Target, err)
		}
	}
	if err := p.standInNamespace(); err != nil {
		return fmt.Errorf("the node's cgroup namespace: %w", err)
	}
	for _, m := range mounts {
		if m.ReadOnly {
			if err := syscall.Mount("", m.Target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY,
				""); err != nil {
				return fmt.Errorf("%s read-only: %w", m.Target, err)
			}
		}
	}
	if err := syscall.Chroot(p.Root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	const capBoundingDrop, noNewPrivileges = 24, 38 // prctl(2)
	for capability := uintptr(0); ; capability++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, capBoundingDrop, capability,
			0); e == syscall.EINVAL {
			break
		} else if e != 0 {
			return e
		}
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, noNewPrivileges, 1, 0, 0, 0, 0); e != 0 {
		return e
	}
	return syscall.Exec("/usr/bin/gpuledger-kube", append([]string{"gpuledger-kube"}, p.Args...), p.Env)
}

// standInNamespace makes process 1 show the pod its own cgroup namespace as the node's. On a node
// that is the kernel's first namespace, which the pod recognizes. Under test/rig/leftovers.sh it is
// another one, and the pod would need the capabilities of process 1 to read it.
func (p podOf) standInNamespace() error {
	if err := syscall.Mount("/proc/self/ns/cgroup", p.Root+"/ns/cgroup", "",
		syscall.MS_BIND, ""); err != nil {
		return err
	}
	return syscall.Mount(p.Root+"/ns", p.Root+"/proc/1/ns", "", syscall.MS_BIND|syscall.MS_REC, "")
}

// manifest reads the daemon set of one of the agents.
func manifest(t *testing.T, which string) (set appsv1.DaemonSet) {
	t.Helper()
	text, err := os.ReadFile("../../manifests/" + which + "/daemonset.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &set)
	}
	must(t, err)
	return set
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// podFor makes the directories of a node, and the pod of a manifest on it.
func podFor(t *testing.T, which string, args ...string) podOf {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") // a short path, for sockets
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := podOf{Node: dir + "/n", Root: dir + "/r", Args: args,
		Env: []string{asMain + "=1"}}
	if which == "dra" { // the other agent has no access to the API
		p.Env = append(p.Env, "NODE_NAME="+nodeName)
	}
	spec := manifest(t, which).Spec.Template.Spec
	volumes := map[string]string{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v.HostPath.Path
	}
	for _, m := range spec.Containers[0].VolumeMounts {
		source := p.Node + volumes[m.Name]
		if m.Name == "cgroup" {
			source = "/sys/fs/cgroup"
		} else {
			must(t, os.MkdirAll(source, 0o755))
		}
		must(t, os.MkdirAll(p.Root+m.MountPath, 0o755))
		p.Mounts = append(p.Mounts, podMount{source, p.Root + m.MountPath, m.ReadOnly})
	}
	must(t, os.MkdirAll(p.Root+"/usr/bin", 0o755), os.MkdirAll(p.Root+"/proc", 0o755),
		os.MkdirAll(p.Root+"/dev", 0o755), os.MkdirAll(p.Root+"/ns", 0o755),
		os.WriteFile(p.Root+"/ns/cgroup", nil, 0o600), os.WriteFile(p.Root+"/dev/null", nil, 0o600),
		os.MkdirAll(p.Node+"/run/gpuledger/limits", 0o700), os.Chmod(p.Node+"/var/lib/gpuledger", 0o700))
	self, err := os.Executable()
	must(t, err)
	copied(t, self, p.Root+"/usr/bin/gpuledger-kube")
	// A test's binary may need libraries such as the C library. The image's program needs none.
	libraries, _ := exec.Command("ldd", self).Output()
	for word := range strings.FieldsSeq(string(libraries)) {
		if filepath.IsAbs(word) {
			copied(t, word, p.Root+word)
		}
	}
	p.installed(t)
	return p
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	must(t, err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o755))
}

// installed writes what the packages and `gpuledger inventory refresh` put on the node.
func (p podOf) installed(t *testing.T) {
	t.Helper()
	// the head of a library
	proxy := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00")
	if runtime.GOARCH == "arm64" {
		proxy[18] = 183
	}
	shim := p.Node + "/usr/lib/gpuledger"
	must(t, os.MkdirAll(shim+"/shim-1", 0o755), os.Symlink("shim-1", shim+"/shim"),
		os.WriteFile(shim+"/shim-1/libcuda.so.1", proxy, 0o644),
		os.WriteFile(shim+"/shim-1/libnvidia-ml.so.1", proxy, 0o644),
		os.WriteFile(p.Node+"/etc/gpuledger/config.toml",
			[]byte("[inventory]\nsource = \"simulated\"\nfile = \"/etc/gpuledger/gpus.json\"\n"), 0o644))
	d, err := simulated.Describe(1, 16*grant.GiB, "", nil)
	must(t, err)
	inv, err := simulated.Scan(d, host.Default(), "/")
	must(t, err)
	for _, soname := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		inv.Driver.Files = append(inv.Driver.Files,
			grant.DriverFile{Path: "/usr/lib64/" + soname, Kind: grant.FileLibrary, Target: "/usr/lib64",
				Names: []string{soname}, Bits: 64})
	}
	must(t, gpu.Write(gpu.Path(p.Node+"/var/lib/gpuledger"), inv))
}

// ledger opens the node as its own programs see it.
func (p podOf) ledger(t *testing.T) *node.Node {
	t.Helper()
	config := p.Node + "/config.toml"
	must(t, os.WriteFile(config, fmt.Appendf(nil,
		"state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\nfile = \"/nowhere\"\n",
		p.Node+"/var/lib/gpuledger", p.Node+"/run/gpuledger"), 0o600))
	return node.Open(config, host.Default())
}

// start runs the pod until the test ends. It returns the pod's process and a function that returns
// its log.
func (p podOf) start(t *testing.T) (cmd *exec.Cmd, logged func() string) {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	log := filepath.Join(filepath.Dir(p.Node), "log")
	out, err := os.Create(log)
	must(t, err)
	defer out.Close()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), inPod+"="+string(text))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig follows the thread that started the process.
	runtime.LockOSThread()
	must(t, cmd.Start())
	logged = func() string { text, _ := os.ReadFile(log); return string(text) }
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
		if t.Failed() {
			t.Logf("the pod has logged:\n%s", logged())
		}
	})
	return cmd, logged
}

func eventually(t *testing.T, what string, logged func() string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute\n%s", what, logged())
		}
	}
}

const nodeName = "node-1"

// api has the parts of a cluster's API that the driver uses.
type api struct {
	mu     sync.Mutex
	slices []resourceapi.ResourceSlice
	claim  resourceapi.ResourceClaim
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	meta := metav1.TypeMeta{Kind: "ResourceSlice", APIVersion: "resource.k8s.io/v1"}
	w.Header().Set("Content-Type", "application/json")
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		_ = json.NewEncoder(w).Encode(corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "u-node"}})
	case strings.HasSuffix(path, "/resourceclaims/claim"):
		_ = json.NewEncoder(w).Encode(a.claim)
	case r.Method == http.MethodPost:
		var s resourceapi.ResourceSlice
		body, _ := io.ReadAll(r.Body)
		// protobuf
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &s); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.TypeMeta, s.Name, s.ResourceVersion = meta, fmt.Sprint("slice-",
			len(a.slices)), fmt.Sprint(len(a.slices)+2)
		a.slices = append(a.slices, s)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(s)
	case r.URL.Query().Get("watch") != "": // nothing changes during the test
		a.mu.Unlock()
		end := resourceapi.ResourceSlice{TypeMeta: meta,
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1",
				Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": end})
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		a.mu.Lock()
	default:
		_ = json.NewEncoder(w).Encode(
			resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{Kind: "ResourceSliceList",
				APIVersion: "resource.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
	}
}

// strength returns the published strength of the GPU in mode limit.
func (a *api) strength() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slices {
		for _, d := range s.Spec.Devices {
			if *d.Attributes["mode"].StringValue == string(grant.Limit) {
				return *d.Attributes["strength"].StringValue
			}
		}
	}
	return ""
}

// claimed adds a claim to 4 GiB of the node's GPU to the API.
func (a *api) claimed(uuid string) {
	a.claim = resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{Kind: "ResourceClaim",
		APIVersion: "resource.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim",
		UID: "u-1"}}
	a.claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod",
		UID: "u-pod"}}
	a.claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Driver: "gpuledger.dev",
				Pool:    nodeName,
				Request: "gpu", Device: strings.ToLower(uuid) + "-limit",
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory":  resource.MustParse("4Gi"),
					"compute": resource.MustParse("0")}}}}}
}

func TestTheDriverWorksInItsPod(t *testing.T) {
	for name, records := range map[string]bool{"the node has mounted the place of the records": true,
		"it has not": false} {
		t.Run(name, func(t *testing.T) {
			cluster := &api{}
			server := httptest.NewServer(cluster)
			t.Cleanup(server.Close)
			p := podFor(t, "dra", "dra", "--interval", "50ms", "--kubeconfig", "/usr/bin/kubeconfig")
			p.Records = records
			must(t, os.WriteFile(p.Root+"/usr/bin/kubeconfig",
				fmt.Appendf(nil,
					"{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], "+
						"contexts: [{name: c, context: {cluster: c}}], current-context: c}\n",
					server.URL), 0o600))
			n := p.ledger(t)
			inv, problem := n.Inventory()
			if problem != nil {
				t.Fatal(problem.Message)
			}
			cluster.claimed(inv.GPUs[0].UUID)
			driver, logged := p.start(t)
			pid := driver.Process.Pid
			eventually(t, "slices are published", logged, func() bool { return cluster.strength() != "" })
			if s := cluster.strength(); s != string(grant.StrengthLibrary) {
				t.Errorf("mode limit is published with strength %q, want that of the node's shim", s)
			}
			p.prepares(t)
			o, err := grants.Read(n)
			if err != nil || len(o.Grants) != 1 {
				t.Fatalf("got %+v, %v, want the claim's grant", o.Grants, err)
			}
			id := string(o.Grants[0].ID)
			spec, err := os.ReadFile(p.Node + "/run/cdi/gpuledger.dev-grant_" + id + ".json")
			must(t, err)
			for _, part := range []string{"/usr/lib/gpuledger/shim-1/libcuda.so.1",
				"/run/gpuledger/limits/" + id + "/limits"} {
				if !strings.Contains(string(spec), part) {
					t.Errorf("the claim's CDI file has no %s:\n%s", part, spec)
				}
			}
			record := func() uint64 {
				return inode(fmt.Sprintf("/proc/%d/root/run/gpuledger/limits/%s/limits", pid,
					id))
			}
			first := record()
			if (first != 0) != records {
				t.Errorf("the record of the grant is inode %d, with room for it: %v", first, records)
			}
			p.prepares(t) // again: a container may use the record
			if again := record(); again != first {
				t.Errorf("the record of the grant is another: inode %d, after %d", again, first)
			}
			if info, err := os.Stat(p.Node + "/run/gpuledger"); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the run directory: %v, %v", info.Mode(), err)
			}
			p.checkPrivileges(t, pid)
		})
	}
}

func inode(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// prepares makes the kubelet's call.
func (p podOf) prepares(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+p.Node+"/var/lib/kubelet/plugins/gpuledger.dev/dra.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	answer, err := kubelet.NewDRAPluginClient(conn).NodePrepareResources(t.Context(),
		&kubelet.NodePrepareResourcesRequest{Claims: []*kubelet.Claim{{Namespace: "team", Name: "claim",
			Uid: "u-1"}}})
	must(t, err)
	if c := answer.Claims["u-1"]; c == nil || c.Error != "" || len(c.Devices) != 1 ||
		len(c.Devices[0].CdiDeviceIds) != 1 {
		t.Fatalf("got %v, want a CDI device", answer)
	}
}

// checkPrivileges checks that the pod has only the privileges in its manifest.
func (p podOf) checkPrivileges(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for _, line := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
		"NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the driver's status has no %q:\n%s", line, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	written := []string{}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[5], "rw") {
			written = append(written, f[4])
		}
	}
	for _, dir := range []string{"/", "/etc/gpuledger", "/usr/lib/gpuledger"} {
		if slices.Contains(written, dir) {
			t.Errorf("%s can be written", dir)
		}
	}
}
