//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// kubelet uses CRI through crictl, with the settings of a real kubelet.
type kubelet struct {
	cdi bool // the engine obeys CDI names in CRI
}

var crictl = built("crictl/crictl")

func (k kubelet) name() string { return "CRI" }

// owner is the pod's identity, which the engine itself writes into the bundle.
func (k kubelet) owner(c container) string { return "pod:" + c.uid() + "/" + c.inPod() }

// inPod is the container's name in its pod.
func (c container) inPod() string { return cmp.Or(c.part, "main") }

// refer names the container in the annotation, because a pod's annotations reach all its
// containers.
func (k kubelet) refer(to *container, reference string) {
	to.annotate("gpuledger.dev/grant."+to.inPod(), reference)
}

func (k kubelet) cannot(c container) string {
	if len(c.cdi) > 0 && !k.cdi {
		return "this engine ignores CRI's CDI names"
	}
	return ""
}

// uid is that of the container's pod.
func (c container) uid() string { return "uid-of-" + c.name }

func (k kubelet) run(s *site, c container) result {
	pod, r := k.pod(s, c)
	if r.Code != 0 {
		return result{r, ""}
	}
	defer s.command(crictl, "rmp", "--force", pod)
	return k.runIn(s, pod, c)
}

// pod makes the container's pod.
func (k kubelet) pod(s *site, c container) (string, rig.Result) {
	r := s.command(crictl, "runp", "--runtime", c.handler, k.podFile(s, c))
	return strings.TrimSpace(r.Stdout), r
}

// runIn runs a container in a pod.
func (k kubelet) runIn(s *site, pod string, c container) result {
	r := s.command(crictl, "create", pod, k.containerFile(s, c), k.podFile(s, c))
	if r.Code != 0 {
		return result{r, ""}
	}
	id := strings.TrimSpace(r.Stdout)
	if r := s.command(crictl, "start", id); r.Code != 0 {
		return result{r, id}
	}
	return k.wait(s, id)
}

// wait waits for the container's end and returns its output.
func (k kubelet) wait(s *site, id string) result {
	var state string
	eventually(s.T, "container "+id+" ends", func() bool {
		state = s.succeeds(crictl, "inspect", "--output", "go-template", "--template",
			"{{.status.state}} {{.status.exitCode}}", id)
		return strings.HasPrefix(state, "CONTAINER_EXITED")
	})
	r := rig.Result{}
	_, _ = fmt.Sscanf(strings.TrimPrefix(state, "CONTAINER_EXITED"), "%d", &r.Code)
	r.Stdout = s.output(id, func() string { return s.command(crictl, "logs", id).Stdout })
	return result{r, id}
}

type object = map[string]any

func (k kubelet) podFile(s *site, c container) string {
	logs := "/var/log/pods/" + c.name
	must(s.T, os.MkdirAll(logs, 0o755))
	security := object{"namespace_options": c.namespaces()}
	if c.privileged {
		security["privileged"] = true
	}
	return s.json(c.name+".pod.json", object{
		"metadata":      object{"name": c.name, "namespace": "team", "uid": c.uid(), "attempt": 0},
		"log_directory": logs, "annotations": c.annotations, "labels": c.labels(),
		"linux": object{"cgroup_parent": "/pods", "security_context": security},
	})
}

func (k kubelet) containerFile(s *site, c container) string {
	security := object{"namespace_options": c.namespaces()}
	if c.privileged {
		security["privileged"] = true
	}
	if !c.privileged {
		// CRI-O gives it only on request
		security["capabilities"] = object{"add_capabilities": []string{"MKNOD"}}
	}
	if c.readOnly {
		security["readonly_rootfs"] = true
	}
	spec := object{
		"metadata": object{"name": c.inPod(), "attempt": c.attempt}, "image": object{"image": image},
		"log_path": fmt.Sprintf("%s.%d.log", c.inPod(), c.attempt),
		"command":  []string{"/bin/sh", "-c", c.marked()}, "labels": c.labels(),
		"linux": object{"security_context": security,
			"resources": object{"memory_limit_in_bytes": 64 << 20, "cpu_shares": 512}},
	}
	spec["envs"], spec["devices"], spec["mounts"], spec["CDI_devices"] = []object{}, []object{},
		[]object{}, []object{}
	add := func(list string, o object) { spec[list] = append(spec[list].([]object), o) }
	for _, entry := range c.env {
		key, value, _ := strings.Cut(entry, "=")
		add("envs", object{"key": key, "value": value})
	}
	for _, path := range c.devices {
		add("devices", object{"host_path": path, "container_path": path, "permissions": "rwm"})
	}
	for _, b := range c.binds {
		add("mounts", object{"host_path": b.from, "container_path": b.to})
	}
	for _, name := range c.cdi {
		add("CDI_devices", object{"name": name})
	}
	return s.json(c.name+".container.json", spec)
}

// labels are the labels that a kubelet gives every container. CRI-O makes annotations of them.
func (c container) labels() object {
	return object{"io.kubernetes.pod.name": c.name, "io.kubernetes.pod.namespace": "team",
		"io.kubernetes.pod.uid": c.uid(), "io.kubernetes.container.name": c.inPod()}
}

// namespaces are a pod's, in the numbers of CRI's NamespaceMode.
func (c container) namespaces() object {
	const ofPod, ofContainer, ofNode = 0, 1, 2
	options := object{"network": ofPod, "pid": ofContainer}
	if c.hostNetwork {
		options["network"] = ofNode
	}
	if c.hostPID {
		options["pid"] = ofNode
	}
	if c.userns {
		all := []object{{"container_id": 0, "host_id": 100000, "length": 65536}}
		options["userns_options"] = object{"mode": ofPod, "uids": all, "gids": all}
	}
	return options
}

func (s *site) json(name string, v any) string {
	path := filepath.Join(s.dir, name)
	writeFile(s.T, path, string(encode(s.T, v)))
	return path
}

// useCRI points crictl at an engine.
func useCRI(t testing.TB, socket string) {
	writeFile(t, "/etc/crictl.yaml",
		fmt.Sprintf("runtime-endpoint: unix://%s\nimage-endpoint: unix://%[1]s\ntimeout: 120\n", socket))
}

// criKnows waits for images, because an engine learns of an import with a delay.
func criKnows(s *site, images ...string) {
	s.T.Helper()
	for _, name := range images {
		eventually(s.T, "CRI knows "+name,
			func() bool { return s.command(crictl, "inspecti", name).Code == 0 })
	}
}

// fakeNetwork is a CNI plugin that reports a network and makes none, because no container here
// needs one.
func fakeNetwork(t testing.TB) {
	for _, plugin := range []string{"fake", "loopback"} {
		path := "/run/e2e/cni/" + plugin
		writeFile(t, path, `#!/bin/sh
configuration=$(cat)
case $CNI_COMMAND in
  VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}' ;;
  ADD) echo "$configuration" | jq --arg name "$CNI_IFNAME" --arg namespace "$CNI_NETNS" '{cniVersion,
    interfaces: [{name: $name, sandbox: $namespace}], ips: [{version: "4", interface: 0, address: "10.88.0.2/16"}], dns: {}}' ;;
esac
`)
		must(t, os.Chmod(path, 0o755))
	}
	writeFile(t, "/etc/cni/net.d/10-fake.conflist",
		`{"cniVersion": "0.4.0", "name": "fake", "plugins": [{"type": "fake"}]}`)
}
