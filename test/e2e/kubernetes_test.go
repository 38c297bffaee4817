//go:build e2e

package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// A cluster of one node on loopback: etcd, API server, controller manager, scheduler and kubelet,
// on an engine.

const (
	etcKubernetes = "/etc/kubernetes"
	adminConfig   = etcKubernetes + "/admin.yaml"
	staticPods    = etcKubernetes + "/manifests"
	clusterNode   = "localhost" // a name that the API server resolves
)

// The version of Kubernetes, such as 1.35, of those that test/engines/build.sh names
// kubernetes-1.35 and so on ("": the newest of the table), and feature gates for all its programs.
const (
	versionVar = "KUBERNETES"
	gatesVar   = "KUBERNETES_GATES"
)

// kubeconfig is the configuration for access to the API with a token.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: user, user: {token: %q}}]
contexts: [{name: node, context: {cluster: node, user: user}}]
current-context: node
`

// kubeletConfig, with the engine's socket, is for a root without CAP_SYS_RESOURCE, which can set no
// negative OOM score, and for machines with cgroup v1.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%[1]s
imageServiceEndpoint: unix://%[1]s
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: ""
staticPodPath: ` + staticPods + `
clusterDNS: []
syncFrequency: 5s
nodeStatusUpdateFrequency: 2s
evictionHard: {imagefs.available: "1%%", nodefs.available: "1%%", memory.available: 50Mi}
`

// kubernetesOn makes the start of the cluster on an engine with this socket.
func kubernetesOn(engine func(*site) []client, socket string) func(*site) []client {
	return func(s *site) []client {
		engine(s)
		return kubernetes(s, socket)
	}
}

// kubernetes starts the cluster. It has no clients of the story; cluster tests it.
func kubernetes(s *site, socket string) []client {
	wireNode(s.T)
	writeFile(s.T, adminConfig, fmt.Sprintf(kubeconfig, "admin"))
	writeFile(s.T, etcKubernetes+"/tokens.csv", `admin,admin,admin,"system:masters"`+"\n")
	writeFile(s.T, etcKubernetes+"/kubelet.yaml", fmt.Sprintf(kubeletConfig, socket))
	writeFile(s.T, etcKubernetes+"/sa.key", signingKey(s.T))
	must(s.T, os.MkdirAll("/var/lib/etcd", 0o700), os.MkdirAll(staticPods, 0o755))
	var gates []string
	if set := os.Getenv(gatesVar); set != "" {
		gates = []string{"--feature-gates=" + set}
	}
	version := strings.TrimSuffix("kubernetes-"+os.Getenv(versionVar), "-")
	program := func(name string) string { return built(version + "/" + name) }
	start := func(ready func() bool, name string, args ...string) {
		s.daemon(ready, program(name), append(args, gates...)...)
	}
	ready := func() bool { return s.kubectl("get", "--raw", "/readyz").Code == 0 }
	s.daemon(func() bool { return exists("/var/lib/etcd/data/member/snap/db") }, built("etcd/etcd"),
		"--data-dir", "/var/lib/etcd/data", "--log-level=warn")
	start(ready, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", "--cert-dir="+etcKubernetes+"/certs", "--token-auth-file="+
			etcKubernetes+"/tokens.csv", "--anonymous-auth=false",
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true",
		"--shutdown-delay-duration=0s",
		"--service-account-issuer=https://127.0.0.1:6443", "--service-account-key-file="+
			etcKubernetes+"/sa.key",
		"--service-account-signing-key-file="+etcKubernetes+"/sa.key",
		"--service-cluster-ip-range=10.96.0.0/24")
	start(ready, "kube-controller-manager", "--kubeconfig="+adminConfig,
		"--bind-address=127.0.0.1", "--cert-dir="+etcKubernetes+"/certs",
		"--leader-elect=false", "--service-account-private-key-file="+etcKubernetes+"/sa.key")
	start(ready, "kube-scheduler", "--kubeconfig="+adminConfig, "--bind-address=127.0.0.1",
		"--cert-dir="+etcKubernetes+"/certs", "--leader-elect=false")
	start(func() bool { return strings.Contains(s.kubectl("get", "node", clusterNode).Stdout, " Ready") },
		"kubelet", "--config="+etcKubernetes+"/kubelet.yaml",
		"--kubeconfig="+adminConfig, "--cert-dir="+etcKubernetes+"/certs", "--hostname-override="+clusterNode)
	return nil
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// wireNode gives the machine a default route that leads nowhere, because the kubelet takes its
// address from there.
func wireNode(t testing.TB) {
	for _, args := range [][]string{{"link", "add", "node0", "type", "bridge"},
		{"addr", "add", "10.77.0.1/24", "dev", "node0"}, {"link", "set", "node0", "up"},
		{"route", "add", "default", "via", "10.77.0.254"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
}

func signingKey(t testing.TB) string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{
		Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// kubectl runs kubectl as the administrator.
func (s *site) kubectl(args ...string) rig.Result {
	return s.kubectlWith("", args...)
}

func (s *site) kubectlWith(input string, args ...string) rig.Result {
	cmd := exec.Command(built("kubernetes/kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+adminConfig, "HOME="+s.dir)
	cmd.Stdin = strings.NewReader(input)
	return rig.Run(cmd)
}

// administer runs kubectl and fails the test if that fails.
func (s *site) administer(args ...string) string {
	s.T.Helper()
	r := s.kubectl(args...)
	if r.Code != 0 {
		s.T.Fatalf("kubectl %s: %+v", strings.Join(args, " "), r)
	}
	return strings.TrimSpace(r.Stdout)
}

// apply makes objects in the namespace of the test.
func (s *site) apply(objects ...object) rig.Result {
	s.T.Helper()
	return s.kubectlWith(string(encode(s.T, object{"apiVersion": "v1", "kind": "List", "items": objects})),
		"apply", "-n", "team", "-f", "-")
}

func (s *site) applied(objects ...object) {
	s.T.Helper()
	if r := s.apply(objects...); r.Code != 0 {
		s.T.Fatalf("kubectl apply: %+v", r)
	}
}

// read gets an object as JSON. It returns false if there is none.
func (s *site) read(into any, args ...string) bool {
	r := s.kubectl(append([]string{"get", "-n", "team", "-o", "json"}, args...)...)
	return r.Code == 0 && json.Unmarshal([]byte(r.Stdout), into) == nil
}

// startAgent starts gpuledger-kube as a process of the node's.
func (s *site) startAgent(args ...string) *daemon {
	s.T.Helper()
	return s.startAgentOf("../../bin/gpuledger-kube", args...)
}

func (s *site) startAgentOf(program string, args ...string) *daemon {
	s.T.Helper()
	program, err := filepath.Abs(program)
	must(s.T, err)
	d := &daemon{log: filepath.Join(s.dir, "log", "gpuledger-kube"),
		command: func() *exec.Cmd { return s.Command(program, args...) }}
	d.live(s.T)
	return d
}

// ends stops an agent as systemd would; nil is one that was not started.
func (s *site) ends(d *daemon) {
	s.T.Helper()
	if d != nil && d.stop(time.Minute) {
		s.T.Error("gpuledger-kube does not end")
	}
}

// startDRA starts the driver with the rights of its manifest and a token that names the node, as a
// pod's does.
func (s *site) startDRA(args ...string) *daemon {
	s.T.Helper()
	return s.startDRAOf("../../bin/gpuledger-kube", args...)
}

func (s *site) startDRAOf(program string, args ...string) *daemon {
	s.T.Helper()
	uid := s.administer("get", "node", clusterNode, "-o", "jsonpath={.metadata.uid}")
	token := s.administer("create", "token", "gpuledger-dra", "-n", "gpuledger-system",
		"--bound-object-kind=Node", "--bound-object-name="+clusterNode, "--bound-object-uid="+uid)
	path := etcKubernetes + "/dra.yaml"
	writeFile(s.T, path, fmt.Sprintf(kubeconfig, token))
	return s.startAgentOf(program, append([]string{"dra", "--kubeconfig", path, "--node-name", clusterNode,
		"--interval", "200ms", "--reclaim", "2s"}, args...)...)
}
