// Command image makes a container image of one layer out of a directory, as an archive that `docker
// load`, `podman load` and `ctr image import` read. No base, no network, and two runs give the same
// bytes.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	root := flag.String("root", "", "the image's files")
	arch := flag.String("arch", "", "its architecture, in Go's words")
	entry := flag.String("entrypoint", "", "its program")
	tag := flag.String("tag", "", "its name")
	seconds := flag.Int64("time", 0, "when it was made, in seconds since 1970")
	out := flag.String("out", "", "the archive")
	flag.Parse()
	if err := write(*root, *arch, *entry, *tag, *out, time.Unix(*seconds, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(root, arch, entry, tag, out string, made time.Time) error {
	files, err := pack(root, made)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: v1.Time{Time: made},
		Config: v1.Config{Entrypoint: []string{entry}}, RootFS: v1.RootFS{
			Type: "layers", DiffIDs: []v1.Hash{must(layer.DiffID())}}})
	if err != nil {
		return err
	}
	reference, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, reference, image)
}

// must is for a hash of what is in memory already.
func must(hash v1.Hash, err error) v1.Hash {
	if err != nil {
		panic(err)
	}
	return hash
}

// pack is the directory as a tar: sorted, root's, of one time.
func pack(root string, made time.Time) ([]byte, error) {
	var packed bytes.Buffer
	to := tar.NewWriter(&packed)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		return add(to, root, path, entry, made)
	})
	if err == nil {
		err = to.Close()
	}
	return packed.Bytes(), err
}

func add(to *tar.Writer, root, path string, entry fs.DirEntry, made time.Time) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	var target string
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	if header.Name, err = filepath.Rel(root, path); err != nil {
		return err
	}
	header.ModTime, header.Uid, header.Gid, header.Uname, header.Gname = made, 0, 0, "", ""
	if err := to.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.ReadFile(path)
	if err == nil {
		_, err = to.Write(content)
	}
	return err
}
