package driver_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/gpu/driver"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/test/elffile"
)

func TestMain(m *testing.M) {
	if runtime.GOARCH != "amd64" {
		fmt.Println(
			"SKIP: the driver roots of these tests are of amd64: the names of other architectures' " +
				"directories are not tested")
		return
	}
	os.Exit(m.Run())
}

func look(t *testing.T, r root, change ...func(*driver.Where)) driver.UserSpace {
	t.Helper()
	w := driver.Where{Root: r.make(t), Version: version, Release: "6.1.0-49-amd64"}
	for _, f := range change {
		f(&w)
	}
	found, err := driver.FindUserSpace(w)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// line is a file in one line: kind, capability, bits, path, target, names.
func line(f grant.DriverFile) string {
	text := string(f.Kind) + " " + string(f.Capability)
	if f.Bits != 0 {
		text += fmt.Sprint(" ", f.Bits)
	}
	text += " " + f.Path
	if f.Target != f.Path {
		text += " at " + f.Target
	}
	if len(f.Names) > 0 {
		text += " as " + strings.Join(f.Names, " ")
	}
	return text
}

func lines(files []grant.DriverFile) []string {
	list := []string{}
	for _, f := range files {
		list = append(list, line(f))
	}
	return list
}

func wantLines(t *testing.T, got driver.UserSpace, want ...string) {
	t.Helper()
	all := lines(got.Files)
	for _, w := range want {
		if !slices.Contains(all, w) {
			t.Errorf("not found: %s", w)
		}
	}
	if t.Failed() {
		t.Errorf("found\n%s\nnotes %q", strings.Join(all, "\n"), got.Notes)
	}
}

func TestDebian(t *testing.T) {
	found := look(t, debian())
	const dir = "/usr/lib/x86_64-linux-gnu"
	wantLines(t, found,
		"library compute 64 "+dir+"/libcuda.so.580.142 at "+dir+" as libcuda.so libcuda.so.1",
		"library utility 64 "+dir+"/libnvidia-ml.so.580.142 at "+dir+" as libnvidia-ml.so libnvidia-ml.so.1",
		"library compute 64 "+dir+"/libnvidia-nvvm.so.580.142 at "+dir+" as libnvidia-nvvm.so.4",
		"library compute 64 "+dir+"/libnvidia-nvvm70.so.4 at "+dir+" as libnvidia-nvvm70.so.4",
		"library compute 64 "+dir+"/libnvidia-gpucomp.so.580.142 at "+dir+" as libnvidia-gpucomp.so.580.142",
		"library compute 64 "+dir+"/libnvidia-allocator.so.580.142 at "+dir+
			" as gbm/nvidia-drm_gbm.so libnvidia-allocator.so.1",
		"library graphics 64 "+dir+"/libGLX_nvidia.so.580.142 at "+dir+
			" as libGLX_indirect.so.0 libGLX_nvidia.so.0",
		"library graphics 64 "+dir+"/libnvidia-egl-wayland.so.1.1.19 at "+dir+
			" as libnvidia-egl-wayland.so.1",
		"library video 64 "+dir+"/libnvidia-opticalflow.so.580.142 at "+dir+
			" as libnvidia-opticalflow.so libnvidia-opticalflow.so.1",
		"library video 64 "+dir+"/vdpau/libvdpau_nvidia.so.580.142 at "+dir+" as vdpau/libvdpau_nvidia.so.1",
		"library ngx 64 "+dir+"/libnvidia-ngx.so.580.142 at "+dir+" as libnvidia-ngx.so libnvidia-ngx.so.1",
		"library  64 "+dir+"/libnvidia-brandnew.so.580.142 at "+dir+" as libnvidia-brandnew.so.1",
		"library compute 32 /usr/lib/i386-linux-gnu/libcuda.so.580.142 at /usr/lib/i386-linux-gnu as "+
			"libcuda.so libcuda.so.1",
		"module display "+dir+"/nvidia/xorg/nvidia_drv.so at "+dir+"/nvidia/xorg as nvidia_drv.so",
		"module display "+dir+"/nvidia/xorg/libglxserver_nvidia.so.580.142 at "+dir+
			"/nvidia/xorg as libglxserver_nvidia.so",
		"binary utility /usr/bin/nvidia-smi",
		"binary compute /usr/lib/nvidia/mps at /usr/bin/nvidia-cuda-mps-server",
		"firmware  /usr/lib/firmware/nvidia/580.142/gsp_ga10x.bin at "+
			"/lib/firmware/nvidia/580.142/gsp_ga10x.bin",
		"firmware  /usr/lib/firmware/nvidia/580.142/gsp_tu10x.bin at "+
			"/lib/firmware/nvidia/580.142/gsp_tu10x.bin",
		"socket utility /run/nvidia-persistenced/socket",
		"config compute /etc/OpenCL/vendors/nvidia.icd",
		"config graphics /usr/share/glvnd/egl_vendor.d/10_nvidia.json",
		"config graphics /usr/share/vulkan/icd.d/nvidia_icd.json at /etc/vulkan/icd.d/nvidia_icd.json",
		"config graphics /usr/share/nvidia/nvoptix.bin",
		"config display /usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
	)
	for _, f := range found.Files {
		for _, not := range []string{"libnvidia-container", "libEGL.so", "libOpenCL", "libcudart", "libother",
			"other.bin", "570.1", "mps/control", "nvidia-mps", ".a"} {
			if strings.Contains(f.Path, not) || strings.HasSuffix(f.Path, ".a") {
				t.Errorf("%s is the driver's", f.Path)
			}
		}
	}
	if found.Version != version || len(found.Notes) > 0 {
		t.Errorf("version %q, notes %q", found.Version, found.Notes)
	}
}

func TestRHEL(t *testing.T) {
	wantLines(t, look(t, rhel()),
		"library compute 64 /usr/lib64/libcuda.so.580.142 at /usr/lib64 as libcuda.so libcuda.so.1",
		"library compute 32 /usr/lib/libcuda.so.580.142 at /usr/lib as libcuda.so libcuda.so.1",
		"module display /usr/lib64/xorg/modules/drivers/nvidia_drv.so at /usr/lib64/xorg/modules/drivers "+
			"as nvidia_drv.so",
		"module display /usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.580.142 at "+
			"/usr/lib64/xorg/modules/extensions as libglxserver_nvidia.so",
		"config graphics /usr/share/vulkan/icd.d/nvidia_icd.x86_64.json at "+
			"/etc/vulkan/icd.d/nvidia_icd.x86_64.json")
}

// TestDebiansOwnPackages: driver 470 among Debian's packages of several drivers, reached by
// alternatives, and without them.
func TestDebiansOwnPackages(t *testing.T) {
	const lib, tesla = "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/tesla-470"
	loaded := func(w *driver.Where) { w.Version = "470.256.02" }
	found := look(t, debianTesla(true), loaded)
	wantLines(t, found,
		"library compute 64 "+tesla+"/libcuda.so.470.256.02 at "+lib+" as libcuda.so libcuda.so.1",
		"library utility 64 "+tesla+"/libnvidia-ml.so.470.256.02 at "+lib+
			" as libnvidia-ml.so libnvidia-ml.so.1",
		"library video 64 "+tesla+"/libnvidia-encode.so.470.256.02 at "+tesla+
			" as libnvidia-encode.so libnvidia-encode.so.1",
		"library graphics 64 "+tesla+"/libnvidia-fbc.so.470.256.02 at "+tesla+
			" as libnvidia-fbc.so libnvidia-fbc.so.1",
		"library ngx 64 "+tesla+"/libnvidia-ngx.so.470.256.02 at "+tesla+
			" as libnvidia-ngx.so libnvidia-ngx.so.1",
		"library compute 64 "+lib+"/libnvidia-nvvm.so.4.0.0 at "+lib+" as libnvidia-nvvm.so.4",
		"binary compute /usr/bin/nvidia-cuda-mps-control",
		"binary compute /usr/sbin/nvidia-cuda-mps-server",
		"binary utility /usr/lib/nvidia/tesla-470/nvidia-smi at /usr/bin/nvidia-smi")
	for _, f := range found.Files {
		if strings.Contains(f.Path, "535") {
			t.Errorf("%s is of another driver", f.Path)
		}
	}
	wantLines(t, look(t, debianTesla(false), loaded),
		"library utility 64 "+tesla+"/libnvidia-ml.so.470.256.02 at "+tesla+
			" as libnvidia-ml.so libnvidia-ml.so.1")
}

// TestTheInstaller: the layout of NVIDIA's own installer (.run), with what an older driver left.
func TestTheInstaller(t *testing.T) {
	const lib = "/usr/lib/x86_64-linux-gnu"
	found := look(t, installer())
	wantLines(t, found,
		"library compute 64 "+lib+"/libcuda.so.580.142 at "+lib+" as libcuda.so libcuda.so.1",
		"library utility 64 "+lib+"/libnvidia-ml.so.580.142 at "+lib+" as libnvidia-ml.so libnvidia-ml.so.1",
		"library compute 64 "+lib+"/libnvidia-nvvm.so.580.142 at "+lib+
			" as libnvidia-nvvm.so libnvidia-nvvm.so.4",
		"binary compute /usr/bin/nvidia-cuda-mps-control", "binary compute /usr/bin/nvidia-cuda-mps-server")
	for _, f := range found.Files {
		if strings.Contains(f.Path, "nvvm.so.4.0.0") || strings.Contains(f.Path, "470") {
			t.Errorf("%s is of another driver", f.Path)
		}
	}
}

// TestOtherLayouts: Debian's own packages, NixOS, GKE's, and a driver container whose absolute
// links start at its own root.
func TestOtherLayouts(t *testing.T) {
	for name, c := range map[string]struct {
		root root
		want string
	}{
		"Debian's own packages": {
			root{"usr/lib/x86_64-linux-gnu/libcuda.so.1": "-> nvidia/current/libcuda.so.1",
				"usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1":       "-> libcuda.so.580.142",
				"usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.580.142": "so libcuda.so.1"},
			"library compute 64 /usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.580.142 at " +
				"/usr/lib/x86_64-linux-gnu as libcuda.so libcuda.so.1"},
		"NixOS": {root{"run/opengl-driver/lib/libcuda.so.1": "-> /nix/store/abc-nvidia/lib/libcuda.so.1",
			"nix/store/abc-nvidia/lib/libcuda.so.1":       "-> libcuda.so.580.142",
			"nix/store/abc-nvidia/lib/libcuda.so.580.142": "so libcuda.so.1"},
			"library compute 64 /nix/store/abc-nvidia/lib/libcuda.so.580.142 at /run/opengl-driver/lib as " +
				"libcuda.so libcuda.so.1"},
		"GKE": {root{"lib64/libcuda.so.580.142": "so libcuda.so.1",
			"lib64/libcuda.so.1": "-> libcuda.so.580.142"},
			"library compute 64 /lib64/libcuda.so.580.142 at /lib64 as libcuda.so libcuda.so.1"},
		"a driver container": {root{"usr/lib": "-> /opt/lib",
			"opt/lib/x86_64-linux-gnu/libcuda.so.1":       "-> /opt/lib/x86_64-linux-gnu/libcuda.so.580.142",
			"opt/lib/x86_64-linux-gnu/libcuda.so.580.142": "so libcuda.so.1"},
			"library compute 64 /opt/lib/x86_64-linux-gnu/libcuda.so.580.142 at /usr/lib/x86_64-linux-gnu " +
				"as libcuda.so libcuda.so.1"},
		"an installation without links": {root{"usr/lib64/libcuda.so.580.142": "so libcuda.so.1"},
			"library compute 64 /usr/lib64/libcuda.so.580.142 at /usr/lib64 as libcuda.so libcuda.so.1"},
		"libraries without SONAME": {root{"usr/lib64/libcuda.so.580.142": "so ",
			"usr/lib64/libcuda.so.1": "-> libcuda.so.580.142"},
			"library compute 64 /usr/lib64/libcuda.so.580.142 at /usr/lib64 as libcuda.so libcuda.so.1 " +
				"libcuda.so.580.142"},
	} {
		t.Run(name, func(t *testing.T) {
			found := look(t, c.root)
			if got := lines(found.Files); len(got) != 1 || got[0] != c.want {
				t.Errorf("found %q, want %q; notes %q", got, c.want, found.Notes)
			}
		})
	}
}

// cache writes a cache file of glibc's loader with these paths.
func cache(before string, paths ...string) string {
	const header, entry = 48, 24
	var b, text bytes.Buffer
	b.WriteString("glibc-ld.so.cache1.1")
	_ = binary.Write(&b, binary.LittleEndian, []uint32{uint32(len(paths)), 0, 0, 0, 0, 0, 0})
	for _, p := range paths {
		_ = binary.Write(&b, binary.LittleEndian, []uint32{0, uint32(header + entry*len(paths) + text.Len()),
			uint32(header + entry*len(paths) + text.Len()), 0, 0, 0})
		text.WriteString(p + "\x00")
	}
	return before + b.String() + text.String()
}

// TestALibraryThatOnlyTheLoaderCacheNames: NVIDIA's generator also falls back to the cache.
func TestALibraryThatOnlyTheLoaderCacheNames(t *testing.T) {
	place := root{"opt/odd/libcuda.so.580.142": "so libcuda.so.1",
		"opt/odd/libcuda.so.1": "-> libcuda.so.580.142"}
	const want = "library compute 64 /opt/odd/libcuda.so.580.142 at /opt/odd as libcuda.so libcuda.so.1"
	sound := cache("", "/lib/x86_64-linux-gnu/libc.so.6", "/opt/odd/libcuda.so.1")
	for name, c := range map[string]struct {
		cache string
		found bool
	}{
		"in it":                        {sound, true},
		"behind a cache of the old":    {cache("ld.so-1.7.0\x00 and entries", "/opt/odd/libcuda.so.1"), true},
		"not in it":                    {cache("", "/opt/odd/libother.so.1"), false},
		"by a relative path":           {cache("", "opt/odd/libcuda.so.1"), false},
		"cut off":                      {sound[:60], false},
		"with more entries than bytes": {strings.Replace(sound, "1.1\x02", "1.1\xff", 1), false},
		"of another format":            {"ld.so-9", false},
		"empty":                        {"", false},
	} {
		got := lines(look(t, together(place, root{"etc/ld.so.cache": c.cache})).Files)
		if found := slices.Equal(got, []string{want}); found != c.found || !found && len(got) > 0 {
			t.Errorf("%s: found %q", name, got)
		}
	}
	if got := lines(look(t,
		together(place,
			root{"etc/ld.so.cache": sound,
				"usr/lib64/libcuda.so.580.142": "so libcuda.so.1"})).Files); len(got) != 1 ||
		strings.Contains(got[0], "odd") {
		t.Errorf("with one at an ordinary place found %q", got)
	}
}

func TestVersion(t *testing.T) {
	two := root{"usr/lib64/libcuda.so.580.142": "so libcuda.so.1",
		"usr/lib64/libcuda.so.580.95.05":    "so libcuda.so.1",
		"usr/lib64/libcuda.so.1":            "-> libcuda.so.580.95.05",
		"usr/lib64/libnvidia-ml.so.580.142": "so libnvidia-ml.so.1"}
	loose := root{"usr/lib64/libcuda.so.580.142": "so libcuda.so.1",
		"usr/lib64/libcuda.so.580.95.05": "so libcuda.so.1"}
	for name, c := range map[string]struct {
		root         root
		loaded, want string
		note         string
	}{
		"the loaded driver's, whatever the links name":   {two, "580.142", "580.142", ""},
		"without a loaded one, what programs are led to": {two, "", "580.95.05", ""},
		"without links the highest, by number":           {loose, "", "580.142", ""},
		"by libnvidia-ml alone":                          {root{"usr/lib64/libnvidia-ml.so.550.54.15": "so libnvidia-ml.so.1"}, "", "550.54.15", ""},
		"libraries of another version":                   {two, "570.1", "", "driver 570.1 is loaded, but the libraries below DIR are of 580.95.05 and 580.142"},
		"no libraries":                                   {root{"usr/bin/nvidia-smi": "elf"}, "570.1", "", "driver 570.1 is loaded, but its libraries are not below DIR"},
		"nothing at all":                                 {root{}, "", "", ""},
		"a suffix that is no version of a driver":        {root{"usr/lib64/libcuda.so.1": "so libcuda.so.1", "usr/lib64/libcuda.so.580.x": "so libcuda.so.1"}, "", "", ""},
		"a stub of the toolkit without a driver":         {root{"usr/lib64/libcuda.so": "so libcuda.so.1"}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := ""
			found := look(t, c.root, func(w *driver.Where) { w.Version, dir = c.loaded, w.Root })
			if found.Version != c.want || c.want == "" && len(found.Files) > 0 {
				t.Errorf("version %q with %q, want %q", found.Version, lines(found.Files), c.want)
			}
			if got := strings.ReplaceAll(strings.Join(found.Notes, "; "), dir, "DIR"); got != c.note {
				t.Errorf("notes %q, want %q", got, c.note)
			}
		})
	}
}

// TestOddRoots: no link leads out of the root, nothing hangs, and one odd file removes no other.
func TestOddRoots(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "libnvidia-ml.so.580.142")
	if err := put(secret, "so libnvidia-ml.so.1"); err != nil {
		t.Fatal(err)
	}
	sound := root{"usr/lib64/libcuda.so.580.142": "so libcuda.so.1"}
	const kept = "library compute 64 /usr/lib64/libcuda.so.580.142 at /usr/lib64 as libcuda.so libcuda.so.1"
	for name, c := range map[string]struct {
		root root
		note string
	}{
		"a link that leads out by an absolute path":       {root{"usr/lib64/libnvidia-ml.so.580.142": "-> " + secret}, ""},
		"a link that leads out by ..":                     {root{"usr/lib64/libnvidia-ml.so.580.142": "-> " + strings.Repeat("../", 40) + secret}, ""},
		"a directory that leads out":                      {root{"lib64": "-> " + filepath.Dir(secret)}, ""},
		"a link through /proc":                            {root{"proc/self/root": "-> /", "usr/lib64/libnvidia-ml.so.580.142": "-> /proc/self/root" + secret}, ""},
		"a circle":                                        {root{"usr/lib64/libnvidia-ml.so.580.142": "-> libnvidia-ml.so.580.142", "lib64": "-> lib64"}, ""},
		"a file where a directory should be":              {root{"usr/lib": "x", "run": "x"}, ""},
		"a directory where a library should be":           {root{"usr/lib64/libnvidia-ml.so.580.142/x": "x"}, ""},
		"a directory where a program should be":           {root{"usr/bin/nvidia-smi/x": "x"}, ""},
		"an empty file where a program should be":         {root{"usr/bin/nvidia-smi": "#!"}, ""},
		"a program that may not be run":                   {root{"usr/bin/nvidia-smi": "x"}, ""},
		"a file where a socket should be":                 {root{"run/nvidia-persistenced/socket": "x"}, ""},
		"what is no library":                              {root{"usr/lib64/libnvidia-ml.so.580.142": "not ELF"}, "/usr/lib64/libnvidia-ml.so.580.142 is left out: it is no library: "},
		"an empty file":                                   {root{"usr/lib64/libnvidia-ml.so.580.142": ""}, "/usr/lib64/libnvidia-ml.so.580.142 is left out: it is no library: "},
		"a library of another machine":                    {root{"usr/lib64/libnvidia-ml.so.580.142": "sparc libnvidia-ml.so.1"}, "is left out: it is for another machine"},
		"a SONAME that is a path":                         {root{"usr/lib64/libnvidia-ml.so.580.142": "so ../../etc/passwd"}, `its SONAME "../../etc/passwd" is no file name`},
		"a link with a name that no mount should be of":   {root{"usr/lib64/libcuda.so.\n": "-> libcuda.so.580.142", "usr/lib64/libcuda.so. x": "-> libcuda.so.580.142"}, ""},
		"firmware that leads out":                         {root{"lib/firmware/nvidia/580.142": "-> " + filepath.Dir(secret), "lib/firmware/nvidia/580.142.": "x"}, ""},
		"a library that is cut off behind its ELF header": {root{"usr/lib64/libnvidia-ml.so.580.142": string(truncated())}, "/usr/lib64/libnvidia-ml.so.580.142 is left out: "},
	} {
		t.Run(name, func(t *testing.T) {
			found := look(t, together(sound, c.root))
			if got := lines(found.Files); len(got) != 1 || got[0] != kept {
				t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), kept)
			}
			if notes := strings.Join(found.Notes, "; "); (notes == "") != (c.note == "") ||
				!strings.Contains(notes, c.note) {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
		})
	}
}

func truncated() []byte {
	whole := elffile.Library(elf.ELFCLASS64, elf.EM_X86_64, "libnvidia-ml.so.1")
	return whole[:70]
}

// TestScriptsAreNoPrograms: a virtual machine with the driver in /usr/local/nvidia had scripts in
// /usr/bin that run the programs there.
func TestScriptsAreNoPrograms(t *testing.T) {
	const script = "#!/bin/sh\nexec /usr/local/nvidia/bin/program \"$@\"\n"
	wantLines(t, look(t, root{
		"usr/local/nvidia/lib64/libcuda.so.580.142":    "so libcuda.so.1",
		"usr/bin/nvidia-smi":                           script,
		"usr/local/nvidia/bin/nvidia-smi":              "elf",
		"usr/bin/nvidia-cuda-mps-control":              script,
		"usr/local/nvidia/bin/nvidia-cuda-mps-control": "elf",
	}), "binary utility /usr/local/nvidia/bin/nvidia-smi at /usr/bin/nvidia-smi",
		"binary compute /usr/local/nvidia/bin/nvidia-cuda-mps-control at /usr/bin/nvidia-cuda-mps-control")
}

// TestSpecialFilesAreNotOpened: opening a pipe would wait for ever, and opening a device could have
// an effect.
func TestSpecialFilesAreNotOpened(t *testing.T) {
	dir := root{"usr/lib64/libcuda.so.580.142": "so libcuda.so.1", "usr/bin/x": "x"}.make(t)
	for _, name := range []string{"usr/lib64/libnvidia-ml.so.580.142", "usr/bin/nvidia-smi"} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	found, err := driver.FindUserSpace(driver.Where{Root: dir})
	if err != nil || len(found.Files) != 1 {
		t.Errorf("%v, found %q", err, lines(found.Files))
	}
}

func TestFirmwareDirectories(t *testing.T) {
	base := root{"usr/lib64/libcuda.so.580.142": "so libcuda.so.1"}
	for name, dir := range map[string]string{"set by the kernel's command line": "opt/firmware",
		"of the boot": "lib/firmware/6.1.0-49-amd64", "an update": "lib/firmware/updates",
		"an update of the boot": "lib/firmware/updates/6.1.0-49-amd64", "ordinary": "lib/firmware"} {
		found := look(t, together(base, root{dir + "/nvidia/580.142/gsp_ga10x.bin": "x"}),
			func(w *driver.Where) { w.Firmware = "/opt/firmware" })
		if want := "firmware  /" + dir + "/nvidia/580.142/gsp_ga10x.bin"; !slices.Contains(lines(found.Files),
			want) {
			t.Errorf("%s: found %q, want %q", name, lines(found.Files), want)
		}
	}
}

func TestASecondLookGivesTheSame(t *testing.T) {
	dir := debian().make(t)
	w := driver.Where{Root: dir, Version: version, Release: "6.1"}
	first, err := driver.FindUserSpace(w)
	if err != nil {
		t.Fatal(err)
	}
	second, err := driver.FindUserSpace(w)
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("%v\n%v\n%v", err, first, second)
	}
}

func TestNoRoot(t *testing.T) {
	found, err := driver.FindUserSpace(driver.Where{Root: "/nowhere/at/all"})
	if err != nil || len(found.Files) > 0 || len(found.Notes) != 1 ||
		found.Notes[0] != "there is no driver root /nowhere/at/all" {
		t.Errorf("%v, %+v", err, found)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.FindUserSpace(driver.Where{Root: file}); err == nil ||
		!strings.HasPrefix(err.Error(), "cannot look for the driver's files below "+file) {
		t.Errorf("a file for a root: %v", err)
	}
}

func TestDriverRootOfAnInventory(t *testing.T) {
	dir := root{"proc/sys/kernel/osrelease": "6.1.0-49-amd64\n",
		"sys/module/firmware_class/parameters/path": "/opt/fw\n"}.make(t)
	h := host.Host{Proc: dir + "/proc", Sys: dir + "/sys"}
	inv := grant.Inventory{Driver: grant.Driver{Root: "/drv", Version: version}}
	want := driver.Where{Root: "/drv", Version: version, Release: "6.1.0-49-amd64", Firmware: "/opt/fw"}
	if got, err := driver.Of(inv, h); err != nil || got != want {
		t.Errorf("%v, %+v", err, got)
	}
	h.Sys = dir + "/none"
	want.Firmware = ""
	if got, err := driver.Of(inv, h); err != nil || got != want {
		t.Errorf("without the kernel's own directory: %v, %+v", err, got)
	}
	h.Proc = dir + "/none"
	if _, err := driver.Of(inv, h); err == nil {
		t.Error("a kernel without a release")
	}
}
