package watch

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// CgroupInfo is what the path of a cgroup says about the processes in it.
type CgroupInfo struct {
	Engine    grant.Engine // "" if the path does not say
	Container string       // id; "" if no engine makes such paths
	Pod       string       // UID
	Cgroup    string       // the container's own, from the hierarchy's root
}

// ParseCgroup reads a path as engines make them, on cgroup v1 and v2, under systemd and without it:
//
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7a1c_….slice/cri-containerd-ID.scope
//	/kubepods/burstable/pod7a1c-…/ID      (or crio-ID)
//	/machine.slice/libpod-ID.scope/container
//	/system.slice/docker-ID.scope, /docker/ID
//	/system.slice/containerd.service/kubepods-burstable-pod7a1c_….slice:cri-containerd:ID (a runtime that
//	learned of systemd from its engine and not from its options takes the three words for a path)
//
// Of containers within a container it is the outer one: its engine is the node's.
func ParseCgroup(path string) CgroupInfo {
	var p CgroupInfo
	end, parent := 0, ""
	path = filepath.Clean("/" + path)
	for name := range strings.SplitSeq(path[1:], "/") {
		end += 1 + len(name)
		if words := strings.Split(name, ":"); len(words) == 3 {
			parent, name = words[0], words[1]+"-"+words[2]
			p.Pod = cmp.Or(podOf(parent), p.Pod)
		}
		if uid := podOf(name); uid != "" {
			p.Pod = uid
		}
		if engine, id := containerOf(name, parent); id != "" {
			p.Engine, p.Container, p.Cgroup = engine, id, path[:end]
			return p
		}
		parent = name
	}
	return p
}

// prefixes are what engines put before a container's id.
var prefixes = []struct {
	prefix string
	engine grant.Engine
}{{"cri-containerd-", grant.Containerd}, {"nerdctl-", grant.Containerd}, {"crio-", grant.CRIO},
	{"libpod-", grant.Podman}, {"libpod-payload-", grant.Podman}, {"docker-", grant.Docker}}

// containerOf reads one name of a path. Helpers of engines (crio-conmon-ID, libpod-conmon-ID) are
// processes of the node.
func containerOf(name, parent string) (grant.Engine, string) {
	name = strings.TrimSuffix(name, ".scope")
	for _, p := range prefixes {
		if id, found := strings.CutPrefix(name, p.prefix); found && isID(id) {
			return p.engine, id
		}
	}
	switch {
	case !isID(name):
		return "", ""
	case parent == "docker":
		return grant.Docker, name
	}
	return "", name
}

// idDigits is the length of the ids of all engines.
const idDigits = 64

func isID(text string) bool { return len(text) == idDigits && isHex(text) }

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

// podOf is the UID in the name that the kubelet gives a pod's cgroup. The UID of a static pod is a
// hash without hyphens.
func podOf(name string) string {
	if i := strings.LastIndex(name, "-pod"); strings.HasPrefix(name, "kubepods") &&
		strings.HasSuffix(name, ".slice") && i > 0 {
		name = strings.ReplaceAll(strings.TrimSuffix(name[i+1:], ".slice"), "_", "-")
	}
	uid, found := strings.CutPrefix(name, "pod")
	if found && len(uid) >= 32 && len(uid) <= 36 && isHex(strings.ReplaceAll(uid, "-", "")) {
		return uid
	}
	return ""
}
