package engines

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/kubelet"
)

// Distribution is a distribution of Kubernetes with a containerd of its own. It writes containerd's
// main file anew at each start, so configure never edits that file.
type Distribution struct {
	Name string
	Main string // the main file that containerd reads
	// a directory whose files the distribution imports by itself, whatever the main file imports
	DropIns string
	Units   []string // the services of systemd; none if the distribution watches the directory
	Runc    string   // its own runc, in a directory that nothing else searches
}

// distributions are known from their sources: k3s pkg/agent/templates and pkg/agent/containerd,
// whose code RKE2 runs; k0s pkg/component/worker/containerd; microk8s
// microk8s-resources/wrappers/run-containerd-with-args.
var distributions = []Distribution{
	rancher("k3s", "data/current/bin/runc", "k3s.service", "k3s-agent.service"),
	rancher("rke2", "bin/runc", "rke2-server.service", "rke2-agent.service"),
	{Name: "k0s", Main: "/etc/k0s/containerd.toml", DropIns: "/etc/k0s/containerd.d",
		Runc: "/var/lib/k0s/bin/runc"},
	{Name: "MicroK8s", Main: microK8s + "/containerd.toml",
		Units: []string{"snap.microk8s.daemon-containerd.service"},
		Runc:  "/snap/microk8s/current/bin/runc"},
}

// microK8s is the directory of MicroK8s' arguments and templates.
const microK8s = "/var/snap/microk8s/current/args"

func rancher(name, runc string, units ...string) Distribution {
	dir := "/var/lib/rancher/" + name
	return Distribution{Name: name, Main: dir + "/agent/etc/containerd/config.toml", Units: units,
		Runc: filepath.Join(dir, runc)}
}

// Distribution is the one whose containerd is configured; nil for a containerd of the node itself.
func (in Installation) Distribution() *Distribution {
	for i := range distributions {
		if in.Engine == grant.Containerd && distributions[i].Main == in.MainFile() {
			return &distributions[i]
		}
	}
	return nil
}

// unit is the first active one of its units, else the first one. It is "" if none needs a restart.
func (distribution *Distribution) unit() string {
	for _, unit := range distribution.Units {
		if _, err := os.Lstat("/run/systemd/units/invocation:" + unit); err == nil {
			return unit
		}
	}
	return strings.Join(distribution.Units[:min(1, len(distribution.Units))], "")
}

// FindFile is the engine's main file. It is the installation's, else the recorded one, else that of
// the only distribution that is installed, else the one that the node's own containerd was started
// with. It is "" for the engine's usual file. A distribution that was removed may have left its
// file: none counts where the kubelet uses the node's own containerd.
func (in Installation) FindFile(recorded string) (string, error) {
	if in.File != "" || in.Engine != grant.Containerd {
		return cmp.Or(in.File, recorded), nil
	}
	var names, mains []string
	for _, distribution := range distributions {
		if in.System.Exists(distribution.Main) {
			names, mains = append(names, distribution.Name), append(mains, distribution.Main)
		}
	}
	if (recorded == "" && len(mains) > 0 || slices.Contains(mains, recorded)) && in.servesKubelet() {
		file, _ := in.StartedWith()
		return cmp.Or(file, in.Of().File), nil
	}
	if recorded != "" {
		return recorded, nil
	}
	if len(mains) > 1 {
		return mains[0],
			fmt.Errorf("cannot tell which containerd is meant: %s are both here; name its file by --file: %s",
				strings.Join(names, " and "), strings.Join(mains, ", "))
	}
	if len(mains) == 0 {
		file, _ := in.StartedWith()
		return file, nil
	}
	return mains[0], nil
}

// StartedWith is the main file that the node's own containerd was started with; "" for the usual
// one. runs is false if it does not run. The process is that which listens at the node's own
// socket: those of Docker and of the distributions have the same name, and other sockets.
func (in Installation) StartedWith() (file string, runs bool) {
	if in.System.Root != "/" || in.Engine != grant.Containerd {
		return "", false
	}
	pid, _, err := host.Listener(ownSocket)
	if err != nil || !isOurs(processDir(pid)) {
		return "", false
	}
	if holds, err := host.Default().HoldsListener(pid, filepath.Base(ownSocket)); err == nil && !holds {
		return "", false // it has ended, and its number is another's
	}
	if file = readBy(pid); filepath.IsAbs(file) && !sameFile(file, in.Of().File) {
		return file, true
	}
	return "", true
}

// servesKubelet reports whether the node's kubelet uses the node's own containerd.
func (in Installation) servesKubelet() bool {
	if in.System.Root != "/" || !in.System.Exists(ownSocket) {
		return false
	}
	endpoint := strings.TrimPrefix(kubelet.Endpoint(isOurs), "unix://")
	return strings.TrimPrefix(endpoint, "/var") == ownSocket
}

// ownSocket is that of the node's own containerd, also below /var.
var ownSocket = "/run/containerd/containerd.sock"
