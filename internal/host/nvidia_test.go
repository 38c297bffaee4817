package host

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHasNVIDIA: a machine has no NVIDIA GPU only if everything that would show one can be read and
// shows none.
func TestHasNVIDIA(t *testing.T) {
	const none = "Character devices:\n  1 mem\n\nBlock devices:\n"
	device := func(name, vendor, class string) map[string]string {
		at := "sys/bus/pci/devices/" + name
		return map[string]string{"proc/devices": none, at + "/vendor": vendor + "\n",
			at + "/class": class + "\n"}
	}
	for name, c := range map[string]struct {
		files map[string]string // "" after a "/": a directory
		want  bool
	}{
		"no PCI": {map[string]string{"proc/devices": none, "sys/bus/": ""}, false},
		"an empty PCI bus": {map[string]string{"proc/devices": none,
			"sys/bus/pci/devices/": ""}, false},
		"another vendor's GPU": {device("0000:01:00.0", "0x1002", "0x030000"), false},
		"NVIDIA's sound":       {device("0000:01:00.1", "0x10de", "0x040300"), false},
		"NVIDIA's GPU":         {device("0000:01:00.0", "0x10de", "0x030200"), true},
		"its driver": {map[string]string{"proc/devices": "195 nvidia\n",
			"sys/bus/": ""}, true},
		"no /proc":      {map[string]string{"sys/bus/": ""}, true},
		"no /sys":       {map[string]string{"proc/devices": none}, true},
		"an empty /sys": {map[string]string{"proc/devices": none, "sys/": ""}, true},
		"a PCI bus that is not listed": {map[string]string{"proc/devices": none,
			"sys/bus/pci/devices": "x"}, true},
		"a device that is gone": {map[string]string{"proc/devices": none,
			"sys/bus/pci/devices/0000:01:00.0/": ""}, false},
		"a vendor that cannot be read": {map[string]string{"proc/devices": none,
			"sys/bus/pci/devices/0000:01:00.0/vendor/": ""}, true},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(dir, file)
			err := os.MkdirAll(filepath.Dir(dir+"/"+file+"x"), 0o755)
			if file[len(file)-1] != '/' && err == nil {
				err = os.WriteFile(path, []byte(text), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		h := Host{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys")}
		if got := h.HasNVIDIA(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
