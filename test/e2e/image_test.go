//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// archives makes the images, by name, as archives that every engine loads. No registry is reachable
// or needed. more are programs for the layer, by name.
func archives(t *testing.T, dir string, more map[string]string) map[string]string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	layer := busyboxLayer(t, more)
	paths := map[string]string{image: filepath.Join(dir, "busybox.tar"),
		pauseImage: filepath.Join(dir, "pause.tar"), webImage: filepath.Join(dir, "web.tar")}
	must(t, os.WriteFile(paths[image], archive(t, image, layer, nil), 0o644),
		os.WriteFile(paths[pauseImage], archive(t, pauseImage, layer, pause), 0o644),
		os.WriteFile(paths[webImage], archive(t, webImage, layer, web), 0o644))
	return paths
}

// pause waits until it is ended by a signal.
var pause = []string{"/bin/sh", "-c", "trap exit TERM INT; while :; do sleep 1000 & wait; done"}

// web serves HTTP on the usual port.
var web = []string{"httpd", "-f", "-p", "80"}

// archive is an image of one layer, in the form of `docker save`.
func archive(t *testing.T, name string, layer []byte, entrypoint []string) []byte {
	t.Helper()
	type object = map[string]any
	id := fmt.Sprintf("%x", sha256.Sum256(layer))
	config := encode(t, object{"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Env": []string{"PATH=/bin"}, "Entrypoint": entrypoint},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + id}}})
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest := encode(t, []object{
		{"Config": configName, "RepoTags": []string{name}, "Layers": []string{id + "/layer.tar"}}})
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put(t, w, tar.Header{Name: "manifest.json", Mode: 0o644}, manifest)
	put(t, w, tar.Header{Name: configName, Mode: 0o644}, config)
	put(t, w, tar.Header{Name: id + "/layer.tar", Mode: 0o644}, layer)
	must(t, w.Close())
	return out.Bytes()
}

// busyboxLayer is a root file system with nothing but busybox and these programs.
func busyboxLayer(t *testing.T, more map[string]string) []byte {
	t.Helper()
	path, err := exec.LookPath("busybox")
	must(t, err)
	busybox, err := os.ReadFile(path)
	must(t, err)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range []string{"bin", "dev", "etc", "mnt", "proc", "sys"} {
		put(t, w, tar.Header{Name: dir + "/", Mode: 0o755, Typeflag: tar.TypeDir}, nil)
	}
	put(t, w, tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}, nil)
	put(t, w, tar.Header{Name: "etc/passwd", Mode: 0o644},
		[]byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	put(t, w, tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	put(t, w, tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox)
	applets, err := exec.Command(path, "--list").Output()
	must(t, err)
	for _, applet := range strings.Fields(string(applets)) {
		if applet == "busybox" {
			continue
		}
		put(t, w, tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	for name, path := range more {
		program, err := os.ReadFile(path)
		must(t, err)
		put(t, w, tar.Header{Name: "bin/" + name, Mode: 0o755}, program)
	}
	must(t, w.Close())
	return out.Bytes()
}

func put(t *testing.T, w *tar.Writer, header tar.Header, content []byte) {
	t.Helper()
	header.Size = int64(len(content))
	must(t, w.WriteHeader(&header))
	_, err := w.Write(content)
	must(t, err)
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	must(t, err)
	return data
}
