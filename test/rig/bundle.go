package rig

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Bundle is a container's bundle: busybox in a root file system and a spec.
type Bundle struct {
	Node *Node
	Dir  string
	ID   string
}

// Edit changes the spec of a new bundle.
type Edit func(*specs.Spec)

// Bundle makes a bundle for a container of that id. Its spec is an ordinary unprivileged
// container's.
func (n *Node) Bundle(id string, edits ...Edit) *Bundle {
	n.T.Helper()
	b := &Bundle{Node: n, Dir: filepath.Join(n.Dir, "bundles", id), ID: id}
	for _, dir := range []string{"bin", "dev", "proc", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(b.Dir, "rootfs", dir), 0o755); err != nil {
			n.T.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		n.T.Fatal(err)
	}
	if !exists(filepath.Join(b.Dir, "rootfs/bin/busybox")) {
		copyFile(n, busybox, filepath.Join(b.Dir, "rootfs/bin/busybox"))
	}
	spec := ordinary(n.cgroup() + "/" + id)
	for _, edit := range edits {
		edit(&spec)
	}
	b.WriteSpec(spec)
	return b
}

func copyFile(n *Node, from, to string) {
	data, err := os.ReadFile(from)
	if err == nil {
		err = writeFile(to, data, 0o755)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// ordinary is the spec of an unprivileged container that sleeps, with the device rules that engines
// write.
func ordinary(cgroup string) specs.Spec {
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID"}
	return specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			Args: []string{"/bin/busybox", "sleep", "1000"}, Cwd: "/", Env: []string{"PATH=/bin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Root:     &specs.Root{Path: "rootfs"},
		Hostname: "test",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}},
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// WriteSpec writes the spec into the bundle as an engine would.
func (b *Bundle) WriteSpec(spec specs.Spec) {
	b.Node.T.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		b.Node.T.Fatal(err)
	}
	b.WriteConfig(data)
}

// WriteConfig replaces config.json by any bytes.
func (b *Bundle) WriteConfig(data []byte) {
	b.Node.T.Helper()
	if err := os.WriteFile(filepath.Join(b.Dir, "config.json"), data, 0o644); err != nil {
		b.Node.T.Fatal(err)
	}
}

// Config is the present config.json.
func (b *Bundle) Config() []byte {
	b.Node.T.Helper()
	data, err := os.ReadFile(filepath.Join(b.Dir, "config.json"))
	if err != nil {
		b.Node.T.Fatal(err)
	}
	return data
}

// Create, Start, Run, Delete and Kill call the wrapper as an engine would.
func (b *Bundle) Create() Result { return Run(b.Node.Wrapper("create", "--bundle", b.Dir, b.ID)) }
func (b *Bundle) Start() Result  { return Run(b.Node.Wrapper("start", b.ID)) }
func (b *Bundle) Run() Result    { return Run(b.Node.Wrapper("run", "--bundle", b.Dir, b.ID)) }
func (b *Bundle) Delete() Result { return Run(b.Node.Wrapper("delete", "--force", b.ID)) }
func (b *Bundle) Kill() Result   { return Run(b.Node.Wrapper("kill", b.ID, "KILL")) }

// Explain runs `gpuledger explain` on the bundle.
func (b *Bundle) Explain(args ...string) Result {
	b.Node.T.Helper()
	return b.Node.CLI(append([]string{"explain", "--bundle", b.Dir}, args...)...)
}

// Env adds to the container's environment.
func Env(entries ...string) Edit {
	return func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, entries...) }
}

// Annotation sets an annotation.
func Annotation(key, value string) Edit {
	return func(s *specs.Spec) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[key] = value
	}
}

// Shell makes the container run a script of busybox's shell.
func Shell(script string) Edit {
	return func(s *specs.Spec) { s.Process.Args = []string{"/bin/busybox", "sh", "-c", script} }
}

// Privileged gives the container what engines give a privileged one.
func Privileged(s *specs.Spec) {
	s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	caps := append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN", "CAP_NET_ADMIN")
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// Identity sets the annotations by which containerd identifies a container of a pod.
func Identity(uid, namespace, pod, container string) Edit {
	return func(s *specs.Spec) {
		for key, value := range map[string]string{"container-type": "container", "sandbox-uid": uid,
			"sandbox-namespace": namespace, "sandbox-name": pod, "container-name": container} {
			Annotation("io.kubernetes.cri."+key, value)(s)
		}
	}
}

// CgroupPath is the container's cgroup, below the root of each hierarchy.
func (b *Bundle) CgroupPath() string { return b.Node.cgroup() + "/" + b.ID }

// Cgroup reads a file of the container's cgroup, on v1 of that controller.
func (b *Bundle) Cgroup(controller, file string) string {
	b.Node.T.Helper()
	root := "/sys/fs/cgroup"
	if exists(filepath.Join(root, controller)) {
		root = filepath.Join(root, controller)
	}
	data, err := os.ReadFile(filepath.Join(root, b.Node.cgroup(), b.ID, file))
	if err != nil {
		b.Node.T.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}
