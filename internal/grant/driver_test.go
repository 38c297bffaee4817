package grant

import (
	"testing"
)

func TestPathsOfTheDriversFiles(t *testing.T) {
	files := []DriverFile{{Path: "/usr/lib/libcuda.so.580.142", Kind: FileLibrary},
		{Path: "/run/nvidia-persistenced/socket", Kind: FileSocket},
		{Path: "/usr/bin/nvidia-smi", Kind: FileBinary}}
	for root, want := range map[string]string{"/": "", "/run/nvidia/driver": "/run/nvidia/driver",
		"/run//nvidia/driver/": "/run/nvidia/driver"} {
		driver := Driver{Root: root, Files: files}
		sources := driver.Sources()
		for i, isOne := range []bool{true, false, true} {
			path := want + files[i].Path
			if got := driver.Source(files[i]); got != path || sources.Has(path) != isOne {
				t.Errorf("below %s: %q is %q, and %v among the sources", root, path, got, sources.Has(path))
			}
		}
		for _, other := range []string{"", "/", want, want + "/usr/lib", want + "//usr/bin/nvidia-smi",
			want + "usr/bin/nvidia-smi", want + "/usr/bin/nvidia-smi/", want + "/usr/bin/../bin/nvidia-smi"} {
			if sources.Has(other) {
				t.Errorf("below %s: %q is none of the files", root, other)
			}
		}
	}
	if (Sources{}).Has("/usr/bin/nvidia-smi") || (Sources{}).Has("") {
		t.Error("without a driver there is a file of it")
	}
}
