package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
)

// TestReleaseChart pulls the chart of the release in $RELEASE as helm does, from a registry that
// serves the layout of the release. The chart names the release's images.
func TestReleaseChart(t *testing.T) {
	release := os.Getenv("RELEASE")
	if release == "" {
		t.Skip("there is no release in $RELEASE: its chart is not pulled")
	}
	files, _ := filepath.Glob(filepath.Join(release, "gpuledger-chart_*.oci.tar"))
	if len(files) != 1 {
		t.Fatalf("charts: %v", files)
	}
	layout := unpacked(t, files[0])
	server := httptest.NewServer(registryOf(layout))
	defer server.Close()
	client, err := registry.NewClient(registry.ClientOptPlainHTTP(), registry.ClientOptWriter(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := client.Pull(strings.TrimPrefix(server.URL, "http://") + "/charts/gpuledger:" +
		entryOf(t, layout).Annotations["org.opencontainers.image.ref.name"])
	if err != nil {
		t.Fatal(err)
	}
	chart, err := loader.LoadArchive(bytes.NewReader(pulled.Chart.Data))
	if err != nil {
		t.Fatal(err)
	}
	setup, _ := chart.Values["setup"].(map[string]any)
	for name, image := range map[string]any{"kube": chart.Values["image"], "setup": setup["image"]} {
		got, _ := image.(map[string]any)
		if got["repository"] != "registry.example.com/gpuledger/"+name || got["tag"] == "latest" ||
			got["tag"] != chart.Metadata.AppVersion || got["pullPolicy"] != "IfNotPresent" {
			t.Errorf("the chart of version %s has the image %v", chart.Metadata.AppVersion, got)
		}
	}
	packed, err := os.ReadFile(filepath.Join(release, "gpuledger-"+chart.Metadata.Version+".tgz"))
	if err != nil || !bytes.Equal(packed, pulled.Chart.Data) {
		t.Errorf("the chart as a file is another one (%v)", err)
	}
}

// descriptor is an entry of a layout's index.
type descriptor struct {
	Digest      string
	MediaType   string
	Annotations map[string]string
}

func entryOf(t *testing.T, layout map[string][]byte) descriptor {
	t.Helper()
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(layout["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json: %v, %+v", err, index)
	}
	return index.Manifests[0]
}

// unpacked returns the files of an archive.
func unpacked(t *testing.T, file string) map[string][]byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for from := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err == nil {
			files[header.Name], err = io.ReadAll(from)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// registryOf serves the one manifest of a layout, and its blobs, under every name.
func registryOf(layout map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reference := path.Base(r.URL.Path)
		var index struct{ Manifests []descriptor }
		_ = json.Unmarshal(layout["index.json"], &index)
		if strings.Contains(r.URL.Path, "/manifests/") {
			entry := index.Manifests[0]
			if reference == entry.Annotations["org.opencontainers.image.ref.name"] {
				reference = entry.Digest
			}
			w.Header().Set("Content-Type", index.Manifests[0].MediaType)
		}
		content, found := layout["blobs/"+strings.Replace(reference, ":", "/", 1)]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Docker-Content-Digest", reference)
		_, _ = w.Write(content)
	})
}
