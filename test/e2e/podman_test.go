//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
)

// libpod is Podman, whose users are root here.
type libpod struct{}

func podman(s *site) []client {
	// What a root without CAP_SYS_RESOURCE needs: limits that raise nothing.
	writeFile(s.T, "/etc/containers/containers.conf", `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
hooks_dir = ["/etc/containers/oci/hooks.d"]
runtime = "`+s.entry.handler+`"
[engine.runtimes]
`+s.entry.handler+` = ["`+s.runtime()+`"]
`)
	writeFile(s.T, "/etc/containers/storage.conf", "[storage]\ndriver = \"overlay\"\n"+
		"runroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n")
	writeFile(s.T, "/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	must(s.T, os.MkdirAll("/etc/containers/oci/hooks.d", 0o755))
	s.settled()
	s.succeeds("podman", "load", "--quiet", "--input", s.images[image])
	return []client{libpod{}}
}

func (libpod) name() string { return "podman" }

func (libpod) owner(container) string { return "" }

func (libpod) refer(to *container, reference string) { to.annotate("gpuledger.dev/grant", reference) }

func (libpod) cannot(container) string { return "" }

func (libpod) run(s *site, c container) result {
	idFile := filepath.Join(s.dir, c.name+".id")
	_ = os.Remove(idFile)
	args := []string{"run", "--rm", "--name", c.name, "--cidfile", idFile, "--cap-add", "MKNOD"}
	network := "none"
	if c.hostNetwork {
		network = "host"
	}
	args = append(args, "--network", network)
	for _, entry := range c.env {
		args = append(args, "--env", entry)
	}
	for key, value := range c.annotations {
		// it reads CSV
		args = append(args, "--annotation", `"`+strings.ReplaceAll(key+"="+value, `"`, `""`)+`"`)
	}
	for _, device := range append(c.devices, c.cdi...) {
		args = append(args, "--device", device)
	}
	for _, b := range c.binds {
		args = append(args, "--volume", b.from+":"+b.to)
	}
	for flag, wanted := range map[string]bool{"--privileged": c.privileged, "--pid=host": c.hostPID,
		"--read-only": c.readOnly, "--uidmap=0:100000:65536": c.userns} {
		if wanted {
			args = append(args, flag)
		}
	}
	if c.handler != "" {
		args = append([]string{"--runtime", c.handler}, args...)
	}
	r := s.command("podman", append(args, image, "/bin/sh", "-c", c.script)...)
	id, _ := os.ReadFile(idFile)
	return result{r, strings.TrimSpace(string(id))}
}
