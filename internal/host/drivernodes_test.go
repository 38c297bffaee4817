package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDriverNodeMode(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	if mode, sets := h.DriverNodeMode(); sets {
		t.Errorf("without a driver: %o", mode)
	}
	if err := os.MkdirAll(filepath.Join(h.Proc, "driver/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]uint32{
		"ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileMode: 438\n": 0o666,
		"ModifyDeviceFiles: 1\nDeviceFileMode: 432\nTemporaryFilePath: \"\"\n":                        0o660,
		"ModifyDeviceFiles: 0\nDeviceFileMode: 438\n":                                                 0,
		"ModifyDeviceFiles: 1\n":               0,
		"ModifyDeviceFiles\nDeviceFileMode: x": 0,
		"":                                     0,
	} {
		err := os.WriteFile(filepath.Join(h.Proc, "driver/nvidia/params"), []byte(text), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if mode, sets := h.DriverNodeMode(); sets != (want != 0) || sets && mode != want {
			t.Errorf("%q: %o, %v; want %o", text, mode, sets, want)
		}
	}
}
