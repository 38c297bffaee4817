package doctor

import (
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// kubeletDirs are the kubelet's directories of usual distributions: kubeadm and k3s, k0s, MicroK8s.
var kubeletDirs = []string{"var/lib/kubelet", "var/lib/k0s/kubelet",
	"var/snap/microk8s/common/var/lib/kubelet"}

// pluginSockets match the sockets of programs that offer NVIDIA's GPUs to a kubelet: NVIDIA's
// device plugin and those derived from it (HAMi), and NVIDIA's driver for dynamic resource
// allocation.
var pluginSockets = []string{"device-plugins/nvidia*.sock", "plugins/gpu.nvidia.com/*.sock"}

// pluginsBelow returns the sockets below root on which such a program listens. A program that has
// ended leaves its socket.
func pluginsBelow(root string) (list []string) {
	for _, dir := range kubeletDirs {
		for _, pattern := range pluginSockets {
			names, _ := filepath.Glob(filepath.Join(root, dir, pattern))
			for _, name := range names {
				conn, err := net.DialTimeout("unix", name, time.Second)
				if err != nil {
					continue
				}
				conn.Close()
				list = append(list, name)
			}
		}
	}
	return list
}

// plugins checks that no other program offers the node's GPUs to its kubelet.
func plugins(f Facts) []Line {
	if len(f.Plugins) == 0 {
		return []Line{{Status: OK, Message: "no other program offers this node's GPUs to a kubelet"}}
	}
	line := Line{Status: Warning, Message: "another program offers this node's GPUs to the kubelet, at " +
		strings.Join(f.Plugins, ", ") + ": the ledger does not know what it gives out",
		Hint: "switch it off for this node (docs/nvidia.md)"}
	if f.Mode == grant.Enforce {
		line.Status = Problem
		line.Message += ", so its pods are refused"
	}
	return []Line{line}
}
