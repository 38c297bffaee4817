//go:build cgo

package nvml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

// TestLibraryPath: NVML where drivers install it, also Debian's other drivers; of several the
// loaded driver's.
func TestLibraryPath(t *testing.T) {
	const lib = "usr/lib/" + "TRIPLET"
	tesla := map[string]string{lib + "/nvidia/tesla-470/libnvidia-ml.so.470.256.02": "",
		lib + "/nvidia/tesla-470/libnvidia-ml.so.1": "libnvidia-ml.so.470.256.02",
		lib + "/libnvidia-ml.so.1":                  "/etc/alternatives/nvidia--libnvidia-ml.so.1"}
	current := map[string]string{lib + "/nvidia/current/libnvidia-ml.so.535.183.01": "",
		lib + "/nvidia/current/libnvidia-ml.so.1": "libnvidia-ml.so.535.183.01"}
	for name, c := range map[string]struct {
		files  []map[string]string
		loaded string
		want   string
	}{
		"Debian's tesla-470":                  {[]map[string]string{tesla}, "", lib + "/nvidia/tesla-470"},
		"beside the current one":              {[]map[string]string{tesla, current}, "", lib + "/nvidia/current"},
		"beside the current one, and loaded":  {[]map[string]string{tesla, current}, "470.256.02", lib + "/nvidia/tesla-470"},
		"beside the current one, that loaded": {[]map[string]string{tesla, current}, "535.183.01", lib + "/nvidia/current"},
		"beside the current one, none loaded": {[]map[string]string{tesla, current}, "390.1", lib + "/nvidia/current"},
	} {
		t.Run(name, func(t *testing.T) {
			root, sys := t.TempDir(), t.TempDir()
			for _, files := range c.files {
				for file, target := range files {
					path := filepath.Join(root, withTriplet(file))
					err := os.MkdirAll(filepath.Dir(path), 0o755)
					if err == nil && target == "" {
						err = os.WriteFile(path, []byte("x"), 0o644)
					} else if err == nil {
						err = os.Symlink(target, path)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			if c.loaded != "" {
				if err := os.MkdirAll(sys+"/module/nvidia", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(sys+"/module/nvidia/version", []byte(c.loaded+"\n"),
					0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := libraryPath(root, host.Host{Sys: sys})
			if want := filepath.Join(root, withTriplet(c.want), soname); err != nil || got != want {
				t.Errorf("%s, %v; want %s", got, err, want)
			}
		})
	}
}

func withTriplet(path string) string { return strings.ReplaceAll(path, "TRIPLET", triplet()) }
