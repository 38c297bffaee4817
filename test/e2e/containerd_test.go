//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const containerdSocket = "/run/containerd/containerd.sock"

func containerd2(s *site) []client {
	return containerd(s, built("containerd-2/containerd"), "version = 3\n", "io.containerd.cri.v1.runtime", `
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "`+pauseImage+`"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/run/e2e/cni"]
[plugins."io.containerd.nri.v1.nri"]
  plugin_registration_timeout = "1m" # it goes on without a plugin on a machine that is slow for longer
  plugin_request_timeout = "1m"
`)
}

func containerd17(s *site) []client {
	return containerd(s, built("containerd-1.7/containerd"), "version = 2\n",
		"io.containerd.grpc.v1.cri", version2)
}

func containerd16(s *site) []client {
	path, err := exec.LookPath("containerd")
	must(s.T, err)
	return containerd(s, path, "version = 2\n", "io.containerd.grpc.v1.cri", version2)
}

const version2 = `
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/run/e2e/cni"
`

// containerdConfig makes HANDLER the default runtime of plugin CRI. The globs pass every annotation
// of a pod on, because a forged one must be harmless even with a careless configuration. A root
// without CAP_SYS_RESOURCE cannot set negative OOM scores.
const containerdConfig = `oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.internal.v1.opt"]
[plugins."CRI"]
  MORE
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."CRI".containerd]
    default_runtime_name = "HANDLER"
    [plugins."CRI".containerd.runtimes.HANDLER]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["*", "*/*"]
      container_annotations = ["*", "*/*"]
      [plugins."CRI".containerd.runtimes.HANDLER.options]
        BinaryName = "RUNTIME"
    [plugins."CRI".containerd.runtimes.PAST]
      runtime_type = "io.containerd.runc.v2"
      [plugins."CRI".containerd.runtimes.PAST.options]
        BinaryName = "BEHIND"
`

// pastHandler is a runtime handler that a pod can name and that does not call gpuledger. It stands
// for one that an administrator forgot.
const pastHandler = "forgotten"

// containerd starts a containerd and returns its two clients: ctr, and CRI through crictl.
func containerd(s *site, path, version, cri, more string) []client {
	ctr, inCRI := ctr{filepath.Join(filepath.Dir(path), "ctr"), true}, ""
	if version == "version = 2\n" {
		ctr.cdi = false
		inCRI = `sandbox_image = "` + pauseImage + `"` + "\n  enable_cdi = true"
	}
	config := strings.NewReplacer("CRI", cri, "MORE", inCRI, "HANDLER", s.entry.handler, "PAST", pastHandler,
		"RUNTIME", s.runtime(), "BEHIND", s.behind, "RUNTIME", s.runtime()).Replace(containerdConfig)
	writeFile(s.T, "/etc/containerd/config.toml", version+config+more)
	fakeNetwork(s.T)
	useCRI(s.T, containerdSocket)
	s.settled()
	s.daemon(func() bool { return s.command(ctr.path, "version").Code == 0 }, path)
	// --local: the CRI of 1.7 does not see images from the transfer service
	local := []string{}
	if strings.Contains(s.command(ctr.path, "images", "import", "--help").Stdout, "--local") {
		local = append(local, "--local")
	}
	for _, archive := range s.images {
		for _, namespace := range []string{"default", "k8s.io"} {
			s.succeeds(ctr.path,
				append(append([]string{"-n", namespace, "images", "import"}, local...), archive)...)
		}
	}
	criKnows(s, image, pauseImage)
	return []client{ctr, kubelet{cdi: s.engine.name != "containerd1.6"}}
}

// ctr is containerd's own client.
type ctr struct {
	path string
	cdi  bool // since 2.0
}

func (c ctr) name() string { return "ctr" }

func (c ctr) owner(container) string { return "" }

func (c ctr) refer(to *container, reference string) { to.annotate("gpuledger.dev/grant", reference) }

func (c ctr) cannot(what container) string {
	switch {
	case what.forged:
		return "a caller of containerd is root on the node, so no annotations are forged there"
	case len(what.cdi) > 0 && !c.cdi:
		return "this ctr knows no CDI"
	case what.userns:
		return "ctr maps users only for root file systems that it has prepared so"
	}
	return ""
}

func (c ctr) run(s *site, what container) result {
	log := filepath.Join(s.dir, "log", what.name)
	_ = os.Remove(log)
	// Not ctr's own output: on a busy machine ctr lost the output of a container that ended at
	// once.
	args := []string{"run", "--rm", "--log-uri", "file://" + log, "--runc-binary", s.runtime()}
	for _, entry := range what.env {
		args = append(args, "--env", entry)
	}
	for key, value := range what.annotations {
		args = append(args, "--annotation", key+"="+value)
	}
	for _, device := range append(what.devices, what.cdi...) {
		args = append(args, "--device", device)
	}
	for _, b := range what.binds {
		args = append(args, "--mount", "type=bind,options=rbind:rw,src="+b.from+",dst="+b.to)
	}
	for flag, wanted := range map[string]bool{"--privileged": what.privileged, "--net-host": what.hostNetwork,
		"--read-only": what.readOnly} {
		if wanted {
			args = append(args, flag)
		}
	}
	if what.hostPID {
		args = append(args, "--with-ns", "pid:/proc/1/ns/pid")
	}
	r := s.command(c.path, append(args, image, what.name, "/bin/sh", "-c", what.marked())...)
	if r.Code == 0 {
		r.Stdout = s.output(what.name, func() string { text, _ := os.ReadFile(log); return string(text) })
	}
	return result{r, what.name}
}
