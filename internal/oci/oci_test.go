package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	strict "github.com/go-json-experiment/json"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, argv string
		want       Command
	}{
		{"containerd", "--root /r --log /l --log-format json --systemd-cgroup create --bundle /b " +
			"--pid-file /p c1",
			Command{Name: "create", Systemd: true, Root: "/r", RootAt: 2, Log: "/l", LogFormat: "json",
				Bundle: "/b", ID: "c1"}},
		{"CRI-O", "--root=/r create --bundle /b --pid-file /p c1",
			Command{Name: "create", Root: "/r", RootAt: 1, Bundle: "/b", ID: "c1"}},
		{"Podman with cgroups off", "--cgroup-manager disabled create --bundle=/b c1",
			Command{Name: "create", CgroupsOff: true, Bundle: "/b", ID: "c1"}},
		{"systemd's cgroups to crun", "--cgroup-manager=systemd create c1",
			Command{Name: "create", Systemd: true, ID: "c1"}},
		{"and not", "--systemd-cgroup=false create c1", Command{Name: "create", ID: "c1"}},
		{"one dash, as Go's flags allow", "-root /r create -b /b c1",
			Command{Name: "create", Root: "/r", RootAt: 2, Bundle: "/b", ID: "c1", Short: "-root"}},
		{"a value behind its letter, as getopt allows", "create -b/b c1",
			Command{Name: "create", ID: "c1", Short: "-b/b"}},
		{"letters together", "run -db /b c1", Command{Name: "run", ID: "c1", Short: "-db"}},
		{"a letter with =, which getopt takes for a part of the value", "create -b=/b c1",
			Command{Name: "create", Bundle: "/b", ID: "c1", Short: "-b=/b"}},
		{"the beginning of a name, as getopt allows", "create --bun=/b c1",
			Command{Name: "create", ID: "c1", Short: "--bun=/b"}},
		{"of a global one", "--cgroup-m=disabled create c1",
			Command{Name: "create", ID: "c1", Short: "--cgroup-m=disabled"}},
		{"of update's", "update --reso=- c1", Command{Name: "update", ID: "c1", Short: "--reso=-"}},
		{"of an option that governs nothing", "create --pid-f=/p --no-p c1",
			Command{Name: "create", ID: "c1"}},
		{"in a word behind --", "create -- -bx", Command{Name: "create", ID: "-bx"}},
		{"in a value", "create --pid-file -bx c1", Command{Name: "create", ID: "c1"}},
		{"options behind the id", "create c1 --bundle /b", Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"the last of two bundles", "create --bundle /a -b /b c1",
			Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"an id after --", "create --bundle /b -- -x", Command{Name: "create", Bundle: "/b", ID: "-x"}},
		{"-- before the subcommand", "-- create -b /b c1", Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"a container named create", "state create", Command{Name: "state", ID: "create"}},
		{"a bundle named create", "create -b create c1", Command{Name: "create", Bundle: "create", ID: "c1"}},
		{"an id that is a value's twin", "create --pid-file create -b /b run",
			Command{Name: "create", Bundle: "/b", ID: "run"}},
		{"another config of crun", "create -f other.json -b /b c1",
			Command{Name: "create", Bundle: "/b", Config: "other.json", ID: "c1"}},
		{"force is no value", "delete -f c1", Command{Name: "delete", ID: "c1"}},
		{"update from stdin", "update --resources - c1", Command{Name: "update", ID: "c1", Resources: 2}},
		{"update from a file", "update --resources=/f c1",
			Command{Name: "update", ID: "c1", Resources: 1, ResourcesPrefix: "--resources="}},
		{"exec: an id before its command", "--root /r exec --pid-file holder -t c1 sh -c x",
			Command{Name: "exec", Root: "/r", RootAt: 2, ID: "c1", IDAt: 7}},
		{"exec: options of the command", "exec c1 tool --cgroup ../x --new",
			Command{Name: "exec", ID: "c1", IDAt: 2}},
		{"exec: a value behind =", "exec --env=holder --cgroup=x c1 sh",
			Command{Name: "exec", ID: "c1", IDAt: 4}},
		{"exec: one dash, as Go's flags allow", "exec -pid-file holder c1",
			Command{Name: "exec", ID: "c1", IDAt: 4, Short: "-pid-file"}},
		{"exec: the beginning of a name, as getopt allows", "exec --pid holder --det --cg x c1",
			Command{Name: "exec", ID: "c1", IDAt: 7}},
		{"exec: an id after --", "exec -d -- c1 --x", Command{Name: "exec", ID: "c1", IDAt: 4}},
		{"exec: an unknown option may have a value", "exec --new holder c1", Command{Name: "exec"}},
		{"exec: one with its value", "exec --new=x c1", Command{Name: "exec", ID: "c1", IDAt: 3}},
		{"exec: letters together", "exec -dt c1", Command{Name: "exec", Short: "-dt"}},
		{"exec: behind an unknown global option", "--new exec c1", Command{Name: "exec"}},
		{"exec: where that option's value is a subcommand", "--new state exec c1", Command{Name: "exec"}},
		{"exec without a container", "exec --pid-file", Command{Name: "exec"}},
		{"an update behind an option's value that is a subcommand", "--new state update --resources=- c1",
			Command{Name: "update", ID: "c1", Resources: 3, ResourcesPrefix: "--resources="}},
		{"an unknown flag", "--new create -b /b c1", Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"an unknown option with a value", "--new value create -b /b c1",
			Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"an unknown option whose value is a subcommand's name", "--new state create -b /b c1",
			Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"an unknown option before a known one", "--new value --debug create -b /b c1",
			Command{Name: "create", Bundle: "/b", ID: "c1"}},
		{"help", "create -h", Command{Name: "create", Help: true}},
		{"help in full", "--root /r run --help", Command{Name: "run", Root: "/r", RootAt: 2, Help: true}},
		{"no help behind an option that is not known: run may be the subcommand", "--new run create",
			Command{Name: "create"}},
		{"the beginning of a global flag, as getopt allows", "--deb run create",
			Command{Name: "run", ID: "create"}},
		{"of one with a value that is a subcommand", "--roo state --deb create -b /b c1",
			Command{Name: "create", Bundle: "/b", ID: "c1", Short: "--roo"}},
		{"of one, before an exec", "--log-f list --sys exec c1",
			Command{Name: "exec", ID: "c1", IDAt: 5, Short: "--log-f"}},
		{"no arguments", "delete", Command{Name: "delete", Help: true}},
		{"help that is taken back", "create -h --help=false c1", Command{Name: "create", ID: "c1"}},
		{"help that may be a value", "create --new -h c1", Command{Name: "create", ID: "c1"}},
		{"an id that is the help option", "create -- -h", Command{Name: "create", ID: "-h"}},
		{"nothing", "", Command{}},
		{"only options", "--version", Command{}},
		{"a value that is missing", "--root", Command{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv := append([]string{"gpuledger-runtime"}, strings.Fields(c.argv)...)
			got := Parse(argv)
			if c.want.Resources > 0 {
				c.want.Resources++ // the program's name
			}
			if got != c.want {
				t.Errorf("parse %q:\n got %+v\nwant %+v", c.argv, got, c.want)
			}
		})
	}
}

func TestConfigPath(t *testing.T) {
	for _, c := range []struct {
		command Command
		want    string
	}{
		{Command{Bundle: "/b"}, "/b/config.json"},
		{Command{}, "config.json"}, // runtimes use the working directory
		{Command{Bundle: "/b", Config: "config.json"}, "/b/config.json"},
		{Command{Bundle: "/b", Config: "x.json"}, "x.json"}, // crun resolves it before it enters the bundle
		{Command{Bundle: "/b", Config: "./config.json"}, "./config.json"},
		{Command{Bundle: "/b", Config: "/x.json"}, "/x.json"},
	} {
		if got := c.command.ConfigPath(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.command, got, c.want)
		}
	}
}

// FuzzParse: in any call, Parse finds a word that starts a container at the subcommand's place.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"--root /r create -b /b c", "--new state create c", "-- run c",
		"--log= update -r - c", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words := strings.Fields(text)
		Parse(append([]string{"gpuledger-runtime"}, words...))
		got := Parse(append([]string{"gpuledger-runtime", "--root", "/r", "create", "--bundle", "/b"},
			words...))
		if got.Name != "create" || got.Root != "/r" {
			t.Errorf("a create followed by %q is read as %+v", text, got)
		}
	})
}

// TestLogLine decodes the entry as containerd's shim does (cmd/containerd-shim-runc-v2/process):
// level, msg, time.
func TestLogLine(t *testing.T) {
	message := `gpuledger: refused (gpu-env): "quoted" and \ and ü`
	var entry struct {
		Level string
		Msg   string
		Time  time.Time
	}
	line := logLine("json", "error", message, time.Date(2026, 11, 21, 4, 5, 6, 0, time.UTC))
	if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Level != "error" ||
		entry.Msg != message || entry.Time.Second() != 6 {
		t.Errorf("%s: %+v (%v)", line, entry, err)
	}
	want, err := strict.Marshal(struct {
		Level   string `json:"level"`
		Message string `json:"msg"`
		Time    string `json:"time"`
	}{"error", message, "2026-11-21T04:05:06Z"})
	if err != nil || line != string(want)+"\n" {
		t.Errorf("%v\ngot  %s\nwant %s", err, line, want)
	}
	if line := logLine("json", "error", "\xff", entry.Time); line != "" {
		t.Errorf("a message that no JSON has: %s", line)
	}
	if want := `time="2026-11-21T04:05:06Z" level=error msg="gpuledger: x"` + "\n"; logLine("text", "error",
		"gpuledger: x", entry.Time) != want {
		t.Errorf("got %s", logLine("text", "error", "gpuledger: x", entry.Time))
	}
}

// TestWarn: a warning is appended to the log, as one.
func TestWarn(t *testing.T) {
	dir := t.TempDir()
	for format, want := range map[string]string{
		"json": `^{"level":"error","msg":"x"}\n{"level":"warning","msg":"gpuledger: a\?b","time":"[^"]+"}\n$`,
		"text": `^{"level":"error","msg":"x"}\ntime="[^"]+" level=warning msg="gpuledger: a\?b"\n$`,
	} {
		c := Command{Log: filepath.Join(dir, format), LogFormat: format}
		if err := os.WriteFile(c.Log, []byte(`{"level":"error","msg":"x"}`+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Warn("a\nb")
		got, err := os.ReadFile(c.Log)
		if err != nil || !regexp.MustCompile(want).Match(got) {
			t.Errorf("%s: %q (%v)", format, got, err)
		}
	}
}

func TestCleanLeavesATerminalAlone(t *testing.T) {
	if got := Clean("a\nb\x1b[2Jc\u0085d\xffé"); strings.ContainsAny(got, "\n\x1b\u0085") ||
		!strings.HasSuffix(got, "é") {
		t.Errorf("%q", got)
	}
}

func TestAmbiguous(t *testing.T) {
	for _, c := range []struct {
		argv, program string
		ambiguous     bool
	}{
		{"create --bundle /b c1", "/usr/bin/crun", false},
		{"create -b /b c1", "/usr/bin/crun", false},
		{"create -b/b c1", "/usr/bin/crun", true},
		{"create -b/b c1", "/opt/youki", true},
		{"create -b/b c1", "/usr/sbin/runc", false}, // runc refuses it itself
		{"-root /r create -bundle /b c1", "runc", false},
		{"-root /r create -bundle /b c1", "crun", true},
	} {
		if err := Parse(append([]string{"gpuledger-runtime"}, strings.Fields(c.argv)...)).Ambiguous(
			c.program); (err != nil) != c.ambiguous {
			t.Errorf("%q for %s: %v", c.argv, c.program, err)
		}
	}
}

// TestLeavesCgroup: in every spelling of crun and runc.
func TestLeavesCgroup(t *testing.T) {
	for argv, want := range map[string]string{
		"exec --cgroup ../c2 c1 sh": "../c2", "exec --cgroup=x/../../c2 c1 sh": "x/../../c2",
		"exec -cgroup .. c1 sh": "..",
		"exec --cg ../c2 c1 sh": "../c2", "exec --cgr=../c2 c1 sh": "../c2",
		"exec --cgroup x --cgroup ../c2 c1 sh":  "../c2",
		"exec --cgroup devices:../c2 c1 sh":     "devices:../c2",
		"exec --cgroup=cpu,devices:../c2 c1 sh": "cpu,devices:../c2",
		"exec --cgroup /../c2 c1 sh":            "/../c2", "exec --cgroup x/.. c1 sh": "x/..",
		"exec --new --cgroup ../c2 c1 sh": "../c2",
		"exec --cgroup x c1 sh":           "", "exec --cgroup devices:/x/y c1 sh": "",
		"exec --cgroup ..x/y.. c1 sh": "", "exec --cgroup / c1 sh": "",
		"exec c1 runc exec --cgroup ../c2 c3": "", "exec --cwd .. c1 sh": "", "exec --cgroup": "",
	} {
		words := append([]string{"gpuledger-runtime"}, strings.Fields(argv)...)
		c := Parse(words)
		if got := LeavesCgroup(c.ExecOptions(words)); got != want {
			t.Errorf("%q: %q, want %q", argv, got, want)
		}
	}
}

// TestMaxDescriptors: at least as many as any runtime passes on.
func TestMaxDescriptors(t *testing.T) {
	for _, c := range []struct {
		argv, listen string
		want         int
	}{
		{"create c1", "", 3}, {"create --preserve-fds 2 c1", "", 5}, {"create --preserve-fds=2 c1", "1", 6},
		{"create --pr 2 c1", "", 5},
		{"create --preserve-fds -1 c1", "", 3}, {"create --preserve-fds 0x2 c1", "", 3 + maxDescriptors},
		{"create c1", "1 of them", 3 + maxDescriptors},
		{"create -p 2 c1", "", 3}, {"create --preserve-fds", "", 3},
		{"create --preserve-fds 2147483647 c1", "", 3 + maxDescriptors},
	} {
		if got := MaxDescriptors(append([]string{"runc"}, strings.Fields(c.argv)...),
			c.listen); got != c.want {
			t.Errorf("%q, %q: %d, want %d", c.argv, c.listen, got, c.want)
		}
	}
	if !RestoresRules([]string{"crun", "restore", "--m", "full", "c1"}) {
		t.Error("--m is the beginning of --manage-cgroups-mode")
	}
}

// TestRestoredOutside: which runtimes keep the processes of a restored container in its cgroup,
// from the start.
func TestRestoredOutside(t *testing.T) {
	const leaves = " lets processes of a restored container run outside its cgroup"
	for _, c := range []struct {
		said, options string
		onV1          bool
		want          string // what it begins with; "": nothing
	}{
		{"runc version 1.1.5+ds1\ncommit: x\n", "", false, "runc 1.1.5+ds1" + leaves + "; runc 1.2 or newer"},
		{"runc version 1.1.5+ds1\n", "", true, ""},
		{"runc version 1.0.0-rc93\n", "", false, "runc 1.0.0-rc93" + leaves},
		{"runc version 1.2.0\n", "", false, ""},
		{"runc version 1.2.0-rc.1+dev", "", false, ""},
		{"runc version 1.10.0", "", false, ""},
		{"runc version 2.0.0", "", false, ""},
		{"runc version 1.5.2\n", "--manage-cgroups-mode ignore", false, ""},
		{"crun version 1.8.1\n", "", true, "crun 1.8.1" + leaves + "; crun 1.21 or newer"},
		{"crun version 1.8.1\n", "", false, "crun 1.8.1" + leaves},
		{"crun version 1.20", "--systemd-cgroup", false, "crun 1.20" + leaves},
		{"crun version 1.20.0.0.0.12-abcd", "--systemd-cgroup", false, "crun 1.20"},
		{"crun version 1.21\n", "--systemd-cgroup", false, ""},
		{"crun version 1.21\n", "", true, ""},
		{"crun version 1.21\n", "", false, "crun 1.21 sets the device rules of a restored container after"},
		{"crun version 1.29.1\n", "--systemd-cgroup", false, ""},
		{"crun version 1.29.1\n", "--systemd-cgroup --manage-cgroups-mode=ignore", false,
			"crun 1.29.1" + leaves + " with --manage-cgroups-mode=ignore"},
		{"", "", true, "it is not known"},
		{"true (GNU coreutils) 9.1\n", "", true, "it is not known"},
		{"youki version 0.5.0\n", "", true, "it is not known"},
		{"runc version unknown\n", "", true, "it is not known"},
		{"runc version v1.2\n", "", true, "it is not known"},
		{"runc version 1\n", "", true, "it is not known"},
		{"runc version 1.99999999999999999999\n", "", true, "it is not known"},
		{"a\nrunc version 1.2.0\n", "", true, "it is not known"},
	} {
		var global, local []string
		for _, option := range strings.Fields(c.options) {
			if option == "--systemd-cgroup" {
				global = append(global, option)
			} else {
				local = append(local, option)
			}
		}
		argv := slices.Concat([]string{"runtime"}, global, []string{"restore"}, local, []string{"c1"})
		got := Parse(argv).RestoredOutside(c.said, argv, c.onV1)
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, %v, version 1 %v: %q, want %q", c.said, argv, c.onV1, got, c.want)
		}
	}
}

// TestStateRoot: runc uses the user's directory if it is not root of the node (its
// shouldHonorXDGRuntimeDir); crun does so for every user.
func TestStateRoot(t *testing.T) {
	for _, c := range []struct {
		name, argv, program string
		env                 map[string]string
		root                bool
		want                string
	}{
		{"as the option says", "--root /r create c1", "runc", map[string]string{"XDG_RUNTIME_DIR": "/x"}, false, "/r"},
		{"runc of root", "create c1", "/usr/sbin/runc", map[string]string{"XDG_RUNTIME_DIR": "/x"}, true, "/run/runc"},
		{"runc of a user", "create c1", "/usr/sbin/runc", map[string]string{"XDG_RUNTIME_DIR": "/x", "USER": "tenant"}, false, "/x/runc"},
		{"runc of a user without a directory", "create c1", "/usr/sbin/runc", nil, false, "/run/runc"},
		{"runc of a root in a user namespace with USER=root", "create c1", "/usr/sbin/runc", map[string]string{"XDG_RUNTIME_DIR": "/x", "USER": "root"}, false, "/run/runc"},
		{"crun of root", "create c1", "/usr/bin/crun", nil, true, "/run/crun"},
		{"crun of root with a directory", "create c1", "/usr/bin/crun", map[string]string{"XDG_RUNTIME_DIR": "/x"}, true, "/x/crun"},
	} {
		t.Run(c.name, func(t *testing.T) {
			command := Parse(append([]string{"gpuledger-runtime"}, strings.Fields(c.argv)...))
			got := command.StateRoot(c.program,
				func(name string) string { return c.env[name] }, func() bool { return c.root })
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
