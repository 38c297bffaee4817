// Package front compares what the front reads, which is C, with what Go and the runtimes read.
package front

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// reader is the front's reading in a process of its own, with sanitizers.
type reader struct {
	in    io.Writer
	out   *bufio.Reader
	mutex sync.Mutex
}

// start compiles the reader and starts it. Options of the compiler can plant a mistake.
func start(t testing.TB, options ...string) *reader {
	t.Helper()
	program := filepath.Join(t.TempDir(), "reader")
	build := exec.Command("cc", slices.Concat([]string{"-std=gnu11", "-O1", "-g",
		"-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-o", program}, options, []string{"reader/main.c"})...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &reader{in: in, out: bufio.NewReader(out)}
}

// ask returns the parts of an answer, or nil for "no".
func (r *reader) ask(t testing.TB, kind byte, text string) []string {
	t.Helper()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	request := binary.NativeEndian.AppendUint32([]byte{kind}, uint32(len(text)))
	if _, err := r.in.Write(append(request, text...)); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	answer, err := r.out.ReadString(0)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if answer = strings.TrimSuffix(answer, "\x00"); answer == "no" {
		return nil
	}
	return strings.Split(answer, "\x01")
}

// line asks for a line, and returns the subcommand, --root and the container.
func (r *reader) line(t testing.TB, words []string) (command, root, id string, passed bool) {
	t.Helper()
	answer := r.ask(t, 'l', strings.Join(append([]string{"runc"}, words...), "\x00")+"\x00")
	if answer == nil {
		return "", "", "", false
	}
	return answer[0], answer[1], answer[2], true
}

// fault returns how another reader of a line that the front passes on understands it otherwise,
// or "".
func (r *reader) fault(t testing.TB, words []string) string {
	t.Helper()
	command, root, id, passed := r.line(t, words)
	if !passed || command == "--version" {
		if passed && words[len(words)-1] != "--version" {
			return "something follows --version"
		}
		return ""
	}
	argv := append([]string{"runc"}, words...)
	c := oci.Parse(argv)
	switch {
	case c.Name != command || c.Root != root || slices.Contains([]string{"update", "delete"}, c.Name) ||
		slices.Contains(oci.Creates, c.Name):
		return "Go reads " + c.Name + ", " + c.Root
	case c.ID != id && slices.Contains([]string{"state", "start", "exec", "pause", "resume"}, command):
		return "Go reads the container " + c.ID
	case c.Short != "":
		return "runtimes disagree on " + c.Short
	case oci.LeavesCgroup(c.ExecOptions(argv)) != "":
		return "the process leaves the cgroup of its container"
	case command == "exec" && oci.MaxDescriptors(c.ExecOptions(argv), "") != 3:
		return "the process gets more descriptors"
	}
	for name, model := range map[string]func([]string) (string, string, bool){
		"runc": asRunc, "crun": asCrun, "youki": asYouki, "urfave/cli v3": asInterspersed} {
		if as, of, ok := model(words); ok && (as != command || of != root) {
			return name + " reads " + as + ", " + of
		}
	}
	return ""
}

// vocabulary has the words for which the fuzzer's bytes stand. The first ones make a usual line.
var vocabulary = []string{"--root", "/r", "--log", "/l", "--log-format", "json", "--systemd-cgroup",
	"--debug",
	"state", "start", "kill", "exec", "pause", "resume", "ps", "list", "events", "features",
	"--version",
	"c1", "TERM", "--all", "--process", "/p", "--console-socket", "/s", "--pid-file", "/f",
	"--detach", "--tty",
	"--format", "--quiet", "--stats", "--root=/r", "--log=/l", "--log-format=json", "--process=/p",
	"--pid-file=/f",
	"create", "run", "restore", "update", "delete", "--", "-", "", "-b", "--bundle", "--bundle=/b",
	"-root", "-log",
	"--roo", "--lo", "--deb", "--log-level", "--log-level=x", "--rootless", "--rootless=true", "--criu",
	"--cgroup-manager", "--cgroup-manager=disabled", "--root=", "--log=", "--debug=false",
	"--systemd-cgroup=true",
	"--cgroup", "--cgroup=../x", "--preserve-fds", "--preserve-fds=2", "-p", "-d", "-t", "-f", "-q",
	"-a", "-v", "-h",
	"--help", "--tty=create", "--root=create", "--log=run", "---root", "--state", "spec",
	"checkpoint", "sh", "-rl",
	"-sr", "--format=json", "--format=", "--stat", "=", "--=x", "create=", "delete\n", " create"}

func words(input []byte) (list []string) {
	for _, b := range input {
		list = append(list, vocabulary[int(b)%len(vocabulary)])
	}
	return list
}

// FuzzLine: a line that the front passes on is the same subcommand, and none that is judged, for
// Go and for each runtime.
func FuzzLine(f *testing.F) {
	r := start(f)
	for i := range vocabulary {
		f.Add([]byte{0, 1, 2, 3, 4, 5, 6, byte(i), 8, 19})
		f.Add([]byte{0, 1, 11, 22, 23, byte(i), 19})
		f.Add([]byte{0, 1, byte(i), 10, 19, 20})
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) > 64 {
			return
		}
		list := words(input)
		if fault := r.fault(t, list); fault != "" {
			t.Errorf("%q: %s", list, fault)
		}
	})
}

// usual are lines as engines write them: they must be passed on.
var usual = []string{
	"--root /r --log /l --log-format json --systemd-cgroup start c1",
	"--root /r --log /l --log-format json state c1",
	"--root /r --log /l --log-format json kill --all c1 9", "--root=/r state c1",
	"--root=/r --systemd-cgroup start c1",
	"--root /r --log /l --log-format json exec --process /p --console-socket /s --detach --pid-file /f c1",
	"--log-format=json --log /l exec --pid-file /f --process /p --detach c1",
	"--root=/r exec --pid-file /f --process /p --detach --tty c1",
	"--root /r --log /l --log-format json ps --format json c1", "--root /r list --format json",
	"--root /r list",
	"kill c1 TERM", "kill c1", "pause c1", "resume c1", "features", "--version",
	"--debug --root /r events --stats c1",
}

// judgedOrOdd are lines that Go has to see.
var judgedOrOdd = []string{
	"", "create --bundle /b c1", "--root /r delete --force c1", "delete c1", "run c1", "update c1",
	"restore c1",
	"--root create state c1", "--root state create c1", "--roo /r state c1", "-root /r state c1",
	"--root /r --root /s state c1",
	"--root= state c1", "--root", "--debug=true state c1", "--log-level debug state c1",
	"-- state c1", "state -- c1",
	"state", "state c1 c2", "state create", "state -c1", "--root -x state c1", "exec c1 sh",
	"exec --process /p c1 sh",
	"exec --process /p --cgroup x c1", "exec --process /p --preserve-fds 1 c1",
	"exec --process /p --tty=x c1",
	"exec -p /p c1", "exec --proc /p c1", "exec --process /p", "checkpoint c1", "spec", "init",
	"stat c1", "states c1",
	"--version state", "--version create c1", "kill c1 9 --all", "kill -9 c1", "list c1", "--help",
	"help",
}

func TestLines(t *testing.T) {
	r := start(t)
	for _, line := range usual {
		if _, _, _, passed := r.line(t, strings.Fields(line)); !passed {
			t.Errorf("%q is not passed on", line)
		}
		if fault := r.fault(t, strings.Fields(line)); fault != "" {
			t.Errorf("%q: %s", line, fault)
		}
	}
	for _, line := range judgedOrOdd {
		if _, _, _, passed := r.line(t, strings.Fields(line)); passed {
			t.Errorf("%q is passed on", line)
		}
	}
}

// TestPlantedMistakes: each of these wrong tables is found, by the lines that FuzzLine begins with
// or by few more. -D replaces a word of the tables (reader/main.c includes front/read.c).
func TestPlantedMistakes(t *testing.T) {
	for name, options := range planted {
		t.Run(name, func(t *testing.T) {
			r := start(t, options...)
			for seed := range uint64(400_000) {
				if r.fault(t, words(random(seed))) != "" {
					return
				}
			}
			t.Error("not found in 400,000 lines")
		})
	}
}

var planted = map[string][]string{
	"--debug with a value":       {"-DGLOBAL_OPTIONS=\"--root= --log= --log-format= --systemd-cgroup --debug=\""},
	"--log without a value":      {"-DGLOBAL_OPTIONS=\"--root= --log --log-format= --systemd-cgroup --debug\""},
	"an option of one runtime":   {"-DGLOBAL_OPTIONS=\"--root= --log= --log-format= --log-level --debug\""},
	"--cgroup of exec":           {"-DEXEC_OPTIONS=\"--process= --cgroup=\""},
	"--preserve-fds of exec":     {"-DEXEC_OPTIONS=\"--process= --preserve-fds=\""},
	"--tty of exec with a value": {"-DEXEC_OPTIONS=\"--process= --tty=\""},
}

// random returns up to twelve bytes, mostly of a line that is passed on.
func random(seed uint64) []byte {
	next := func(below uint64) uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return seed >> 33 % below
	}
	starts := [][]byte{{0, 1, 8, 19}, {0, 1, 7, 8, 19}, {0, 1, 11, 22, 23, 19}, {7, 10, 19, 20}}
	line := slices.Clone(starts[next(uint64(len(starts)))])
	for range 1 + next(2) {
		line = slices.Insert(line, int(next(uint64(len(line)+1))), byte(next(uint64(len(vocabulary)))))
	}
	return line
}

// FuzzConfig: from every configuration that the front reads, Go reads the same runtimes.
func FuzzConfig(f *testing.F) {
	r := start(f)
	for _, text := range configs {
		f.Add(text)
	}
	shipped, err := os.ReadFile("../../configs/config.toml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(shipped))
	file := filepath.Join(f.TempDir(), "config.toml")
	var mutex sync.Mutex
	f.Fuzz(func(t *testing.T, text string) {
		answer := r.ask(t, 'c', text)
		if answer == nil {
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, _ := policy.Runtime(file)
		set := got.Unjudged != nil && got.Unjudged != ""
		if !slices.Equal(got.Path, answer[1:]) || set && answer[0] != "1" {
			t.Errorf("%q: the front reads %q, Go %q, %v", text, answer, got.Path, got.Unjudged)
		}
	})
}

var configs = []string{
	"", "[runtime]\npath = [\"crun\"]\n",
	"engine = \"cri-o\"\n[runtime]\npath = [ # two\n \"/usr/bin/crun\",\n 'runc', ]\n",
	"[runtime]\nunjudged = { containerd = \"/usr/bin/nvidia\", docker='x' }\npath = [\"crun\"]\n",
	"[runtime]\nunjudged = {}\n", "[runtime]\nunjudged = { a.b = \"x\" }\n",
	"[runtime]\nunjudged = { a = \"x\", }\n",
	"[runtime]\nunjudged = \"nvidia-container-runtime\"\n",
	"[runtime]\nunjudged = \"\"\n[runtime.unjudged]\ndocker = \"x\"\n",
	"a = 1\nb = true\n[[policy.exempt]]\nnamespace = \"x\"\n[runtime]\npath=[]\n",
	"[runtime]\npath = [\"a\"]\npath = [\"b\"]\n",
	"x = \"\"\"\n[runtime]\npath = [\"a\"]\n\"\"\"\n", "x = '''\n[runtime]\npath = [\"a\"]\n'''\n",
	"runtime.path = [\"a\"]\n",
	"runtime = { path = [\"a\"] }\n", "[\"runtime\"]\npath = [\"a\"]\n",
	"[runtime]\n\"path\" = [\"a\"]\n", "[ runtime ]\npath = [\"a\"]\n",
	"[runtime]\npath = [\"\\u0061\"]\n", "[runtime]\npath = [\"a\"", "[runtime]\npath = [1]\n",
	"x = 01\n", "x = 1e3\n", "x = 1979-05-27\n",
	"[[runtime]]\npath = [\"a\"]\n", "[a.runtime]\npath = [\"a\"]\n",
	"[runtime.x]\npath = [\"a\"]\n", "\r\n", "[runtime]\npath = [\"\"]\n",
	"[runtime]\n[a]\n[runtime]\npath = [\"a\"]\n", "x = [[1]]\n", "x = [1, \"a\", true,]\n",
	"[Runtime]\npath = [\"a\"]\n", "[runtime]\nPath = [\"a\"]\n", "Runtime.path = [\"a\"]\n",
	"[RUNTIME.unjudged]\ndocker = \"x\"\n", "[runtime.Unjudged]\ndocker = \"x\"\n", "RunTime = {}\n",
	"[audit]\nruntime = 1\nRuntime = 2\n", "x = [,]\n", "x\n", "x =\n", "[a]b = 1\n", "# \x01\n",
}

// TestShippedConfig: the front reads the configuration that the packages have, and what configure
// writes.
func TestShippedConfig(t *testing.T) {
	r := start(t)
	shipped, err := os.ReadFile("../../configs/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		string(shipped): {"0", "runc", "crun"}, "": {"0", "runc", "crun"}, configs[1]: {"0", "crun"},
		configs[2]: {"0", "/usr/bin/crun", "runc"}, configs[3]: {"1", "crun"}, configs[7]: {"1",
			"runc", "crun"}, configs[8]: {"1", "runc", "crun"},
	} {
		if got := r.ask(t, 'c', text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if p := (grant.Runtime{Path: []string{"runc",
		"crun"}}); !slices.Equal(policy.Default().Runtime.Path, p.Path) {
		t.Errorf("the default is %q, and another in front/read.c", policy.Default().Runtime.Path)
	}
}
