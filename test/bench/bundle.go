package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// syscalls are the system calls of x86-64 that an unprivileged container may make under the
// engines' default profile.
//
//go:embed syscalls.txt
var syscalls string

// spec is the spec that a Kubernetes node's engine writes for a container without a GPU, 10 to 20
// KB of it. Its size and its seccomp profile determine the time for a wrapper's JSON and for runc's
// own work. It raises no limit and sets no negative oom_score_adj, so it runs under a root without
// CAP_SYS_RESOURCE.
func (r *rig) spec() *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			User:            specs.User{UID: 0, GID: 0, AdditionalGids: []uint32{0, 10}},
			Args:            []string{"/bin/sleep", "3600"},
			Env:             environment(),
			Cwd:             "/",
			Capabilities:    capabilities(),
			NoNewPrivileges: true,
		},
		Root:        &specs.Root{}, // bundle sets the path
		Mounts:      r.mounts(),
		Annotations: annotations(),
		Linux: &specs.Linux{
			Resources:   r.resources(),
			CgroupsPath: "/" + r.cgroup + "/" + containerID,
			Namespaces:  r.namespaces(),
			Seccomp:     seccomp(),
			MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys",
				"/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
				"/sys/devices/virtual/powercap"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func environment() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=train-0",
		"LANG=C.UTF-8"}
	// What the kubelet adds for each service of the namespace.
	for i, service := range []string{"KUBERNETES", "PROMETHEUS", "REGISTRY", "SCHEDULER",
		"POSTGRES", "REDIS"} {
		address := fmt.Sprintf("10.96.0.%d", i+1)
		env = append(env, service+"_SERVICE_HOST="+address, service+"_SERVICE_PORT=443",
			service+"_SERVICE_PORT_HTTPS=443",
			service+"_PORT=tcp://"+address+":443", service+"_PORT_443_TCP=tcp://"+address+":443",
			service+"_PORT_443_TCP_PROTO=tcp",
			service+"_PORT_443_TCP_PORT=443", service+"_PORT_443_TCP_ADDR="+address)
	}
	return env
}

func annotations() map[string]string {
	return map[string]string{
		"io.kubernetes.cri.container-name":    "train",
		"io.kubernetes.cri.container-type":    "container",
		"io.kubernetes.cri.image-name":        "registry.example.com/research/train:2026.11",
		"io.kubernetes.cri.sandbox-id":        strings.Repeat("0123456789abcdef", 4),
		"io.kubernetes.cri.sandbox-name":      "train-0",
		"io.kubernetes.cri.sandbox-namespace": "research",
		"io.kubernetes.cri.sandbox-uid":       "6f1e2c1c-8a0b-4a5e-9d5c-2f6f8f0f9a11",
	}
}

func capabilities() *specs.LinuxCapabilities {
	names := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
		"CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}

func (r *rig) mounts() []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
			Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs",
			Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
	}
	for _, file := range podFiles {
		mounts = append(mounts, specs.Mount{Destination: file, Type: "bind", Source: r.path("pod", file),
			Options: []string{"rbind", "rprivate", "rw"}})
	}
	return mounts
}

// podFiles are the files that the kubelet binds into every container.
var podFiles = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
	"/var/run/secrets/kubernetes.io/serviceaccount/token",
	"/dev/termination-log"}

func (r *rig) writePodFiles() error {
	for _, file := range podFiles {
		path := r.path("pod", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) resources() *specs.LinuxResources {
	resources := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if r.limits {
		shares, memory, pids := uint64(512), int64(1<<30), int64(4096)
		resources.CPU = &specs.LinuxCPU{Shares: &shares}
		resources.Memory = &specs.LinuxMemory{Limit: &memory}
		resources.Pids = &specs.LinuxPids{Limit: &pids}
	}
	return resources
}

func (r *rig) namespaces() []specs.LinuxNamespace {
	namespaces := []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}}
	for kind, file := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts"} {
		namespaces = append(namespaces, specs.LinuxNamespace{
			Type: kind, Path: fmt.Sprintf("/proc/%d/ns/%s", r.pod.Process.Pid, file)})
	}
	return namespaces
}

func seccomp() *specs.LinuxSeccomp {
	denied, noClone3 := uint(1), uint(38) // EPERM; ENOSYS lets libc fall back to clone
	rules := []specs.LinuxSyscall{
		{Names: strings.Fields(syscalls), Action: specs.ActAllow},
		// No new namespaces.
		{Names: []string{"clone"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{
				{Index: 0, Value: 0x7e020000, ValueTwo: 0, Op: specs.OpMaskedEqual}}},
		{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &noClone3},
	}
	for _, persona := range []uint64{0, 8, 0x20000, 0x20008, 0xffffffff} {
		rules = append(rules, specs.LinuxSyscall{Names: []string{"personality"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Value: persona, Op: specs.OpEqualTo}}})
	}
	return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &denied,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}, Syscalls: rules}
}

// writeRootfs makes a root file system of only busybox, with the directories on which the spec
// mounts.
func writeRootfs(dir string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("cannot find busybox: %w", err)
	}
	for _, folder := range []string{"bin", "dev", "etc", "proc", "sys", "tmp", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), data, 0o755); err != nil {
		return err
	}
	for _, applet := range []string{"sh", "sleep"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return err
		}
	}
	return nil
}
