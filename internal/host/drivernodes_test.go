package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDriverNodePermissions(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	if given, sets := h.DriverNodePermissions(); sets {
		t.Errorf("without a driver: %v", given)
	}
	if err := os.MkdirAll(filepath.Join(h.Proc, "driver/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	const levels = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"
	for text, want := range map[string]struct {
		given string
		open  bool
	}{
		levels + "DeviceFileMode: 438\n":                    {"mode 0666", true},
		levels + "DeviceFileMode: 432\n":                    {"mode 0660", false},
		levels + "DeviceFileGID: 44\nDeviceFileMode: 432\n": {"mode 0660 and group 44", true},
		levels + "DeviceFileGID: 44\nDeviceFileMode: 384\n": {"mode 0600 and group 44", false},
		"ModifyDeviceFiles: 1\nDeviceFileUID: 1000\nDeviceFileGID: 0\nDeviceFileMode: 384\n": {
			"mode 0600 and owner 1000", true},
		"ModifyDeviceFiles: 1\nDeviceFileUID: 1000\nDeviceFileGID: 44\nDeviceFileMode: 48\n": {
			"mode 0060 and owner 1000 and group 44", true},
		"ModifyDeviceFiles: 0\nDeviceFileMode: 438\n": {},
		"ModifyDeviceFiles: 1\n":                      {},
		"ModifyDeviceFiles\nDeviceFileMode: x":        {},
		"":                                            {},
	} {
		err := os.WriteFile(filepath.Join(h.Proc, "driver/nvidia/params"), []byte(text), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		given, sets := h.DriverNodePermissions()
		if sets != (want.given != "") || sets && (given.String() != want.given ||
			given.OpenToUsers() != want.open) {
			t.Errorf("%q: %v, %v; want %+v", text, given, sets, want)
		}
	}
}
