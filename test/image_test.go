package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// vendors are read as GLVND's libEGL and OpenCL's ICD loader read them: every file of a directory
// names a library, which is loaded by that name.
const vendors = `#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static void load(const char *dir, const char *file) {
	char path[512], text[1024] = "", *name = text;
	snprintf(path, sizeof path, "%s/%s", dir, file);
	FILE *f = fopen(path, "r");
	if (!f || fread(text, 1, sizeof text - 1, f) == 0)
		return;
	fclose(f);
	if (strstr(file, ".json")) {
		if (!(name = strstr(text, "\"library_path\"")) || !(name = strchr(name, ':')) || !(name = strchr(name, '"')))
			return;
		name++;
	}
	name[strcspn(name, "\"\n")] = 0;
	void *lib = dlopen(name, RTLD_NOW);
	const char *(*version)(void) = lib ? (const char *(*)(void))dlsym(lib, "version") : 0;
	printf("%s: %s %s\n", file, name, version ? version() : "none");
}
int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		DIR *dir = opendir(argv[i]);
		if (!dir)
			printf("no %s\n", argv[i]);
		for (struct dirent *e; dir && (e = readdir(dir));)
			if (e->d_name[0] != '.')
				load(argv[i], e->d_name);
	}
	return 0;
}`

// withVendors adds what OpenCL and EGL programs search for to the driver of a node.
func withVendors(t *testing.T, n *rig.Node) {
	t.Helper()
	withDriver(t, n)
	root := n.Dir + "/driver"
	for file, soname := range map[string]string{"libEGL_nvidia.so.999.1": "libEGL_nvidia.so.0",
		"libnvidia-opencl.so.999.1": "libnvidia-opencl.so.1"} {
		source := n.Write("library.c", `const char *version(void) { return "of `+file+`"; }`)
		compile(t, "-shared", "-fPIC", "-Wl,-soname,"+soname, "-o", root+"/usr/lib64/"+file, source)
		must(t, os.Symlink(file, root+"/usr/lib64/"+soname))
	}
	for path, content := range map[string]string{
		"etc/OpenCL/vendors/nvidia.icd":               "libnvidia-opencl.so.1\n",
		"usr/share/glvnd/egl_vendor.d/10_nvidia.json": "{\n    \"file_format_version\" : \"1.0.0\",\n    \"ICD\" : {\n        \"library_path\" : \"libEGL_nvidia.so.0\"\n    }\n}\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(root+"/"+path), 0o755),
			os.WriteFile(root+"/"+path, []byte(content), 0o644))
	}
	n.Must("inventory", "refresh")
}

// TestVendorsInImagesOfAllShapes: a program that searches for a vendor's library by a file finds it
// in each image, without LD_LIBRARY_PATH, and the cache lists it. Libraries that were not requested
// are missing.
func TestVendorsInImagesOfAllShapes(t *testing.T) {
	rig.Need(t, "gcc", "/sbin/ldconfig")
	n := rig.NewNode(t, rig.Setup{})
	withVendors(t, n)
	const look = "/vendors /etc/OpenCL/vendors /usr/share/glvnd/egl_vendor.d"
	const opencl, egl = "nvidia.icd: libnvidia-opencl.so.1 of libnvidia-opencl.so.999.1\n",
		"10_nvidia.json: libEGL_nvidia.so.0 of libEGL_nvidia.so.999.1\n"
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			n.T = t
			for _, c := range []struct{ capabilities, found, listed string }{
				{"compute,utility,graphics", opencl + egl, "libnvidia-opencl.so.1 libEGL_nvidia.so.0"},
				{"compute", opencl + "no /usr/share/glvnd/egl_vendor.d\n", "libnvidia-opencl.so.1"},
			} {
				reference := n.Grant("--memory", "1GiB")
				b := n.Bundle(fmt.Sprintf("%s-%d", name, len(c.capabilities)), with(reference),
					rig.Env("NVIDIA_DRIVER_CAPABILITIES="+c.capabilities),
					rig.Shell(look+"; /sbin/ldconfig -p | /bin/busybox grep -oE "+
						"'libnvidia-opencl.so.1|libEGL_nvidia.so.0' | /bin/busybox uniq | "+
						"/bin/busybox grep -v /"))
				s.make(t, b)
				compile(t, "-Wl,--dynamic-linker="+s.loader, "-o", b.Dir+"/rootfs/vendors",
					n.Write("vendors.c", vendors))
				want := c.found + strings.ReplaceAll(c.listed, " ", "\n") + "\n"
				if s.bare || s.cache != usualCache {
					want = c.found
					b.WriteSpec(edited(t, b, func(s *specs.Spec) { s.Process.Args = strings.Fields(look) }))
				}
				if r := b.Run(); r.Stdout != want || r.Code != 0 {
					t.Errorf("%s: %+v, want\n%s", c.capabilities, r, want)
				}
			}
		})
	}
}

// packed builds a package of these files, and of control files after DEBIAN/.
func packed(t *testing.T, n *rig.Node, name string, files map[string]string) (deb string) {
	t.Helper()
	dir := filepath.Join(n.Dir, "packages", name)
	files["DEBIAN/control"] = "Package: " + name +
		"\nVersion: 1\nArchitecture: all\nMaintainer: test <test@example.com>\nDescription: of a test\n"
	for path, content := range files {
		must(t, os.MkdirAll(filepath.Dir(dir+"/"+path), 0o755),
			os.WriteFile(dir+"/"+path, []byte(content), 0o755))
	}
	if out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", dir,
		dir+".deb").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir + ".deb"
}

// brings copies a program of this machine into an image, with the libraries that it is linked with.
func brings(t *testing.T, rootfs, libraries, program string) {
	t.Helper()
	path, err := exec.LookPath(program)
	must(t, err)
	must(t, os.MkdirAll(rootfs+"/usr/bin", 0o755), os.WriteFile(rootfs+"/usr/bin/"+program,
		[]byte(read(t, path)), 0o755))
	out, err := exec.Command("ldd", path).Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		_, found, linked := strings.Cut(line, " => ")
		file, _, _ := strings.Cut(found, " (")
		if !linked || !strings.HasPrefix(file, "/") || strings.HasPrefix(filepath.Base(file), "libc.so") {
			continue
		}
		must(t, os.WriteFile(rootfs+libraries+filepath.Base(file), []byte(read(t, file)), 0o755))
	}
}

// TestAPackageIsInstalledInTheContainer that has a library: the package manager runs ldconfig,
// which replaces the cache that gpuledger wrote, and programs find both the package's library and
// the driver's.
func TestAPackageIsInstalledInTheContainer(t *testing.T) {
	rig.Need(t, "gcc", "dpkg", "dpkg-deb", "tar", "ldd", "/sbin/ldconfig")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	compile(t, "-shared", "-fPIC", "-Wl,-soname,libextra.so.1", "-o", n.Dir+"/libextra",
		n.Write("extra.c", `const char *version(void) { return "of a package"; }`))
	// What libc6 and libc-bin have on Debian.
	linker := packed(t, n, "linker", map[string]string{"DEBIAN/triggers": "interest-noawait ldconfig\n",
		"DEBIAN/postinst": "#!/bin/sh\n[ \"$1\" != triggered ] || { ldconfig; echo ldconfig has run; }\n"})
	extra := packed(t, n, "extra", map[string]string{
		"usr/lib/x86_64-linux-gnu/libextra.so.1": read(t, n.Dir+"/libextra"),
		"DEBIAN/triggers":                        "activate-noawait ldconfig\n"})

	b := n.Bundle("debian", with(n.Grant("--memory", "1GiB")), rig.Env("PATH=/sbin:/usr/bin:/bin"), rig.Shell(`
/usr/bin/dpkg -i /linker.deb /extra.deb >/log 2>&1 || { cat /log; exit 1; }
grep -q "^ldconfig has run$" /log || cat /log
/client libcuda.so.1 libnvidia-ml.so.1 libextra.so.1
ldconfig -p | grep -oE "(libcuda|libnvidia-ml|libextra)\.so\.1 .*"`))
	s := shapes["debian"]
	s.make(t, b)
	rootfs := b.Dir + "/rootfs"
	for _, program := range []string{"dpkg", "dpkg-deb", "dpkg-split", "tar"} {
		brings(t, rootfs, s.dirs[0], program)
	}
	for _, applet := range []string{"sh", "rm", "diff", "cat", "grep", "start-stop-daemon"} {
		must(t, os.Symlink("busybox", rootfs+"/bin/"+applet))
	}
	must(t, os.MkdirAll(rootfs+"/var/lib/dpkg/info", 0o755),
		os.MkdirAll(rootfs+"/var/lib/dpkg/updates", 0o755),
		os.MkdirAll(rootfs+"/var/lib/dpkg/triggers", 0o755),
		os.WriteFile(rootfs+"/var/lib/dpkg/status", nil, 0o644),
		os.WriteFile(rootfs+"/linker.deb", []byte(read(t, linker)), 0o644),
		os.WriteFile(rootfs+"/extra.deb", []byte(read(t, extra)), 0o644))
	const at = " (libc6,x86-64) => "
	want := "libcuda.so.1 of libcuda.so.999.1\nlibnvidia-ml.so.1 of libnvidia-ml.so.999.1\nlibextra.so.1 " +
		"of a package\n" +
		"libnvidia-ml.so.1" + at + s.dirs[0] + "libnvidia-ml.so.1\nlibextra.so.1" + at +
		"/usr/lib/x86_64-linux-gnu/libextra.so.1\nlibcuda.so.1" + at + s.dirs[0] + "libcuda.so.1\n"
	if r := b.Run(); r.Stdout != want || r.Code != 0 {
		t.Errorf("%+v, want\n%s", r, want)
	}
}
