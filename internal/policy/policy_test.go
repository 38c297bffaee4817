package policy

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestDefaultConfigFileIsTheDefaultPolicy(t *testing.T) {
	text, err := os.ReadFile("../../configs/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if want := Default(); !equal(got, want) {
		t.Errorf("configs/config.toml has\n%+v\nbut the default is\n%+v", got, want)
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	p, err := Parse([]byte(`
state_dir = "/s"
run_dir = "/r"
engine = "cri-o"
[runtime]
path = ["/opt/crun"]
unjudged = "/opt/nvidia-container-runtime"
[inventory]
source = "simulated"
file = "/d.json"
driver_root = "/run/nvidia/driver"
[policy]
mode = "report"
ungranted = "hide"
privileged = "strip"
minimum_strength = "library"
reserve = "512MiB"
on_over_grant = "stop"
on_outside_ledger = "stop"
device_env = ["NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"]
[[policy.exempt]]
namespace = "gpu-operator"
[annotations]
trust = "adopt"
dialects = ["gpushare"]
[ask]
engines = ["podman", "docker"]
max_memory = "8GiB"
max_gpus = 2
modes = ["limit", "exclusive"]
mode = "exclusive"
total = 50
[enforcement]
limit = "library"
compute = "refuse"
visible_devices = "void"
mps_users = "all"
user_nodes = "acl"
[[pool]]
gpus = ["0-3", "5", "GPU-x"]
modes = ["limit", "mps"]
place = "spread"
[cdi]
dir = "/etc/cdi"
hook = "/opt/hook"
[daemon]
listen = "unix:/run/x"
interval = "2s"
grace = "3s"
[audit]
file = "/a"
max_size = "1MiB"
keep = 9
`))
	if err != nil {
		t.Fatal(err)
	}
	want := grant.Policy{
		StateDir: "/s", RunDir: "/r", Engine: grant.CRIO,
		Runtime:   grant.Runtime{Path: []string{"/opt/crun"}, Unjudged: "/opt/nvidia-container-runtime"},
		Inventory: grant.Source{Source: grant.Simulated, File: "/d.json", DriverRoot: "/run/nvidia/driver"},
		Rules: grant.Rules{
			Mode: grant.Report, Ungranted: grant.Hide, Privileged: grant.Strip,
			MinimumStrength: grant.StrengthLibrary,
			Reserve:         grant.Size(512 * grant.MiB), OnOverGrant: grant.StopContainer,
			OnOutsideLedger: grant.StopContainer,
			DeviceEnv:       []string{"NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"},
			Exempt:          []grant.Exemption{{Namespace: "gpu-operator"}},
		},
		Annotations: grant.Annotations{Trust: grant.Adopt, Dialects: []grant.Dialect{grant.DialectGPUShare}},
		Asks: grant.Asks{Engines: []grant.Engine{grant.Podman, grant.Docker},
			MaxMemory: grant.Size(8 * grant.GiB), MaxGPUs: 2,
			Modes: []grant.Mode{grant.Limit, grant.Exclusive}, Mode: grant.Exclusive, Total: 50},
		Enforcement: grant.Enforcement{Limit: grant.LibraryBackend, Compute: grant.RefuseShare,
			VisibleDevices: grant.VisibleVoid, MPSUsers: grant.MPSAll,
			UserNodes: grant.UserNodesACL},
		Pools: []grant.Pool{{GPUs: []string{"0-3", "5", "GPU-x"},
			Modes: []grant.Mode{grant.Limit, grant.MPS}, Place: grant.Spread}},
		CDI:    grant.CDI{Dir: "/etc/cdi", Hook: "/opt/hook"},
		Daemon: grant.Daemon{Listen: "unix:/run/x", Interval: "2s", Grace: "3s"},
		Audit:  grant.Audit{File: "/a", MaxSize: grant.Size(grant.MiB), Keep: 9},
	}
	if !equal(p, want) {
		t.Errorf("got\n%+v\nwant\n%+v", p, want)
	}
}

func TestBadConfigurationIsOneLineWithLineAndKey(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "engine = \"docker\"\n[policy]\nmoed = \"enforce\"\n", `3: unknown key "policy.moed"`},
		{"unknown table", "[polciy]\nmode = \"enforce\"\n", `1: unknown key "polciy"`},
		{"wrong type", "[policy]\ndevice_env = 5\n", "2: policy.device_env: "},
		{"unknown choice", "[policy]\nmode = \"enfroce\"\n", `2: policy.mode: want enforce or report, not "enfroce"`},
		{"size without unit", "[policy]\nreserve = \"512\"\n", `2: policy.reserve: cannot read size "512"`},
		{"size as a number", "[policy]\nreserve = 512\n", "2: policy.reserve: "},
		{"no TOML", "state_dir = \n", "1"},
		{"a key twice", "engine = \"docker\"\nengine = \"podman\"\n", "key engine is already defined"},
		{"relative directory", "state_dir = \"x\"\n", "1: state_dir: want an absolute path"},
		{"root as directory", "run_dir = \"/\"\n", "1: run_dir: want an absolute path"},
		{"one directory for both", "state_dir = \"/x\"\nrun_dir = \"/x/\"\n", "2: run_dir: want a directory apart from state_dir"},
		{"one directory in the other", "run_dir = \"/var/lib/gpuledger/run\"\n", "1: run_dir: want a directory apart from state_dir"},
		{"a state_dir that holds others' directories", "engine = \"docker\"\nstate_dir = \"/var/lib\"\n", "2: state_dir: want a directory of our own: \"/var/lib\" is or holds /var/lib"},
		{"a run_dir that holds others' directories", "run_dir = \"/run\"\n", "1: run_dir: want a directory of our own: \"/run\" is or holds /run"},
		{"the same through a link", "run_dir = \"/var/run/\"\n", "1: run_dir: want a directory of our own"},
		{"the same through ..", "run_dir = \"/run/gpuledger/..\"\n", "1: run_dir: want a directory of our own"},
		{"an engine's directory", "state_dir = \"/var/lib/docker\"\n", "1: state_dir: want a directory of our own"},
		{"the configuration's directory", "state_dir = \"/etc/gpuledger\"\n", "1: state_dir: want a directory of our own"},
		{"a directory of the kernel's", "state_dir = \"/proc/x\"\n", "1: state_dir: want a directory of our own, and \"/proc/x\" is the kernel's"},
		{"a directory below /dev", "run_dir = \"/dev/gpuledger\"\n", "1: run_dir: want a directory of our own, and"},
		{"relative audit log", "engine = \"docker\"\n[audit]\nfile = \"audit.jsonl\"\n", "3: audit.file: want an absolute path of a file"},
		{"a directory as audit log", "[audit]\nfile = \"/var/log/\"\n", "2: audit.file: want an absolute path of a file"},
		{"the ledger's grants as audit log", "state_dir = \"/x\"\n[audit]\nfile = \"/x/grants/g-aaaaaaaaaaaa.json\"\n", "3: audit.file: \"/x/grants/g-aaaaaaaaaaaa.json\" is the ledger's"},
		{"the inventory as audit log", "[audit]\nfile = \"/var/lib/gpuledger/./inventory.json\"\n", "2: audit.file: "},
		{"the lock as audit log", "[audit]\nfile = \"/run/gpuledger/lock\"\n", "2: audit.file: \"/run/gpuledger/lock\" is the ledger's"},
		{"state_dir as audit log", "[audit]\nfile = \"/var/lib/gpuledger\"\n", "2: audit.file: \"/var/lib/gpuledger\" is or holds a directory of the ledger"},
		{"a file of the kernel's as audit log", "[audit]\nfile = \"/proc/sys/kernel/core_pattern\"\n", "2: audit.file: want a file of our own"},
		{"the description as audit log", "[inventory]\nsource = \"simulated\"\nfile = \"/d.json\"\n[audit]\nfile = \"/d.json\"\n", "5: audit.file: \"/d.json\" is inventory.file"},
		{"relative driver_root", "[inventory]\ndriver_root = \"driver\"\n", "2: inventory.driver_root: want an absolute path"},
		{"no runtime", "[runtime]\npath = []\n", "2: runtime.path: "},
		{"an unjudged runtime that is no name", "[runtime]\nunjudged = [\"runc\"]\n", "2: runtime.unjudged: want a runtime's name or path, or a table"},
		{"an unjudged runtime below the bundle", "[runtime]\nunjudged = \"bin/runc\"\n", "2: runtime.unjudged: want a name or an absolute path, not \"bin/runc\""},
		{"an unjudged runtime of an unknown engine", "[runtime]\nunjudged = { crio = \"runc\" }\n", "2: runtime.unjudged: want containerd, cri-o, podman or docker, not \"crio\""},
		{"an unjudged runtime of an engine that is no name", "[runtime.unjudged]\ndocker = 5\n", "runtime.unjudged: want a runtime's name or path, or a table of them by engine, not 5"},
		{"simulated without a file", "[inventory]\nsource = \"simulated\"\n", "inventory.file: "},
		{"exemption of all containers", "[[policy.exempt]]\n", "policy.exempt[0]: "},
		{"exemption with a broken glob", "[[policy.exempt]]\npod = \"[\"\n", "policy.exempt[0]: "},
		{"pool with a wrong mode", "[[pool]]\ngpus = [\"0\"]\nmodes = [\"limited\"]\n", "3: pool.modes: want exclusive"},
		{"pool with a backward range", "[[pool]]\ngpus = [\"3-1\"]\n", "pool[0].gpus: "},
		{"pool without GPUs", "[[pool]]\nmodes = [\"limit\"]\n", "pool[0].gpus: "},
		{"pools with one GPU", "[[pool]]\ngpus = [\"0-1\"]\n[[pool]]\ngpus = [\"1\"]\n", "4: pool[1].gpus: \"1\" has a GPU of pool[0] (\"0-1\"): a GPU is in one pool"},
		{"pools whose ranges meet", "[[pool]]\ngpus = [\"4\", \"0-2\"]\n[[pool]]\ngpus = [\"3\"]\n[[pool]]\ngpus = [\"2-9\"]\n", "6: pool[2].gpus: \"2-9\" has a GPU of pool[0] (\"4\")"},
		{"the second of three pools", "[[pool]]\ngpus = [\"0\"]\n[[pool]]\nmodes = [\"mps\"]\ngpus = [\"0\"]\n[[pool]]\ngpus = [\"1\"]\n", "5: pool[1].gpus: "},
		{"the first of two pools, without GPUs", "[[pool]]\nmodes = [\"mps\"]\n[[pool]]\ngpus = [\"1\"]\n", "1: pool[0].gpus: "},
		{"pools with one UUID", "[[pool]]\ngpus = [\"GPU-x\"]\n[[pool]]\ngpus = [\"7\", \"GPU-x\"]\n", "4: pool[1].gpus: \"GPU-x\" has a GPU of pool[0] (\"GPU-x\")"},
		{"pool of a name", "[[pool]]\ngpus = [\"x\"]\n", "2: pool[0].gpus: \"x\" is no index, no range as 0-3 and no UUID, as GPU-1234"},
		{"pool of a number below zero", "[[pool]]\ngpus = [\"-1\"]\n", "2: pool[0].gpus: \"-1\" is no index"},
		{"a runtime below the bundle", "[runtime]\npath = [\"runc\", \"./runc\"]\n", "2: runtime.path: want names or absolute paths, not \"./runc\""},
		{"a runtime without a name", "[runtime]\npath = [\"\"]\n", "2: runtime.path: want names or absolute paths, not \"\""},
		{"an assignment as device_env", "[policy]\ndevice_env = [\"A=B\"]\n", "2: policy.device_env: want names of environment variables, not \"A=B\""},
		{"no name in device_env", "[policy]\ndevice_env = [\"A\", \"\"]\n", "2: policy.device_env: want names of environment variables, not \"\""},
		{"listening nowhere", "[daemon]\nlisten = \"x\"\n", "2: daemon.listen: want HOST:PORT, unix:/path or \"\", not \"x\": missing port"},
		{"listening on no port", "[daemon]\nlisten = \":99999\"\n", "2: daemon.listen: want a port from 0 to 65535, not 99999"},
		{"listening on a relative socket", "[daemon]\nlisten = \"unix:x\"\n", "2: daemon.listen: want unix: and the absolute path of a socket, not \"unix:x\""},
		{"listening on a directory", "[daemon]\nlisten = \"unix:/run/\"\n", "2: daemon.listen: want unix: and the absolute path"},
		{"audit in the working directory", "[audit]\nfile = \"a.jsonl\"\n", "2: audit.file: want an absolute path"},
		{"an audit file that a line fills", "[audit]\nmax_size = \"4KiB\"\n", "2: audit.max_size: want 0MiB"},
		{"audit without an old file", "[audit]\nkeep = 0\n", "2: audit.keep: want 1 to 100"},
		{"relative hook", "[cdi]\nhook = \"gpuledger-hook\"\n", "2: cdi.hook: want an absolute path"},
		{"relative CDI directory", "[cdi]\ndir = \"cdi\"\n", "2: cdi.dir: want an absolute path"},
		{"interval without a unit", "[daemon]\ninterval = \"1\"\n", "daemon.interval: "},
		{"grace below zero", "[daemon]\ngrace = \"-1s\"\n", "daemon.grace: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Parse([]byte(c.text))
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line with %q", err, c.want)
			}
			if !equal(p, Default()) {
				t.Error("a broken configuration must leave the defaults in force")
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "config.toml")
	if _, err := Load(missing); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("a named file that is missing: %v", err)
	}
}

// TestMistakesInAFileInForce: what only a part of gpuledger cannot use leaves the rest in force, so
// that the containers of a node that has it start as before.
func TestMistakesInAFileInForce(t *testing.T) {
	for _, text := range []string{"[daemon]\nlisten = \"x\"\n", "[policy]\ndevice_env = [\"A=B\"]\n",
		"[[pool]]\ngpus = [\"0-3\"]\n[[pool]]\ngpus = [\"2-7\"]\n", "[[pool]]\ngpus = [\"gpu0\"]\n",
		"[runtime]\npath = [\"./runc\", \"runc\"]\n"} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err != nil {
			t.Errorf("%q is in force: %v", text, err)
		}
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q has no mistake", text)
		}
	}
}

func TestBrokenFileStillNamesTheRuntime(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "moed = 1\n[runtime]\npath = [\"/opt/crun\"]\n", "/opt/crun"},
		{"no TOML after it", "[runtime]\npath = [\"/opt/crun\"]\n[", "/opt/crun"},
		{"no TOML before it", "[policy]\nmode = \"report\n[runtime]\npath = [\"/opt/crun\"]\n", "/opt/crun"},
		{"no TOML beside it", "[runtime]\nunjudged = \"\"\"x\npath = [\"/opt/crun\"]\n", "/opt/crun"},
		{"an array of lines", "x\n[runtime]\npath = [ # ours\n  \"/opt/crun\",\n]\n", "/opt/crun"},
		{"a string that does not end", "[runtime]\npath = [\"/opt/crun]\n", "runc"},
		{"an array that does not end", "[runtime]\npath = [\"/opt/crun\"\n[policy]\n", "runc"},
		{"a table of another name", "=\n[audit]\npath = [\"/opt/crun\"]\n", "runc"},
		{"bytes", "\x00\xff\x1b[2J = [", "runc"},
		{"the runtime is what is broken", "[runtime]\npath = 5\n", "runc"},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Load(path)
		if err == nil || p.Runtime.Path[0] != c.want {
			t.Errorf("%s: runtime %v (%v), want %s", c.name, p.Runtime.Path, err, c.want)
		}
	}
}

// A pause in the ledger's directories must not end because of a mistake elsewhere in the file, and
// a new one must not be written to the default directories.
func TestBrokenFileStillNamesTheDirectories(t *testing.T) {
	const state, run = "/var/lib/gpuledger", "/run/gpuledger"
	for _, c := range []struct{ name, text, state, run string }{
		{"unknown key", "state_dir = \"/data/gl\"\nrun_dir = \"/run/gl\"\nmoed = 1\n", "/data/gl", "/run/gl"},
		{"one of them", "state_dir = \"/data/gl\"\n[policy]\nmode = 1\n", "/data/gl", run},
		{"no TOML after it", "state_dir = '/data/gl'\nx\nrun_dir = \"/run/gl\"\n[", "/data/gl", "/run/gl"},
		{"keys of a table", "[policy]\nstate_dir = \"/data/gl\"\n", state, run},
		{"the directory is what is broken", "state_dir = 5\nrun_dir = \"/run/gl\"\n", state, "/run/gl"},
		{"a directory of others", "state_dir = \"/var/lib\"\nrun_dir = \"/run/gl\"\n", state, run},
		{"a relative one", "state_dir = \"gl\"\n", state, run},
		{"one in the other", "state_dir = \"/data/gl\"\nrun_dir = \"/data/gl/run\"\n", state, run},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Load(path)
		if err == nil || p.StateDir != c.state || p.RunDir != c.run {
			t.Errorf("%s: %s and %s (%v), want %s and %s", c.name, p.StateDir, p.RunDir, err, c.state, c.run)
		}
		if (len(p.DefaultDirs) > 0) != (c.state != state || c.run != run) {
			t.Errorf("%s: the default directories are guarded, too: %q", c.name, p.DefaultDirs)
		}
	}
}

func TestRuntimeEqualsWhatLoadReads(t *testing.T) {
	for _, text := range []string{
		"", "[runtime]\npath = [\"/opt/crun\"]\n", "runtime.path = [\"a\", \"b\"]\n",
		"runtime = { path = [\"a\"] }\n",
		"[runtime]\npath = [ # ours\n  \"/opt/runc\", # first\n]\n",
		"[runtime]\npath = ['a\\b', \"\"\"c\"\"\"]\n",
		"[audit]\nfile = \"\"\n[runtime]\n\"path\" = [\"x\"]\n[policy]\nmode = \"report\"\n",
		"[runtime]\npath = []\n", "[[pool]]\ngpus = [\"0\"]\n",
		"engine = \"docker\"\n[runtime]\nunjudged = \"/usr/bin/nvidia-container-runtime\"\n",
		"[runtime.unjudged]\ndocker = \"runc\"\n",
		"[runtime]\nunjudged = { containerd = \"/opt/a\", cri-o = \"b\" } # two\npath = [\"crun\"]\n",
		"runtime.unjudged.podman = \"crun\"\n",
		"runtime = { path = [\"a\"], unjudged = { podman = \"crun\" } }\n", "[runtime]\nunjudged = \"\"\n",
		"Engine = \"docker\"\n[Runtime]\nPath = [\"a\"]\nUnJudged = \"b\"\n", "[runtime]\nPATH = [\"a\"]\n",
		"[runtime]\npath = [\"a\"]\n[Runtime]\nPath = [\"b\"]\n", "RUNTIME.UNJUDGED.podman = \"crun\"\n",
		"Runtime = { Path = [\"a\"], Unjudged = { Podman = \"crun\", podman = \"runc\" } }\n",
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Load(path)
		if got, engine := Runtime(path); !reflect.DeepEqual(got, p.Runtime) || engine != p.Engine {
			t.Errorf("%q: %q of %s, but Load reads %q of %s (%v)", text, got, engine,
				p.Runtime, p.Engine, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("[policy]\nreserve = \"1GiB\"\n[[pool]]\ngpus = [\"0-3\"]\n"))
	f.Add([]byte("[audit]\nkeep = 1979-05-27\n")) // the library panics on it
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil && !equal(p, Default()) {
			t.Error("an error must come with the default policy")
		}
		if got, engine := runtimeIn(text); err == nil && !sameRuntime(got, p.Runtime) ||
			err == nil && engine != p.Engine {
			t.Errorf("the runtime is %q of %s at a glance and %q of %s in full", got, engine,
				p.Runtime, p.Engine)
		}
	})
}

func sameRuntime(a, b grant.Runtime) bool {
	return slices.Equal(a.Path, b.Path) && !slices.ContainsFunc(containerEngines,
		func(e grant.Engine) bool { return a.UnjudgedOf(e) != b.UnjudgedOf(e) })
}

func equal(a, b grant.Policy) bool { return reflect.DeepEqual(a, b) }

// TestAddressesAndPoolsThatAreTaken: what gpuledgerd or the node takes is not refused beforehand.
func TestAddressesAndPoolsThatAreTaken(t *testing.T) {
	for _, text := range []string{
		"[daemon]\nlisten = \"\"\n", "[daemon]\nlisten = \":9836\"\n", "[daemon]\nlisten = \"[::1]:0\"\n",
		"[daemon]\nlisten = \"node-1:http\"\n", "[daemon]\nlisten = \"unix:/run/x.sock\"\n",
		"[[pool]]\ngpus = [\"0-3\", \"2\", \"2-5\"]\n", // one pool may name a GPU twice
		"[[pool]]\ngpus = [\"0\", \"GPU-a\"]\n[[pool]]\ngpus = [\"1-3\", \"GPU-b\", \"MIG-c\"]\n",
	} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestDirectoriesMayBeAnywhere: the operator may choose directories anywhere.
func TestDirectoriesMayBeAnywhere(t *testing.T) {
	for _, text := range []string{
		"state_dir = \"/data/gpuledger\"\nrun_dir = \"/run/user-gpuledger\"\n", "run_dir = \"/tmp/x\"\n",
		"run_dir = \"/dev/shm/gpuledger\"\n",
		"[audit]\nfile = \"/var/lib/gpuledger/audit.jsonl\"\n",
		"[audit]\nfile = \"/run/gpuledger/audit.jsonl\"\n", "[audit]\nfile = \"/dev/stderr\"\n",
	} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
