package test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestMigration compares docs/migration.md with the node's verdicts on specs as other systems leave
// them: each row of the page is a case here, and each case a row.
func TestMigration(t *testing.T) {
	documented := answers(t, "../docs/migration.md")
	for _, c := range migrations {
		t.Run(c.name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: c.config})
			if c.grant != nil {
				n.Grant(append(c.grant, "--owner", "pod:"+podUID+"/train")...)
			}
			var said struct{ Verdict, Code, Message string }
			r := n.Bundle("c", append([]rig.Edit{inPod("train")}, c.edits(t, n)...)...).Explain("--json")
			must(t, json.Unmarshal([]byte(r.Stdout), &said))
			got := said.Verdict
			if said.Verdict == "refuse" {
				got = "`" + said.Code + "`"
			}
			if want := documented[c.name]; got != want {
				t.Errorf("the node answers %s (%s), the page has %q", got, said.Message, want)
			}
			delete(documented, c.name)
		})
	}
	for name := range documented {
		t.Errorf("docs/migration.md has %q, for which there is no case", name)
	}
}

// answers are the rows of a page's tables "| container | answer |".
func answers(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	rows, inside := map[string]string{}, false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case len(cells) != 2:
			inside = false
		case strings.TrimSpace(cells[0]) == "container":
			inside = true
		case inside && !strings.HasPrefix(cells[0], "---"):
			rows[strings.TrimSpace(cells[0])] = strings.TrimSpace(cells[1])
		}
	}
	return rows
}

type migration struct {
	name   string
	config string
	grant  []string // arguments of `gpuledger grant`; nil is none
	edits  func(*testing.T, *rig.Node) []rig.Edit
}

const adoptGPUShare = "[annotations]\ntrust = \"adopt\"\n"

// spec is a case's edits that need nothing from the node.
func spec(edits ...rig.Edit) func(*testing.T, *rig.Node) []rig.Edit {
	return func(*testing.T, *rig.Node) []rig.Edit { return edits }
}

var migrations = []migration{
	{name: "plugin's container without a grant", edits: byPlugin},
	{name: "plugin's container with a grant of its GPU", grant: []string{"--mode", "timeslice", "--memory", "4GiB", "--gpu", "0"}, edits: byPlugin},
	{name: "plugin's container with a grant of another GPU", grant: []string{"--mode", "timeslice", "--memory", "4GiB", "--gpu", "1"}, edits: byPlugin},
	{name: "plugin's container, deviceListStrategy volume-mounts, without a grant", edits: byVolumeMounts},
	{name: "plugin's container, deviceListStrategy cdi-cri, without a grant", edits: spec(byCDI)},
	{name: "plugin's container, deviceListStrategy cdi-cri, with a grant of its GPU", grant: []string{"--mode", "timeslice", "--memory", "4GiB", "--gpu", "0"}, edits: spec(byCDI)},

	{name: "gpushare's container without a grant, trust verify", edits: spec(byGPUShare("0", "4", "4"))},
	{name: "gpushare's container with an equal grant", grant: []string{"--memory", "4GiB", "--gpu", "0"}, edits: spec(byGPUShare("0", "4", "4"))},
	{name: "gpushare's container with a grant of another size", grant: []string{"--memory", "3GiB", "--gpu", "0"}, edits: spec(byGPUShare("0", "4", "4"))},
	{name: "gpushare's container, trust adopt", config: adoptGPUShare, edits: spec(byGPUShare("0", "4", "4"))},
	{name: "gpushare's container, trust adopt, asking for more than its pod has", config: adoptGPUShare, edits: spec(byGPUShare("0", "4", "8"))},
	{name: "gpushare's container that could not be placed", edits: spec(byGPUShare("-1", "4", "4"), rig.Env("NVIDIA_VISIBLE_DEVICES=no-gpu-has-4GiB-to-run"))},

	{name: "HAMi's container without a grant", edits: byHAMi},
	{name: "HAMi's container with a grant of its GPU", grant: []string{"--memory", "4000MiB", "--gpu", "0"}, edits: byHAMi},
}

// uuid is the UUID of a node's GPU.
func uuid(t *testing.T, n *rig.Node, index int) string {
	t.Helper()
	var gpus struct{ GPUs []struct{ UUID string } }
	must(t, json.Unmarshal([]byte(n.Must("gpus", "--json")), &gpus))
	return gpus.GPUs[index].UUID
}

// byPlugin is what NVIDIA's device plugin leaves with its default strategy, envvar.
func byPlugin(t *testing.T, n *rig.Node) []rig.Edit {
	return []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES="+uuid(t, n, 0),
		"NVIDIA_DRIVER_CAPABILITIES=compute,utility")}
}

// byVolumeMounts is its strategy volume-mounts: the list is a mount for each GPU.
func byVolumeMounts(t *testing.T, n *rig.Node) []rig.Edit {
	list := "/var/run/nvidia-container-devices"
	return []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=" + list), func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: list + "/" + uuid(t, n, 0), Type: "bind",
			Source: "/dev/null", Options: []string{"rbind"}})
	}}
}

// byCDI is what the engine makes of the plugin's CDI names: the nodes, and the rules for them.
func byCDI(s *specs.Spec) {
	for path, number := range map[string][2]int64{"/dev/nvidia0": {195, 0}, "/dev/nvidiactl": {195, 255}} {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
			Path: path, Type: "c", Major: number[0], Minor: number[1]})
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &number[0],
				Minor: &number[1], Access: "rw"})
	}
	s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=void")
}

// byGPUShare is what its scheduler writes about the pod and its plugin into the container.
func byGPUShare(card, pod, container string) rig.Edit {
	return together(gpushare(card, pod, container), rig.Env("NVIDIA_VISIBLE_DEVICES="+card,
		"ALIYUN_COM_GPU_MEM_IDX="+card,
		"ALIYUN_COM_GPU_MEM_POD="+pod, "ALIYUN_COM_GPU_MEM_DEV=15"))
}

// byHAMi is what its plugin leaves: a GPU, limits that its library reads from the environment, and
// the library.
func byHAMi(t *testing.T, n *rig.Node) []rig.Edit {
	gpu := uuid(t, n, 0)
	library := n.Write("libvgpu.so", "")
	return []rig.Edit{
		rig.Annotation("hami.io/vgpu-devices-allocated", fmt.Sprintf("%s,NVIDIA,4000,30:;", gpu)),
		rig.Env("NVIDIA_VISIBLE_DEVICES="+gpu, "CUDA_DEVICE_MEMORY_LIMIT_0=4000m", "CUDA_DEVICE_SM_LIMIT=30",
			"CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/vgpu/cache"),
		func(s *specs.Spec) {
			s.Mounts = append(s.Mounts,
				specs.Mount{Destination: "/usr/local/vgpu/libvgpu.so", Type: "bind", Source: library,
					Options: []string{"rbind", "ro"}},
				specs.Mount{Destination: "/etc/ld.so.preload", Type: "bind",
					Source:  n.Write("ld.so.preload", "/usr/local/vgpu/libvgpu.so\n"),
					Options: []string{"rbind", "ro"}})
		},
	}
}
