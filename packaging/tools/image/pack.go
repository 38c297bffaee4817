package main

import (
	"bytes"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// pack makes an image of one layer out of a directory.
func pack(to output) error {
	var files bytes.Buffer
	if err := archive(&files, to.root, to.time); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: to.arch, OS: "linux", Created: v1.Time{Time: to.time},
		Config: v1.Config{Entrypoint: []string{to.entry}}, RootFS: v1.RootFS{
			Type: "layers", DiffIDs: []v1.Hash{must(layer.DiffID())}}})
	if err != nil {
		return err
	}
	reference, err := name.NewTag(to.name)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(to.file, reference, image)
}

// must returns the hash of something that is already in memory.
func must(hash v1.Hash, err error) v1.Hash {
	if err != nil {
		panic(err)
	}
	return hash
}
