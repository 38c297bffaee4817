package deviceplugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// podsIn returns the UIDs of a node's pods, by the cgroups that its kubelet makes for them below a
// tree. The kubelet's own directories of pods would show the same, but other pods' secrets are
// mounted there. It returns nil if the kubelet has no cgroups, as with --cgroups-per-qos=false, or
// if they cannot be read.
func podsIn(tree string) map[string]bool {
	var pods map[string]bool
	for _, top := range kubepods(tree, rootDepth) {
		if pods == nil {
			pods = map[string]bool{}
		}
		if err := addPods(pods, top, qosDepth); err != nil {
			return nil
		}
	}
	return pods
}

// ofAPIServer reports whether the API server has sent one of the pods. The kubelet makes the UID of
// a static pod, a hash without "-" (k8s.io/kubernetes, pkg/kubelet/config, applyDefaults).
func ofAPIServer(pods map[string]bool) bool {
	for uid := range pods {
		if strings.Contains(uid, "-") {
			return true
		}
	}
	return false
}

const (
	// Levels down to the kubelet's cgroup: a controller's (cgroup v1), and those of its cgroupRoot.
	rootDepth = 4
	// Levels from there to a pod's cgroup: kubepods/burstable/podUID, or kubepods/podUID.
	qosDepth = 2
)

// kubepods returns the cgroups in which the kubelet has its pods: kubepods, kubepods.slice, and,
// below a cgroup root such as kubelet, kubelet-kubepods.slice.
func kubepods(dir string, depth int) []string {
	var found []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path, name := filepath.Join(dir, e.Name()), strings.TrimSuffix(e.Name(), ".slice")
		switch {
		case !e.IsDir():
		case name == "kubepods" || strings.HasSuffix(name, "-kubepods"):
			found = append(found, path)
		case depth > 1:
			found = append(found, kubepods(path, depth-1)...)
		}
	}
	return found
}

// addPods adds the UIDs of pods. The directory is podUID, or with systemd
// kubepods-burstable-podUID.slice with "_" for each "-".
func addPods(pods map[string]bool, dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) { // it has just ended
		return nil
	}
	for _, e := range entries {
		name, slice := strings.CutSuffix(e.Name(), ".slice")
		if slice {
			name = name[strings.LastIndex(name, "-")+1:]
		}
		uid, pod := strings.CutPrefix(name, "pod")
		switch {
		case !e.IsDir():
		case pod:
			pods[strings.ReplaceAll(uid, "_", "-")] = true
		case depth > 1:
			err = errors.Join(err, addPods(pods, filepath.Join(dir, e.Name()), depth-1))
		}
	}
	return err
}
