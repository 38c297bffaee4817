package hostpath

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// busyNode is the list of mounts of a node with so many: its own, and of each pod a token, shared
// memory, a network namespace, a root file system of each of two containers and so many subPaths of
// a volume on the node's disk.
func busyNode(mounts, subPaths int) []host.Mount {
	disk := unix.Mkdev(254, 1)
	list := []host.Mount{{ID: 1, Device: disk, Root: "/", Point: "/"}}
	add := func(parent, device uint64, root, point string) uint64 {
		id := uint64(len(list) + 1)
		list = append(list, host.Mount{ID: id, Parent: parent, Device: device, Root: root, Point: point})
		return id
	}
	own := func() uint64 { return unix.Mkdev(0, uint32(100+len(list))) }
	add(1, own(), "/", "/proc")
	add(1, own(), "/", "/sys")
	add(1, own(), "/", "/dev")
	run := add(1, own(), "/", "/run")
	for _, point := range []string{"/run/lock", "/run/user/0", "/run/gpuledger/limits"} {
		add(run, own(), "/", point)
	}
	for i := 0; len(list) < mounts; i++ {
		pod := fmt.Sprintf("/var/lib/kubelet/pods/%08d-0000-4000-8000-000000000000", i)
		add(1, own(), "/", pod+"/volumes/kubernetes.io~projected/kube-api-access-00000")
		add(run, own(), "/", fmt.Sprintf("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/%064d/shm", i))
		add(run, unix.Mkdev(0, 4), fmt.Sprintf("net:[%d]", 4026532000+i),
			fmt.Sprintf("/run/netns/cni-%08d-0000-4000-8000-000000000000", i))
		for c := range 2 {
			const task = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/%032d%032d/rootfs"
			add(run, own(), "/", fmt.Sprintf(task, c, i))
		}
		for n := range subPaths {
			add(1, disk, fmt.Sprintf("%s/volumes/kubernetes.io~empty-dir/data/%d", pod, n),
				fmt.Sprintf("%s/volume-subpaths/data/main/%d", pod, n))
		}
	}
	return list[:mounts]
}

// BenchmarkAliases is what a create pays, beside the reading of the list, for a subPath and for all
// of the kubelet's directory, as the plugins of storage mount it.
func BenchmarkAliases(b *testing.B) {
	for _, mounts := range []int{330, 2000, 10000} {
		for _, subPaths := range []int{1, 20} {
			list := busyNode(mounts, subPaths)
			isSubPath := func(m host.Mount) bool { return strings.Contains(m.Point, "volume-subpaths") }
			one := list[slices.IndexFunc(list, isSubPath)].Point
			for _, source := range []string{one, "/var/lib/kubelet"} {
				b.Run(fmt.Sprintf("%s/%d/%d", filepath.Base(source), mounts, subPaths), func(b *testing.B) {
					for b.Loop() {
						p := Place{Exists: true, ResolvedFile: host.ResolvedFile{Path: source}}
						newMountTable(list).aliases(p, source != one)
					}
				})
			}
		}
	}
}
