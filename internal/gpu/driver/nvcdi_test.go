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
// root. It is a module of its own, so that its requirements do not become gpuledger's.
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

// TestAllFilesOfNVIDIAsGenerator compares with the generator's spec entry by entry: each mount, and
// each link that its hooks make.
func TestAllFilesOfNVIDIAsGenerator(t *testing.T) {
	generate := nvcdi(t)
	for name, r := range map[string]root{"Debian": debian(), "RHEL": rhel()} {
		t.Run(name, func(t *testing.T) {
			dir := r.make(t)
			found, err := driver.FindUserSpace(driver.Where{Root: dir, Version: version})
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
					t.Errorf("%s: NVIDIA's is %s, gpuledger's %q", m.ContainerPath, source,
						ours[m.ContainerPath])
				}
			}
			links := linksOf(theirs)
			if len(links) < 20 {
				t.Fatalf("NVIDIA's generator makes only %d links", len(links))
			}
			for link, target := range links {
				if want := ours[filepath.Join(filepath.Dir(link), target)]; ours[link] == "" ||
					ours[link] != want {
					t.Errorf("%s: NVIDIA's leads to %s, which is gpuledger's %q; gpuledger's is %q",
						link, target, want, ours[link])
				}
			}
			for _, f := range found.Files {
				if !slices.ContainsFunc(theirs.Mounts,
					func(m *cdispec.Mount) bool {
						return realBelow(t, dir,
							m.HostPath) == f.Path
					}) && !onlyGpuledgers(f) {
					t.Errorf("NVIDIA's has no %s, and no reason is listed why gpuledger's does", line(f))
				}
			}
		})
	}
}

// TestNodesAndVariablesOfNVIDIAsGenerator compares nodes and environment of a container with GPU 0,
// exclusively and with all capabilities. They are those of NVIDIA's generator, except for those
// listed here with a reason.
func TestNodesAndVariablesOfNVIDIAsGenerator(t *testing.T) {
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
		t.Errorf("NVIDIA's has the nodes %q, gpuledger's %q", theirs, ours)
	}
	explained := map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "NVIDIA's is void, so that no other injector adds GPUs; gpuledger's names the granted one, as programs read it, and the policy can set void",
		"NVIDIA_CTK_LIBCUDA_DIR": "for NVIDIA's own hooks, of which there is none here",
	}
	for _, entry := range append(common.Env, gpu.Env...) {
		name, _, _ := strings.Cut(entry, "=")
		if explained[name] == "" && !slices.Contains(ours.Edits.Env, entry) {
			t.Errorf("NVIDIA's sets %s, and no reason is listed why gpuledger's does not", entry)
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
			t.Errorf("NVIDIA's runs %q, and nothing is listed that replaces it here", h.Args)
		}
	}
	if len(ours.Edits.Hooks) > 0 {
		t.Errorf("gpuledger's runs %+v", ours.Edits.Hooks)
	}
}

// onlyGpuledgers reports whether gpuledger includes a file that NVIDIA's generator leaves out.
func onlyGpuledgers(f grant.DriverFile) bool {
	return f.Bits == 32 || // only its legacy library has those
		// behind absolute links, which start at the driver root for gpuledger and at the host's
		// root for the generator
		f.Path == "/usr/lib/nvidia/mps"
}

// placesOf maps each path in a container, with the node's own directories, to the file that is
// mounted there. The file also keeps its own name beside those by which programs find it.
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

// linksOf reads the links that hooks are asked to make: --link TARGET::LINK.
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
