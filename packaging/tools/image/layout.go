package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// join makes one image of the images of several architectures.
func join(to output) error {
	if len(to.inputs) == 0 {
		return errors.New("which images?")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, file := range to.inputs {
		image, err := tarball.ImageFromPath(file, nil)
		if err != nil {
			return err
		}
		image = mutate.MediaType(image, types.OCIManifestSchema1)
		image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
		config, err := image.ConfigFile()
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS,
				Architecture: config.Architecture}}})
	}
	return to.layout(func(at layout.Path) error {
		named, err := annotations(to.name)
		if err != nil {
			return err
		}
		return at.AppendIndex(index, layout.WithAnnotations(named))
	})
}

// annotations are those by which containerd, Docker and Podman know an image's name in a layout.
func annotations(image string) (map[string]string, error) {
	reference, err := name.NewTag(image)
	if err != nil {
		return nil, err
	}
	return map[string]string{"io.containerd.image.name": reference.Name(),
		"org.opencontainers.image.ref.name": reference.TagStr()}, nil
}

// The media types of a chart in a registry (helm.sh/docs/topics/registries).
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chart makes an artifact of a packaged chart.
func chart(to output) error {
	if len(to.inputs) != 1 {
		return errors.New("which chart?")
	}
	content, err := os.ReadFile(to.inputs[0])
	if err != nil {
		return err
	}
	metadata, err := chartMetadata(content)
	if err != nil {
		return fmt.Errorf("%s: %w", to.inputs[0], err)
	}
	var title struct{ Name, Version string }
	if err := json.Unmarshal(metadata, &title); err != nil {
		return err
	}
	return to.layout(func(at layout.Path) error {
		config, err := blob(at, chartConfig, metadata)
		if err != nil {
			return err
		}
		layer, err := blob(at, chartContent, content)
		if err != nil {
			return err
		}
		manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
			Config: config, Layers: []v1.Descriptor{layer}, Annotations: map[string]string{
				"org.opencontainers.image.created": to.time.Format(time.RFC3339),
				"org.opencontainers.image.title":   title.Name,
				"org.opencontainers.image.version": title.Version}})
		if err != nil {
			return err
		}
		entry, err := blob(at, types.OCIManifestSchema1, manifest)
		if err == nil {
			entry.Annotations, err = annotations(to.name)
		}
		if err != nil {
			return err
		}
		return at.AppendDescriptor(entry)
	})
}

// chartMetadata returns a packaged chart's Chart.yaml as JSON.
func chartMetadata(packed []byte) ([]byte, error) {
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("no Chart.yaml: %w", err)
		}
		if matched, _ := path.Match("*/Chart.yaml", header.Name); !matched {
			continue
		}
		text, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		return yaml.YAMLToJSON(text)
	}
}

// blob writes a blob and describes it.
func blob(at layout.Path, kind types.MediaType, content []byte) (v1.Descriptor, error) {
	hash, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: kind, Digest: hash, Size: size},
		at.WriteBlob(hash, io.NopCloser(bytes.NewReader(content)))
}

// layout writes an OCI layout with what fill puts there, and packs it.
func (to output) layout(fill func(layout.Path) error) error {
	dir, err := os.MkdirTemp("", "layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := fill(at); err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := archive(&packed, dir, to.time); err != nil {
		return err
	}
	return os.WriteFile(to.file, packed.Bytes(), 0o644)
}
