package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// TestANodeWithoutAGPU: no container of it is refused or edited for what it may open, whatever the
// policy. That it has no GPU must be certain: a card on the PCI bus counts, and so does an
// inventory that cannot be read.
func TestANodeWithoutAGPU(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		gpu   bool
	}{
		"no GPU": {map[string]string{"sys/bus/pci/devices/0000:00:02.0/vendor": "0x1002\n",
			"sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n"}, false},
		"an inventory of none": {map[string]string{"sys/bus/x": "",
			"state/inventory.json": `{"version":1,"boot_id":"b","source":"nvml","gpus":[]}`}, false},
		"a card": {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
			"sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}, true},
		"an inventory of another boot": {map[string]string{"sys/bus/x": "",
			"state/inventory.json": `{"version":1,"boot_id":"b","source":"nvml","gpus":[{"uuid":"GPU-0",` +
				`"memory":1,"health":"healthy"}]}`}, true},
		"an inventory that is damaged": {map[string]string{"sys/bus/x": "",
			"state/inventory.json": "\x00{{"}, true},
		"a /sys that cannot be read": {nil, true},
	} {
		for _, privileged := range []string{"refuse", "strip"} {
			t.Run(name+", "+privileged, func(t *testing.T) {
				n, dir := bareNode(t, privileged, c.files)
				for what, create := range map[string]struct {
					config string
					off    bool
				}{
					"privileged":      {`{"linux":{"resources":{"devices":[{"allow":true,"access":"rwm"}]}}}`, false},
					"without rules":   {`{"linux":{}}`, false},
					"without cgroups": {`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, true},
				} {
					d := n.Admit(node.Create{Config: []byte(create.config),
						Caller: request.Caller{CgroupsOff: create.off,
							Container: grant.Container{Engine: grant.Docker, ID: "c", Bundle: dir}}})
					touched := d.Kind != grant.Pass || d.Config != nil || len(d.Rules) > 0
					if touched != c.gpu {
						t.Errorf("%s: %s (%s) %s, edited %v", what, d.Kind, d.Code, d.Message,
							d.Config != nil)
					}
				}
			})
		}
	}
}

// bareNode returns a node whose kernel knows no driver of NVIDIA's, and its directory.
func bareNode(t *testing.T, privileged string, files map[string]string) (*node.Node, string) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/devices", "Character devices:\n  1 mem\n 10 misc\n226 drm\n240 kfd\n\n"+
		"Block devices:\n  7 loop\n")
	write("proc/sys/kernel/random/boot_id", "boot\n")
	write("config.toml", fmt.Sprintf("state_dir = %q\nrun_dir = %q\n[policy]\nprivileged = %q\n[audit]\n"+
		"file = \"\"\n", dir+"/state", dir+"/run", privileged))
	for name, text := range files {
		write(name, text)
	}
	h := host.Default()
	h.Proc, h.Sys = dir+"/proc", dir+"/sys"
	n := node.Open(dir+"/config.toml", h)
	if n.Broken != nil {
		t.Fatal(n.Broken)
	}
	return n, dir
}
