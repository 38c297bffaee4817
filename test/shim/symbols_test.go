package shim

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// libraries are the proxies, with the prefix of their symbols. The throttling variant has the
// other's SONAME.
var libraries = map[string]string{"libcuda.so.1": "cu", throttling: "cu", "libnvidia-ml.so.1": "nvml"}

const throttling = "libcuda-throttle.so.1"

// soname is the SONAME of a proxy.
func soname(library string) string { return strings.ReplaceAll(library, "-throttle", "") }

// row is one of shim/cuda_entries.h or shim/nvml_entries.h.
type row struct{ kind, name, how, why string }

func table(t *testing.T) map[string]row {
	t.Helper()
	out, err := exec.Command(need(t, "plain") + "/bin/entries").Output()
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]row{}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if _, twice := rows[f[1]]; twice {
			t.Errorf("%s has two rows", f[1])
		}
		r := row{kind: f[0], name: f[1], how: f[2]}
		if len(f) == 4 {
			r.why = f[3]
		}
		rows[f[1]] = r
	}
	return rows
}

// TestEveryEntryPointIsDecided: each entry point that allocates, frees or reports memory is
// wrapped, or has a reason why not.
func TestEveryEntryPointIsDecided(t *testing.T) {
	rows := table(t)
	entryPoints, err := os.ReadFile("../../shim/entry-points")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(entryPoints)) {
		if _, decided := rows[name]; !decided {
			t.Errorf("%s is neither wrapped nor said to be passed on: give it a row in shim/cuda_entries.h "+
				"or shim/nvml_entries.h", name)
		}
	}
	for _, r := range rows {
		if r.kind == "passed" && (r.why == "" || r.how != "OVERHEAD" && r.how != "HARMLESS") {
			t.Errorf("%s is passed on as %q and %q", r.name, r.how, r.why)
		}
	}
}

// TestABuildFailsWithoutARow: if an entry point has no row in the tables, the build fails and names
// it.
func TestABuildFailsWithoutARow(t *testing.T) {
	for table, name := range map[string]string{"cuda_entries.h": "cuMemAllocManaged",
		"nvml_entries.h": "nvmlDeviceGetRunningProcessDetailList"} {
		dir := t.TempDir()
		sh(t, "cp -r ../../shim "+dir+`/shim; sed -i '/ROW(`+name+`,/d' `+dir+"/shim/"+table)
		out, err := exec.Command(dir+"/shim/build.sh", dir+"/out").CombinedOutput()
		if _, made := os.Stat(dir + "/out/libcuda.so.1"); err == nil || made == nil ||
			!strings.Contains(string(out), "neither wrapped nor said to be passed on: "+name+";") {
			t.Errorf("without %s: %v\n%s", name, err, out)
		}
	}
}

// TestTheProxiesExportWhatTheyWrap: no other symbol, which would hide the driver's, and none less.
func TestTheProxiesExportWhatTheyWrap(t *testing.T) {
	for library, prefix := range libraries {
		f := open(t, library)
		var want, got []string
		for _, r := range table(t) {
			if (r.kind == "wrapped" || r.kind == "launched" && library == throttling) &&
				strings.HasPrefix(r.name, prefix) {
				want = append(want, r.name)
			}
		}
		symbols, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF {
				got = append(got, s.Name)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s exports\n%v\nand wraps\n%v", library, got, want)
		}
	}
}

// TestABuildTouchesNoLibraryInUse: hami #753. The build does not write to a file that processes
// have mapped: a new file gets its name.
func TestABuildTouchesNoLibraryInUse(t *testing.T) {
	dir := t.TempDir()
	for library := range libraries {
		if err := os.WriteFile(filepath.Join(dir, library), []byte("in use"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(filepath.Join(dir, library), filepath.Join(dir, library+".used")); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("../../shim/build.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for library := range libraries {
		if content, err := os.ReadFile(filepath.Join(dir, library+".used")); err != nil ||
			string(content) != "in use" {
			t.Errorf("the %s that was there is overwritten: %v", library, err)
		}
		if info, err := os.Stat(filepath.Join(dir, library)); err != nil || info.Size() < 1000 {
			t.Errorf("there is no new %s: %v", library, err)
		}
	}
}

func open(t *testing.T, library string) *elf.File {
	t.Helper()
	f, err := elf.Open(need(t, "plain") + "/proxy/" + library)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// calls are the functions of the C library that a proxy may call inside a tenant's process: no
// output, no exit, no signal, no thread, no malloc, no environment.
var calls = []string{
	"__cxa_finalize", "__errno_location", "__register_atfork", "clock_gettime", "close", "dlopen", "dlsym",
	"fcntl", "getpid", "lseek", "madvise", "memcmp", "memcpy",
	"memset", "mmap", "munmap", "nanosleep", "open", "pthread_setcancelstate", "sched_yield", "strlen",
	"strncmp", "__stack_chk_fail",
	// weak symbols of the compiler's start files
	"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__",
}

var version = regexp.MustCompile(`^GLIBC_2\.(\d+)(\.\d+)?$`)

// TestTheProxiesNeedLittle: a proxy imports only those calls, from glibc 2.17 or before, and needs
// the real library by its absolute path.
func TestTheProxiesNeedLittle(t *testing.T) {
	for library := range libraries {
		f := open(t, library)
		imported, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range imported {
			if !slices.Contains(calls, s.Name) {
				t.Errorf("%s imports %s", library, s.Name)
			}
			if s.Version == "" {
				continue
			}
			m := version.FindStringSubmatch(s.Version)
			if m == nil {
				t.Errorf("%s imports %s of %s", library, s.Name, s.Version)
				continue
			}
			if minor, _ := strconv.Atoi(m[1]); minor > 17 {
				t.Errorf("%s imports %s of %s, which glibc 2.17 does not have", library, s.Name, s.Version)
			}
		}
		needed, _ := f.DynString(elf.DT_NEEDED)
		if want := []string{"/run/gpuledger/driver/" + soname(library), "libdl.so.2",
			"libc.so.6"}; !slices.Equal(needed, want) {
			t.Errorf("%s needs %v, want %v", library, needed, want)
		}
		if name, _ := f.DynString(elf.DT_SONAME); !slices.Equal(name, []string{soname(library)}) {
			t.Errorf("%s has SONAME %v", library, name)
		}
		checkStart(t, library, f)
	}
}

// checkStart: a load runs no code of the proxy and binds all symbols, and an unload does not forget
// the account.
func checkStart(t *testing.T, library string, f *elf.File) {
	t.Helper()
	for _, tag := range []elf.DynTag{elf.DT_INIT_ARRAYSZ, elf.DT_FINI_ARRAYSZ} {
		// One entry is the compiler's frame_dummy or __do_global_dtors_aux.
		if size, _ := f.DynValue(tag); len(size) > 1 || len(size) == 1 && size[0] > 8 {
			t.Errorf("%s has constructors or destructors: %v is %d", library, tag, size)
		}
	}
	const now, nodelete = 1, 8
	if flags, _ := f.DynValue(elf.DT_FLAGS_1); len(flags) != 1 || flags[0]&(now|nodelete) != now|nodelete {
		t.Errorf("%s is not linked with -z now and -z nodelete: %v", library, flags)
	}
}
