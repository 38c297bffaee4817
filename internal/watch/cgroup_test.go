package watch

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

var (
	id0 = strings.Repeat("0123456789abcdef", 4)
	id1 = strings.Repeat("f", 64)
	uid = "7a1c3c1e-0b5e-4a8e-9f0c-1d2e3f405162"
)

func TestParseCgroup(t *testing.T) {
	slice := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" +
		strings.ReplaceAll(uid, "-", "_") + ".slice/"
	static := strings.Repeat("ab", 16)
	for name, c := range map[string]struct {
		path string
		want CgroupInfo
	}{
		"containerd, systemd": {slice + "cri-containerd-" + id0 + ".scope",
			CgroupInfo{grant.Containerd, id0, uid, slice + "cri-containerd-" + id0 + ".scope"}},
		"containerd, cgroupfs": {"/kubepods/besteffort/pod" + uid + "/" + id0,
			CgroupInfo{"", id0, uid, "/kubepods/besteffort/pod" + uid + "/" + id0}},
		"guaranteed pod": {"/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") +
			".slice/crio-" + id0 + ".scope", CgroupInfo{grant.CRIO, id0, uid, "/kubepods.slice/kubepods-pod" +
			strings.ReplaceAll(uid, "-", "_") + ".slice/crio-" + id0 + ".scope"}},
		"static pod": {"/kubepods/burstable/pod" + static + "/" + id0,
			CgroupInfo{"", id0, static, "/kubepods/burstable/pod" + static + "/" + id0}},
		"CRI-O, cgroupfs": {"/kubepods/pod" + uid + "/crio-" + id0,
			CgroupInfo{grant.CRIO, id0, uid, "/kubepods/pod" + uid + "/crio-" + id0}},
		"CRI-O's conmon": {slice + "crio-conmon-" + id0 + ".scope", CgroupInfo{Pod: uid}},
		"Podman": {"/machine.slice/libpod-" + id0 + ".scope/container",
			CgroupInfo{grant.Podman, id0, "", "/machine.slice/libpod-" + id0 + ".scope"}},
		"Podman, in a pod": {"/machine.slice/machine-libpod_pod_" + id1 + ".slice/libpod-" + id0 +
			".scope", CgroupInfo{grant.Podman, id0, "", "/machine.slice/machine-libpod_pod_" + id1 +
			".slice/libpod-" + id0 + ".scope"}},
		"Podman, cgroupfs": {"/libpod_parent/libpod-" + id0,
			CgroupInfo{grant.Podman, id0, "", "/libpod_parent/libpod-" + id0}},
		"Podman's conmon": {"/machine.slice/libpod-conmon-" + id0 + ".scope", CgroupInfo{}},
		"Docker, systemd": {"/system.slice/docker-" + id0 + ".scope",
			CgroupInfo{grant.Docker, id0, "", "/system.slice/docker-" + id0 + ".scope"}},
		"Docker, cgroupfs": {"/docker/" + id0, CgroupInfo{grant.Docker, id0, "", "/docker/" + id0}},
		"Docker in Docker": {"/docker/" + id0 + "/docker/" + id1,
			CgroupInfo{grant.Docker, id0, "", "/docker/" + id0}},
		"systemd in a container": {"/docker/" + id0 + "/system.slice/ssh.service",
			CgroupInfo{grant.Docker, id0, "", "/docker/" + id0}},
		"kind": {"/docker/" + id1 + "/kubelet" + slice + "cri-containerd-" + id0 +
			".scope", CgroupInfo{grant.Docker, id1, "", "/docker/" + id1}},
		"CRI-O with crun": {slice + "crio-" + id0 + ".scope/container",
			CgroupInfo{grant.CRIO, id0, uid, slice + "crio-" + id0 + ".scope"}},
		"Podman below a service": {"/system.slice/train.service/libpod-payload-" + id0,
			CgroupInfo{grant.Podman, id0, "", "/system.slice/train.service/libpod-payload-" + id0}},
		"Podman without root": {"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id0 +
			".scope/container",
			CgroupInfo{grant.Podman, id0, "",
				"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id0 + ".scope"}},
		"containerd, half of systemd": {"/system.slice/containerd.service/" +
			strings.TrimSuffix(path.Base(slice), "/") + ":cri-containerd:" + id0,
			CgroupInfo{grant.Containerd, id0, uid, "/system.slice/containerd.service/" + path.Base(slice) +
				":cri-containerd:" + id0}},
		"Docker, half of systemd": {"/system.slice:docker:" + id0,
			CgroupInfo{grant.Docker, id0, "", "/system.slice:docker:" + id0}},
		"a pod's cgroup with colons": {"/a:b:c", CgroupInfo{}},
		"nerdctl, cgroupfs":          {"/default/" + id0, CgroupInfo{"", id0, "", "/default/" + id0}},
		"ctr":                        {"/default/train", CgroupInfo{}},
		"LXC":                        {"/lxc.payload.box", CgroupInfo{}},
		"nerdctl": {"/system.slice/nerdctl-" + id0 + ".scope",
			CgroupInfo{grant.Containerd, id0, "", "/system.slice/nerdctl-" + id0 + ".scope"}},
		"a pod's own cgroup": {strings.TrimSuffix(slice, "/"), CgroupInfo{Pod: uid}},
		"a session":          {"/user.slice/user-1000.slice/session-2.scope", CgroupInfo{}},
		"a service":          {"/system.slice/docker.service", CgroupInfo{}},
		"the root":           {"/", CgroupInfo{}},
		"nothing":            {"", CgroupInfo{}},
		"an id too short":    {"/docker/" + id0[1:], CgroupInfo{}},
		"no hexadecimal id":  {"/docker/" + strings.Repeat("g", 64), CgroupInfo{}},
		"a pod that is none": {"/podium/podcasts", CgroupInfo{}},
	} {
		if got := ParseCgroup(c.path); got != c.want {
			t.Errorf("%s: ParseCgroup(%q)\n got %+v\nwant %+v", name, c.path, got, c.want)
		}
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add("/docker/" + id0 + "/x")
	f.Add("//" + id0)
	f.Fuzz(func(t *testing.T, path string) {
		if p := ParseCgroup(path); p.Container != "" && (!host.Within(filepath.Clean("/"+path), p.Cgroup) ||
			!strings.HasSuffix(strings.TrimSuffix(p.Cgroup, ".scope"), p.Container)) {
			t.Errorf("ParseCgroup(%q) is %+v", path, p)
		}
	})
}
