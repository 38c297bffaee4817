package grant

import (
	"maps"
	"slices"
	"testing"
)

func TestWhereTheDriversFilesAre(t *testing.T) {
	files := []DriverFile{{Path: "/usr/lib/libcuda.so.580.142", Kind: FileLibrary}, {Path: "/run/nvidia-persistenced/socket", Kind: FileSocket}, {Path: "/usr/bin/nvidia-smi", Kind: FileBinary}}
	for root, want := range map[string][]string{
		"/":                    {"/usr/bin/nvidia-smi", "/usr/lib/libcuda.so.580.142"},
		"/run/nvidia/driver":   {"/run/nvidia/driver/usr/bin/nvidia-smi", "/run/nvidia/driver/usr/lib/libcuda.so.580.142"},
		"/run//nvidia/driver/": {"/run/nvidia/driver/usr/bin/nvidia-smi", "/run/nvidia/driver/usr/lib/libcuda.so.580.142"},
	} {
		if got := slices.Sorted(maps.Keys(Driver{Root: root, Files: files}.Sources())); !slices.Equal(got, want) {
			t.Errorf("below %s: %q, want %q", root, got, want)
		}
	}
}
