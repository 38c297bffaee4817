package driver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

func TestNodesHaveNamesByNumber(t *testing.T) {
	dev := t.TempDir()
	for name, device := range map[string]uint64{"nvidia0": unix.Mkdev(195, 0),
		"nvidiactl":               unix.Mkdev(195, 255),
		"nvidia-caps/nvidia-cap3": unix.Mkdev(240, 3), "nvidia-uvm": unix.Mkdev(511, 0),
		"sda": unix.Mkdev(8, 0)} {
		path := filepath.Join(dev, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(device)); err != nil {
			t.Skipf("cannot make a device node (%v): that nodes get their names is not shown", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dev, "nvidia1"), nil, 0o600); err != nil { // no device
		t.Fatal(err)
	}
	char := filepath.Join(dev, "char")
	for range 2 { // the second time everything is there
		if err := NameNodes(host.Host{Dev: dev}); err != nil {
			t.Fatal(err)
		}
		links, _ := filepath.Glob(filepath.Join(char, "*"))
		for i, link := range links {
			to, err := os.Readlink(link)
			if err != nil {
				t.Fatal(err)
			}
			links[i] = filepath.Base(link) + " " + to
		}
		want := []string{"195:0 ../nvidia0", "195:255 ../nvidiactl", "240:3 ../nvidia-caps/nvidia-cap3",
			"511:0 ../nvidia-uvm"}
		if !slices.Equal(links, want) {
			t.Errorf("got %v, want %v", links, want)
		}
	}
	if err := NameNodes(host.Host{Dev: filepath.Join(dev, "nowhere")}); err != nil {
		t.Errorf("a machine without such nodes: %v", err)
	}
}

func TestNodesThatCannotBeNamedAreAnError(t *testing.T) {
	dev := t.TempDir()
	node := filepath.Join(dev, "nvidia0")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		t.Skipf("cannot make a device node (%v)", err)
	}
	if err := os.WriteFile(filepath.Join(dev, "char"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NameNodes(host.Host{Dev: dev}); err == nil {
		t.Error("no error, and no name")
	}
}
