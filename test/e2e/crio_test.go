//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const crioSocket = "/run/crio/crio.sock"

// crioConfig has one runtime only. It has no allowed_annotations, because an unknown key there
// drops the whole runtime. The monitor drops the engine's environment; monitor_env lists what it
// passes on.
const crioConfig = `[crio]
storage_driver = "overlay"
version_file_persist = ""
[crio.api]
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "%[1]s"
cgroup_manager = "cgroupfs"
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
hooks_dir = ["/etc/containers/oci/hooks.d"]
pinns_path = "%[2]s"
apparmor_profile = "unconfined"
selinux = false
[crio.runtime.runtimes.%[1]s]
runtime_path = "%[4]s"
runtime_type = "oci"
runtime_root = "/run/runc"
monitor_path = "%[3]s"
monitor_cgroup = "pod"
monitor_env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
[crio.image]
pause_image = "` + pauseImage + `"
pause_command = "/bin/sh"
signature_policy = "/etc/containers/policy.json"
[crio.network]
plugin_dirs = ["/run/e2e/cni"]
[crio.nri]
enable_nri = true
nri_plugin_registration_timeout = "1m"
nri_plugin_request_timeout = "1m"
`

// crio starts CRI-O. It has no client of its own but CRI, and loads images through Podman's
// storage, which is its own.
func crio(s *site) []client {
	conmon, err := exec.LookPath("conmon")
	must(s.T, err)
	writeFile(s.T, "/etc/crio/crio.conf", fmt.Sprintf(crioConfig, s.entry.handler, built("crio/pinns"),
		conmon, s.runtime()))
	writeFile(s.T, "/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	writeFile(s.T, "/etc/containers/oci/hooks.d/README", "")
	must(s.T, os.MkdirAll("/etc/crio/crio.conf.d", 0o755))
	fakeNetwork(s.T)
	useCRI(s.T, crioSocket)
	for _, archive := range s.images {
		s.succeeds("podman",
			strings.Fields("--root /var/lib/containers/storage --runroot /run/containers/storage "+
				"--storage-driver overlay --events-backend file load --quiet --input "+archive)...)
	}
	s.settled()
	s.daemon(func() bool { return s.command(crictl, "version").Code == 0 }, built("crio/crio"), "--config",
		"/etc/crio/crio.conf", "--config-dir", "/etc/crio/crio.conf.d")
	criKnows(s, image, pauseImage)
	return []client{kubelet{cdi: true}}
}
