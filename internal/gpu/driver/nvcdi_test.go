package driver_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/driver"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// nvcdi is what NVIDIA's own CDI generator (nvidia-container-toolkit 1.20.1) finds below a driver
// root. Its module is apart from ours, so that its requirements are not ours.
func nvcdi(t *testing.T) func(root string, more ...string) cdispec.ContainerEdits {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nvcdi")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "../../../test/tools/nvcdi"
	build.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build NVIDIA's generator: %v\n%s", err, out)
	}
	return func(root string, more ...string) (edits cdispec.ContainerEdits) {
		out, err := exec.Command(program, append([]string{root, version}, more...)...).Output()
		if err == nil {
			err = json.Unmarshal(out, &edits)
		}
		if err != nil {
			t.Fatal(err)
		}
		return edits
	}
}

// TestNothingIsMissingThatNVIDIAsGeneratorFinds goes through its spec entry by entry: each mount,
// and each link that its hooks make.
func TestNothingIsMissingThatNVIDIAsGeneratorFinds(t *testing.T) {
	generate := nvcdi(t)
	for name, r := range map[string]root{"Debian": debian(), "RHEL": rhel()} {
		t.Run(name, func(t *testing.T) {
			dir := r.make(t)
			found, err := driver.Look(driver.Where{Root: dir, Version: version})
			if err != nil {
				t.Fatal(err)
			}
			ours := placesOf(found.Files)
			theirs := generate(dir)
			if len(theirs.Mounts) < 40 {
				t.Fatalf("NVIDIA's generator finds only %d files: there is nothing to compare",
					len(theirs.Mounts))
			}
			for _, m := range theirs.Mounts {
				if source := realBelow(t, dir, m.HostPath); ours[m.ContainerPath] != source {
					t.Errorf("%s: theirs is %s, ours %q", m.ContainerPath, source, ours[m.ContainerPath])
				}
			}
			links := linksOf(theirs)
			if len(links) < 20 {
				t.Fatalf("NVIDIA's generator makes only %d links", len(links))
			}
			for link, target := range links {
				if want := ours[filepath.Join(filepath.Dir(link), target)]; ours[link] == "" ||
					ours[link] != want {
					t.Errorf("%s: theirs leads to %s, which is our %q; ours is %q", link, target, want,
						ours[link])
				}
			}
			for _, f := range found.Files {
				if !slices.ContainsFunc(theirs.Mounts,
					func(m *cdispec.Mount) bool {
						return realBelow(t, dir,
							m.HostPath) == f.Path
					}) && !oursAlone(f) {
					t.Errorf("theirs has no %s, and nothing says why ours does", line(f))
				}
			}
		})
	}
}

// TestNodesAndVariablesAreNVIDIAsGenerators compares nodes and environment of a container with GPU
// 0, exclusively and with all capabilities. They are those of NVIDIA's generator, except for those
// listed here with a reason.
func TestNodesAndVariablesAreNVIDIAsGenerators(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip(
			"not root: device nodes cannot be made, so those that NVIDIA's generator finds are not compared")
	}
	dir := debian().make(t)
	for name, number := range map[string][2]uint32{"nvidia0": {195, 0}, "nvidia1": {195, 1},
		"nvidiactl": {195, 255}, "nvidia-modeset": {195, 254},
		"nvidia-uvm": {508, 0}, "nvidia-uvm-tools": {508, 1}, "nvidia-caps/nvidia-cap1": {509, 1}} {
		path := filepath.Join(dir, "dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))); err != nil {
			t.Fatal(err)
		}
	}
	generate := nvcdi(t)
	common, gpu := generate(dir), generate(dir, "gpu")
	inv := grant.Inventory{Majors: map[string]int{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509},
		GPUs: []grant.GPU{{UUID: "GPU-0", Memory: grant.GiB, Health: grant.Healthy}}}
	own := grant.Grant{ID: "g-abcdefghijkl", Owner: grant.Bearer, Secret: grant.SecretHash("s"),
		Mode: grant.Exclusive, GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}
	asks := grant.Request{References: []grant.Mention{{Asks: true, Reference: grant.Reference{ID: own.ID,
		Secret: "s"}}}, Capabilities: []grant.Capability{
		grant.Compute, grant.Utility, grant.Graphics, grant.Display}}
	ours := admission.Decide(asks, grant.View{Grants: []grant.Grant{own}}, inv,
		grant.Policy{Rules: grant.Rules{MinimumStrength: grant.StrengthNone}})

	nodes := func(lists ...[]*cdispec.DeviceNode) (all []string) {
		for _, list := range lists {
			for _, n := range list {
				all = append(all, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
			}
		}
		slices.Sort(all)
		return all
	}
	if theirs, ours := nodes(common.DeviceNodes, gpu.DeviceNodes), nodes(ours.Edits.DeviceNodes); len(
		theirs) < 5 || !slices.Equal(theirs, ours) {
		t.Errorf("theirs has the nodes %q, ours %q", theirs, ours)
	}
	explained := map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "theirs is void, so that no other injector adds GPUs; ours names the granted one, as programs read it, and policy can say void",
		"NVIDIA_CTK_LIBCUDA_DIR": "for NVIDIA's own hooks, of which there is none here",
	}
	for _, entry := range append(common.Env, gpu.Env...) {
		name, _, _ := strings.Cut(entry, "=")
		if explained[name] == "" && !slices.Contains(ours.Edits.Env, entry) {
			t.Errorf("theirs sets %s, and nothing says why ours does not", entry)
		}
	}
	done := map[string]string{
		"create-symlinks":                  "every name is a mount",
		"enable-cuda-compat":               "libraries of the image are left to it (docs/adr/0033)",
		"update-ldcache":                   "the cache is written before the start (docs/adr/0017)",
		"disable-device-node-modification": "what the container makes there, its device rules close",
		"update-application-profile":       "profiles of GL applications, which an image can bring itself",
		"apply-cuda-memory-limits":         "limits are the ledger's, and not the environment's (docs/adr/0012)",
	}
	for _, h := range append(common.Hooks, gpu.Hooks...) {
		if len(h.Args) < 2 || done[h.Args[1]] == "" {
			t.Errorf("theirs runs %q, and nothing says what does it here", h.Args)
		}
	}
	if len(ours.Edits.Hooks) > 0 {
		t.Errorf("ours runs %+v", ours.Edits.Hooks)
	}
}

// oursAlone reports whether NVIDIA's generator leaves a file out that gpuledger includes.
func oursAlone(f grant.DriverFile) bool {
	return f.Bits == 32 || // only its legacy library has those
		// behind absolute links, which mean the driver root to us and the host to it
		f.Path == "/usr/lib/nvidia/mps"
}

// placesOf maps each place in a container, at the node's own directories, to the file that comes
// there. The file itself keeps its own name beside those by which programs find it.
func placesOf(files []grant.DriverFile) map[string]string {
	places := map[string]string{}
	for _, f := range files {
		if len(f.Names) == 0 {
			places[f.Target] = f.Path
			continue
		}
		for _, name := range f.Names {
			places[filepath.Join(f.Target, name)] = f.Path
		}
		places[filepath.Join(f.Target, filepath.Dir(f.Names[len(f.Names)-1]), filepath.Base(f.Path))] = f.Path
	}
	return places
}

func realBelow(t *testing.T, root, path string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(real, root)
}

// linksOf reads the links that hooks are to make: --link TARGET::LINK.
func linksOf(edits cdispec.ContainerEdits) map[string]string {
	links := map[string]string{}
	for _, h := range edits.Hooks {
		for i, arg := range h.Args {
			if target, link, found := strings.Cut(arg, "::"); found && h.Args[i-1] == "--link" {
				links[link] = target
			}
		}
	}
	return links
}
