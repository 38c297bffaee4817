package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/kubelet"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// auto as the engine's name is the engine that the node's kubelet uses.
const auto = "auto"

// sockets are where a kubelet's engines listen, by the engine's name. k3s and RKE2 have one path.
var sockets = []struct{ path, engine string }{
	{"/run/containerd/containerd.sock", "containerd"},
	{"/run/k3s/containerd/containerd.sock", "containerd"},
	{"/run/k0s/containerd.sock", "containerd"},
	{"/var/snap/microk8s/common/run/containerd.sock", "containerd"},
	{"/run/crio/crio.sock", "crio"},
	{"/run/cri-dockerd.sock", "docker"},
}

// foundEngine is the engine of the node's kubelet: the one that its endpoint names, or the only one
// that has a socket. The kubelet of k3s is no process of that name.
func foundEngine() (string, error) {
	if endpoint := kubelet.Endpoint(isNodes); endpoint != "" {
		for _, s := range sockets {
			if strings.HasSuffix(endpoint, filepath.Base(s.path)) && exists(s.path) {
				return s.engine, nil
			}
		}
	}
	var found []string
	for _, s := range sockets {
		if exists(s.path) && !slices.Contains(found, s.engine) {
			found = append(found, s.engine)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("cannot find the engine of this node: there is no socket of containerd, " +
			"CRI-O or cri-dockerd; name the engine (--engine=containerd|crio|docker)")
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("cannot tell which engine the kubelet of this node uses: there are sockets of %s; "+
		"name the engine (--engine=containerd|crio|docker)", strings.Join(found, " and "))
}

// isNodes reports whether a process is root's, and has the mount, pid and user namespaces of
// process 1.
func isNodes(process string) bool {
	if !host.IsRoots(process) {
		return false
	}
	for _, kind := range []string{"mnt", "pid", "user"} {
		own, err := os.Readlink(filepath.Join(process, "ns", kind))
		if first, bad := os.Readlink("/proc/1/ns/" + kind); err != nil || bad != nil || own != first {
			return false
		}
	}
	return true
}

// configured are the engines whose files gpuledger has changed, and the kubelet's, which may have
// to read an undo.
func configured() (engines []string) {
	p, _ := policy.Load(configFile) // in a broken one the default directory is as good a guess as any
	records, _ := filepath.Glob(filepath.Join(p.StateDir, "configure/*/record.json"))
	for _, record := range records {
		engines = append(engines, filepath.Base(filepath.Dir(record)))
	}
	if engine, err := foundEngine(); err == nil && !slices.Contains(engines, engine) {
		engines = append(engines, engine)
	}
	return engines
}
