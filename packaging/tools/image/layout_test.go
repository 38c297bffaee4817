package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// opened unpacks an archive of a layout.
func opened(t *testing.T, file string) layout.Path {
	t.Helper()
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	dir := t.TempDir()
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o755)
		} else {
			var text []byte
			if text, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(to, text, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return layout.Path(dir)
}

// platforms checks that a layout has one image, whole and of this name, and returns its platforms.
func platforms(t *testing.T, file, name string) (of []string) {
	t.Helper()
	outer, err := opened(t, file).ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := outer.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("%s: %v, %+v", file, err, list)
	}
	entry := list.Manifests[0]
	if got := entry.Annotations["io.containerd.image.name"]; got != name {
		t.Errorf("%s is named %q, want %q", file, got, name)
	}
	image, err := outer.ImageIndex(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(image); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	images, err := image.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range images.Manifests {
		of = append(of, m.Platform.String())
		one, err := image.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if config, err := one.ConfigFile(); err != nil || config.Architecture != m.Platform.Architecture {
			t.Errorf("%s: an image for %s is one for %+v (%v)", file, m.Platform, config, err)
		}
	}
	slices.Sort(of)
	return of
}

func TestJoinedImagesAreOneForEachPlatform(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.Mkdir(root, 0o755),
		os.WriteFile(filepath.Join(root, "a"), []byte("a"), 0o755)); err != nil {
		t.Fatal(err)
	}
	made := time.Unix(1_700_000_000, 0).UTC()
	var inputs []string
	for _, arch := range []string{"amd64", "arm64"} {
		file := filepath.Join(dir, arch+".tar")
		if err := pack(output{name: "example.com/image:latest", file: file, root: root, arch: arch,
			entry: "/a", time: made}); err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, file)
	}
	both := []string{"linux/amd64", "linux/arm64"}
	var runs [2][]byte
	for i := range runs {
		file := filepath.Join(dir, "joined.tar")
		to := output{name: "example.com/image:1", file: file, time: made, inputs: inputs}
		if err := join(to); err != nil {
			t.Fatal(err)
		}
		if of := platforms(t, file, "example.com/image:1"); !slices.Equal(of, both) {
			t.Errorf("got %v", of)
		}
		runs[i], _ = os.ReadFile(file)
	}
	if !bytes.Equal(runs[0], runs[1]) {
		t.Error("two runs differ")
	}
	for what, bad := range map[string]output{"no image": {name: "example.com/image:1"},
		"no such image": {name: "example.com/image:1", inputs: []string{"/nowhere"}},
		"no name":       {name: "?", inputs: inputs}} {
		bad.file = filepath.Join(dir, "bad.tar")
		if err := join(bad); err == nil {
			t.Errorf("%s: no error", what)
		}
		if _, err := os.Stat(bad.file); err == nil {
			t.Errorf("%s: a file stays", what)
		}
	}
}

// TestReleaseImages reads the images of the release in $RELEASE; packaging/test.sh makes one.
func TestReleaseImages(t *testing.T) {
	release := os.Getenv("RELEASE")
	if release == "" {
		t.Skip("there is no release in $RELEASE: its images are not read")
	}
	for _, name := range []string{"setup", "kube"} {
		files, _ := filepath.Glob(filepath.Join(release, "gpuledger-"+name+"_*.oci.tar"))
		if len(files) != 1 {
			t.Fatalf("%s: %v", name, files)
		}
		index, err := opened(t, files[0]).ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		list, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		tag := list.Manifests[0].Annotations["org.opencontainers.image.ref.name"]
		want := "registry.example.com/gpuledger/" + name + ":" + tag
		of := platforms(t, files[0], want)
		if tag == "" || !slices.Equal(of, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s: %v of tag %q", name, of, tag)
		}
	}
}
