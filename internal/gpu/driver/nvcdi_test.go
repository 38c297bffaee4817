package driver_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/gpu/driver"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// nvcdi is what NVIDIA's own CDI generator (nvidia-container-toolkit 1.20.1) finds below a driver root. Its module is apart from
// ours, so that its requirements are not ours.
func nvcdi(t *testing.T) func(root string) cdispec.ContainerEdits {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nvcdi")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "../../../test/tools/nvcdi"
	build.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build NVIDIA's generator: %v\n%s", err, out)
	}
	return func(root string) (edits cdispec.ContainerEdits) {
		out, err := exec.Command(program, root, version).Output()
		if err == nil {
			err = json.Unmarshal(out, &edits)
		}
		if err != nil {
			t.Fatal(err)
		}
		return edits
	}
}

// TestNothingIsMissingThatNVIDIAsGeneratorFinds goes through its spec entry by entry: each mount, and each link that its hooks
// make.
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
				t.Fatalf("NVIDIA's generator finds only %d files: there is nothing to compare", len(theirs.Mounts))
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
				if want := ours[filepath.Join(filepath.Dir(link), target)]; ours[link] == "" || ours[link] != want {
					t.Errorf("%s: theirs leads to %s, which is our %q; ours is %q", link, target, want, ours[link])
				}
			}
			for _, f := range found.Files {
				if !slices.ContainsFunc(theirs.Mounts, func(m *cdispec.Mount) bool { return realBelow(t, dir, m.HostPath) == f.Path }) && !oursAlone(f) {
					t.Errorf("theirs has no %s, and nothing says why ours does", line(f))
				}
			}
		})
	}
}

// oursAlone are the files that NVIDIA's generator leaves out and we do not.
func oursAlone(f grant.DriverFile) bool {
	return f.Bits == 32 || // only its legacy library has those
		f.Path == "/usr/lib/nvidia/mps" // behind absolute links, which mean the driver root to us and the host to it
}

// placesOf maps each place in a container, at the node's own directories, to the file that comes there. The file itself keeps
// its own name beside those by which programs find it.
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
