package test

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// frontCalls are the system calls of a call that is not judged, up to the exec of the real runtime.
// All others would be Go's, whose start the front saves.
var frontCalls = []string{"execve", "openat", "read", "close", "fcntl", "statx", "newfstatat"}

// TestFrontComesBeforeGo: for a line as engines write it the front executes the real runtime, with
// its arguments, and Go does not start. For another one Go does. Nothing depends on the name by
// which an engine calls.
func TestFrontComesBeforeGo(t *testing.T) {
	rig.Need(t, "strace")
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	real := write("runc", "#!/bin/sh\necho \"$0 $*\"\n", 0o755)
	link := filepath.Join(dir, "gpuledger-runtime.crio")
	must(t, os.Symlink(rig.Binary(t, "gpuledger-runtime"), link))
	must(t, os.MkdirAll(filepath.Join(dir, "c1"), 0o700))
	must(t, os.Symlink("c1", filepath.Join(dir, "link")))
	plain := "[runtime]\npath = [\"" + real + "\"]\n"
	for _, c := range []struct {
		name, config, env, line string
		before                  bool
	}{
		{"state", plain, "", "--root /r state c1", true},
		{"a probe", plain, "", "--root /r --log /l exec --process /p --pid-file /f --detach c1", true},
		{"only a name", "[runtime]\npath = [\"runc\"]\n", "", "--root /r state c1", true},
		{"the first of several has the container", "[runtime]\npath = [\"none\", \"runc\"]\n", "",
			"--root " + dir + " state c1", true},
		{"the first of several does not have it", "[runtime]\npath = [\"none\", \"runc\"]\n", "",
			"--root " + dir + " state c2", false},
		{"of no container", "[runtime]\npath = [\"none\", \"runc\"]\n", "", "--root /r list", true},
		{"an odd option", plain, "", "--root /r --log-level x state c1", false},
		{"NVIDIA's runtime has the container", plain + "unjudged = \"x\"\n", "",
			"--root " + dir + " state c2", false},
		{"NVIDIA's runtime does not have it", plain + "unjudged = \"x\"\n", "",
			"--root " + dir + " state c1", true},
		{"a root that Go reads otherwise", plain + "unjudged = \"x\"\n", "",
			"--root " + dir + "/link/.. state c1", false},
		{"called back", plain, "_GPULEDGER_HANDED_ON=1", "--root /r state c1", false},
		{"descriptors by systemd's protocol", plain, "LISTEN_FDS=0",
			"exec --process /p c1", false},
		{"a configuration that only Go reads", "x = 1.5\n" + plain, "", "--root /r state c1", false},
		{"the first runtime is the wrapper",
			"[runtime]\npath = [\"" + link + "\", \"" + real + "\"]\n", "",
			"--root " + dir + " state c1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, trace := write("config.toml", c.config, 0o600), filepath.Join(dir, "trace")
			write("c1/state.json", "{}", 0o600)
			cmd := exec.Command("strace", append([]string{"-o", trace, link},
				strings.Fields(c.line)...)...)
			cmd.Env = append(os.Environ(), "GPULEDGER_CONFIG="+config,
				"PATH="+dir+":"+os.Getenv("PATH"), c.env)
			out, err := cmd.CombinedOutput()
			if want := real + " " + c.line + "\n"; err != nil || string(out) != want {
				t.Fatalf("%v\n%s\nwant %s", err, out, want)
			}
			text, err := os.ReadFile(trace)
			must(t, err)
			if before := onlyCalls(string(text), frontCalls); before != c.before {
				t.Errorf("before Go: %v, want %v\n%.2000s", before, c.before, text)
			}
		})
	}
}

// TestTheRuntimeThatKeepsTheContainer gets its subcommands, whichever of several is the first. So
// it is while the configuration is missing or no TOML, and a runtime was installed since.
func TestTheRuntimeThatKeepsTheContainer(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	for _, name := range []string{"bin/runc", "bin/crun", "crio/crun"} {
		write(name, "#!/bin/sh\necho "+name+"\n")
	}
	two := fmt.Sprintf("state_dir = %q\nrun_dir = %q\n[runtime]\npath = [\"runc\", \"crun\"]\n", dir+"/s",
		dir+"/r")
	write("ofrunc/state.json", "{}")
	write("ofcrun/status", "{}")
	for _, c := range []struct{ name, config, line, want string }{
		{"no configuration", "-", "state ofcrun", "bin/crun"},
		{"no configuration", "-", "state ofrunc", "bin/runc"},
		{"no configuration", "-", "state ofnone", "bin/runc"},
		{"two", two, "state ofcrun", "bin/crun"},
		{"two", two, "delete ofcrun", "bin/crun"},
		{"no TOML", "[runtime]\npath = [\"" + dir + "/crio/crun\"]\n[policy]\nmode = \"report\n", "state x",
			"crio/crun"},
	} {
		config := filepath.Join(dir, "config.toml")
		_ = os.Remove(config)
		if c.config != "-" {
			write("config.toml", c.config)
		}
		cmd := exec.Command(rig.Binary(t, "gpuledger-runtime"),
			append([]string{"--root", dir}, strings.Fields(c.line)...)...)
		cmd.Env = append(os.Environ(), "GPULEDGER_CONFIG="+config, "PATH="+dir+"/bin:"+os.Getenv("PATH"))
		if out, err := cmd.Output(); err != nil || string(out) != c.want+"\n" {
			t.Errorf("%s, %s: %q, %v; want %s", c.name, c.line, out, err, c.want)
		}
	}
}

// TestClosedDescriptorsAreFilled: the real runtime gets /dev/null in place of a standard descriptor
// that is closed. A runtime in C would give the container the next file that it opens, such as that
// of --log, which may be a cgroup's cgroup.procs.
func TestClosedDescriptorsAreFilled(t *testing.T) {
	dir := t.TempDir()
	real, said := filepath.Join(dir, "runc"), filepath.Join(dir, "said")
	script := "#!/bin/sh\nat() { readlink /proc/$$/fd/$1 || echo none; }\n" +
		"a=$(at 0) b=$(at 1) c=$(at 2)\necho $a $b $c >" + said + "\n"
	must(t, os.WriteFile(real, []byte(script), 0o755))
	config := filepath.Join(dir, "config.toml")
	must(t, os.WriteFile(config, []byte("[runtime]\npath = [\""+real+"\"]\n"), 0o600))
	for _, line := range []string{"--root /r state c1", "--root /r exec --process /p c1"} {
		for closed := range 3 {
			arguments := append([]string{"-c", fmt.Sprintf(`exec "$@" %d>&-`, closed), "sh",
				rig.Binary(t, "gpuledger-runtime")}, strings.Fields(line)...)
			cmd := exec.Command("sh", arguments...)
			cmd.Env = append(os.Environ(), "GPULEDGER_CONFIG="+config)
			must(t, cmd.Run())
			if got := strings.Fields(read(t, said)); len(got) != 3 || got[closed] != os.DevNull {
				t.Errorf("%s, %d closed: the runtime's descriptors are %q", line, closed, got)
			}
		}
	}
}

// TestConfigurationInAPipe: the front leaves to Go what can be read once only.
func TestConfigurationInAPipe(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"runc", "other"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+"\n"), 0o755))
	}
	reads, writes, err := os.Pipe()
	must(t, err)
	_, err = fmt.Fprintf(writes, "only_go = 1.5\n[runtime]\npath = [\"%s/other\"]\n", dir)
	must(t, errors.Join(err, writes.Close()))
	cmd := exec.Command(rig.Binary(t, "gpuledger-runtime"), "--root", "/r", "state", "c1")
	cmd.Env = append(os.Environ(), "GPULEDGER_CONFIG=/dev/fd/3", "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.ExtraFiles = []*os.File{reads}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "other\n" {
		t.Errorf("%v\n%s\nwant the runtime of the configuration", err, out)
	}
}

// onlyCalls reports whether a program makes no other system calls until it executes the next one.
func onlyCalls(trace string, allowed []string) bool {
	for i, line := range strings.Split(trace, "\n") {
		name, _, _ := strings.Cut(line, "(")
		if i > 0 && name == "execve" {
			return true
		}
		if !strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+name+" ") {
			return false
		}
	}
	return false
}

// TestFrontIsSmallAndAlone: the front has less than 32 KiB on both architectures, calls no library,
// and has nothing that can be written. Its build refuses each of these (front/front.ld, -z defs),
// which this test plants.
func TestFrontIsSmallAndAlone(t *testing.T) {
	compilers := map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
	compilers[runtime.GOARCH] = "cc"
	for arch, cc := range compilers {
		if _, err := exec.LookPath(cc); err != nil {
			t.Logf("%s is not built: there is no %s", arch, cc)
			continue
		}
		for name, planted := range map[string]string{
			"":        "",
			"large":   "static const char large[32768] = {1}; const char *p(int i) { return large + i; }",
			"written": "int written = 1; int w(void) { return written++; }",
			"libc":    "int puts(const char *); int l(void) { return puts(\"\"); }",
			"pointer": "int here; int *volatile at = &here;",
		} {
			t.Run(arch+" "+name, func(t *testing.T) {
				src := t.TempDir()
				must(t, os.CopyFS(src, os.DirFS("../front")))
				must(t, os.Chmod(src+"/build.sh", 0o755))
				f, err := os.OpenFile(src+"/front.c", os.O_APPEND|os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteString(planted)
				must(t, err)
				must(t, f.Close())
				cmd := exec.Command(src+"/build.sh", arch, src+"/out.s")
				cmd.Env = append(os.Environ(), "CC="+cc)
				if out, err := cmd.CombinedOutput(); (err == nil) != (name == "") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
	program, err := elf.Open(rig.Binary(t, "gpuledger-runtime"))
	must(t, err)
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("gpuledger-runtime has %v: it is not static", p.Type)
		}
	}
}
