package runtime

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, argv string
		want       command
	}{
		{"containerd", "--root /r --log /l --log-format json --systemd-cgroup create --bundle /b --pid-file /p c1",
			command{name: "create", root: "/r", log: "/l", logFormat: "json", bundle: "/b", id: "c1"}},
		{"CRI-O", "--root=/r create --bundle /b --pid-file /p c1", command{name: "create", root: "/r", bundle: "/b", id: "c1"}},
		{"Podman with cgroups off", "--cgroup-manager disabled create --bundle=/b c1", command{name: "create", cgroupsOff: true, bundle: "/b", id: "c1"}},
		{"one dash, as Go's flags allow", "-root /r create -b /b c1", command{name: "create", root: "/r", bundle: "/b", id: "c1"}},
		{"options behind the id", "create c1 --bundle /b", command{name: "create", bundle: "/b", id: "c1"}},
		{"the last of two bundles", "create --bundle /a -b /b c1", command{name: "create", bundle: "/b", id: "c1"}},
		{"an id after --", "create --bundle /b -- -x", command{name: "create", bundle: "/b", id: "-x"}},
		{"-- before the subcommand", "-- create -b /b c1", command{name: "create", bundle: "/b", id: "c1"}},
		{"a container named create", "state create", command{name: "state", id: "create"}},
		{"an id that is a value's twin", "create --pid-file create -b /b run", command{name: "create", bundle: "/b", id: "run"}},
		{"another config of crun", "create -f other.json -b /b c1", command{name: "create", bundle: "/b", config: "other.json", id: "c1"}},
		{"force is no value", "delete -f c1", command{name: "delete", id: "c1"}},
		{"update from stdin", "update --resources - c1", command{name: "update", id: "c1", resources: 2}},
		{"update from a file", "update --resources=/f c1", command{name: "update", id: "c1", resources: 1, resourcesPrefix: "--resources="}},
		{"an unknown flag", "--new create -b /b c1", command{name: "create", bundle: "/b", id: "c1"}},
		{"an unknown option with a value", "--new value create -b /b c1", command{name: "create", bundle: "/b", id: "c1"}},
		{"an unknown option whose value is a subcommand's name", "--new state create -b /b c1", command{name: "create", bundle: "/b", id: "c1"}},
		{"an unknown option before a known one", "--new value --debug create -b /b c1", command{name: "create", bundle: "/b", id: "c1"}},
		{"nothing", "", command{}},
		{"only options", "--version", command{}},
		{"a value that is missing", "--root", command{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv := append([]string{"gpuledger-runtime"}, strings.Fields(c.argv)...)
			got := parse(argv)
			if c.want.resources > 0 {
				c.want.resources++ // the program's name
			}
			if got != c.want {
				t.Errorf("parse %q:\n got %+v\nwant %+v", c.argv, got, c.want)
			}
		})
	}
}

func TestConfigPath(t *testing.T) {
	for _, c := range []struct {
		command command
		want    string
	}{
		{command{bundle: "/b"}, "/b/config.json"},
		{command{}, "config.json"}, // runtimes take the working directory
		{command{bundle: "/b", config: "x.json"}, "/b/x.json"},
		{command{bundle: "/b", config: "/x.json"}, "/x.json"},
	} {
		if got := c.command.configPath(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.command, got, c.want)
		}
	}
}

// FuzzParse: whatever an engine sends, a word that starts a container in the subcommand's place is not overlooked.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"--root /r create -b /b c", "--new state create c", "-- run c", "--log= update -r - c", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words := strings.Fields(text)
		parse(append([]string{"gpuledger-runtime"}, words...))
		got := parse(append([]string{"gpuledger-runtime", "--root", "/r", "create", "--bundle", "/b"}, words...))
		if got.name != "create" || got.root != "/r" {
			t.Errorf("a create followed by %q is read as %+v", text, got)
		}
	})
}

// TestLogLine decodes the entry as containerd's shim does (cmd/containerd-shim-runc-v2/process): level, msg, time.
func TestLogLine(t *testing.T) {
	message := `gpuledger: refused (gpu-env): "quoted" and \ and ü`
	var entry struct {
		Level string
		Msg   string
		Time  time.Time
	}
	line := logLine("json", message, time.Date(2026, 11, 21, 4, 5, 6, 0, time.UTC))
	if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Level != "error" || entry.Msg != message || entry.Time.Second() != 6 {
		t.Errorf("%s: %+v (%v)", line, entry, err)
	}
	if want := `time="2026-11-21T04:05:06Z" level=error msg="gpuledger: x"` + "\n"; logLine("text", "gpuledger: x", entry.Time) != want {
		t.Errorf("got %s", logLine("text", "gpuledger: x", entry.Time))
	}
}

func TestCleanLeavesATerminalAlone(t *testing.T) {
	if got := clean("a\nb\x1b[2Jc\u0085d\xffé"); strings.ContainsAny(got, "\n\x1b\u0085") || !strings.HasSuffix(got, "é") {
		t.Errorf("%q", got)
	}
}
