package doctor

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

func file(path string, mode fs.FileMode) PathFacts {
	return PathFacts{Path: path, Mode: mode, Writable: true}
}

// healthy is a node without problems: one GPU behind containerd.
func healthy() Facts {
	p := grant.Policy{StateDir: "/state", RunDir: "/run/g", Runtime: grant.Runtime{Path: []string{"runc"}},
		Inventory:   grant.Source{Source: grant.NVML},
		Rules:       grant.Rules{MinimumStrength: grant.StrengthNone},
		Enforcement: grant.Enforcement{VisibleDevices: grant.VisibleUUIDs},
		Audit:       grant.Audit{File: "/var/log/a", MaxSize: grant.Size(grant.MiB), Keep: 1}}
	return Facts{
		Config: file("/etc/g.toml", 0o644), Policy: p, Mode: grant.Enforce,
		State: file("/state", fs.ModeDir|0o700), Run: file("/run/g", fs.ModeDir|0o700), StateFree: 1 << 40,
		RunFree:  1 << 40,
		Programs: []PathFacts{file("/usr/bin/gpuledger-runtime", 0o755)},
		Runtimes: []RuntimeFacts{{PathFacts: file("/usr/bin/runc", 0o755), Version: "runc version 1.3"}},
		Kernel:   "6.1.0-18-amd64", Cgroup: Cgroup{Version: 2},
		Majors: map[string]int{"nvidia": 195, "nvidia-uvm": 510}, Driver: "580.142",
		Devices:          []PathFacts{file("/dev/nvidia0", fs.ModeDevice|fs.ModeCharDevice|0o600)},
		WhyNoShimLimit:   "the shim is not installed",
		WhyNoDriverLimit: "driver 580.142 does not limit memory, 615 and newer do",
		Inventory: grant.Inventory{Source: "nvml",
			GPUs: []grant.GPU{{UUID: "GPU-a", Health: grant.Healthy}}},
		Ledger: ledger.Report{Grants: 3, Bindings: 2}, LedgerLooked: true,
		Audit: file("/var/log/a", 0o640), Free: 1 << 40,
		Engines: []engines.Presence{
			{Engine: grant.Containerd, Name: "containerd",
				Handlers: map[string]string{"gpuledger": "/bin/sh", "runc": ""}, Default: "gpuledger"}},
	}
}

// withPools gives the node two GPUs, and a pool of each entry.
func withPools(f *Facts, entries ...string) {
	f.Inventory.GPUs = append(f.Inventory.GPUs, grant.GPU{UUID: "GPU-b", Index: 1, Health: grant.Healthy})
	for _, entry := range entries {
		f.Policy.Pools = append(f.Policy.Pools, grant.Pool{GPUs: []string{entry}})
	}
}

// control are the driver's files that MPS needs.
var control = []grant.DriverFile{
	{Path: "/usr/bin/nvidia-cuda-mps-control", Kind: grant.FileBinary,
		Target: "/usr/bin/nvidia-cuda-mps-control"},
	{Path: "/usr/sbin/nvidia-cuda-mps-server", Kind: grant.FileBinary,
		Target: "/usr/sbin/nvidia-cuda-mps-server"}}

var simulated = func(f *Facts) {
	f.Policy.Inventory.Source, f.Majors, f.Driver, f.Devices = grant.Simulated, nil, "", nil
}

// broken is a configuration that cannot be read: Gather leaves the inventory out then.
var broken = func(f *Facts) {
	f.Broken, f.LedgerLooked, f.Inventory = errors.New("line 3"), false, grant.Inventory{}
	f.InventoryProblem, f.WhyNoShimLimit = &grant.Problem{Message: "it was not looked at"}, ""
}

var shim = func(f *Facts) { f.WhyNoShimLimit, f.Inventory.Shim.Dir = "", "/lib/shim" }

var limiting = func(f *Facts) { f.WhyNoDriverLimit, f.Inventory.Driver.Version = "", "615.62.00" }

var throttled = func(f *Facts) { f.Policy.Enforcement.Compute, f.WhyNoComputeShare = grant.ThrottleShare, "" }

// answers are changes to a healthy node, and the lines that doctor then prints.
var answers = []struct {
	name   string
	change func(*Facts)
	check  string
	status Result
	says   string
}{
	{"a configuration", func(*Facts) {}, "configuration", OK, "/etc/g.toml is in force"},
	{"no configuration", func(f *Facts) { f.Config.Missing = true }, "configuration", OK,
		"the defaults are in force"},
	{"a broken configuration", func(f *Facts) { f.Broken = errors.New("line 3") }, "configuration",
		Problem, "line 3"},
	{"a configuration writable by all", func(f *Facts) { f.Config.Mode = 0o666 }, "configuration", Problem,
		"/etc/g.toml can be changed by others than root (mode 0666, owner 0)"},
	{"another's configuration", func(f *Facts) { f.Config.UID = 1000 }, "configuration", Problem,
		"owner 1000"},
	{"a directory of the configuration writable by all",
		func(f *Facts) { f.Config.Above = []PathFacts{file("/etc", fs.ModeDir|0o777)} },
		"configuration", Problem,
		"/etc can be changed"},

	{"pools of the node's GPUs", func(f *Facts) { withPools(f, "0", "GPU-b") }, "configuration", OK,
		"is in force"},
	{"a GPU in one pool by its index and in another by its UUID",
		func(f *Facts) { withPools(f, "0-1", "GPU-b") }, "configuration", Problem,
		"GPU 1 (GPU-b) is in two pools, pool[0] and pool[1]: nothing is granted"},
	{"a pool of a UUID that is no GPU's", func(f *Facts) { withPools(f, "0", "GPU-typo") },
		"configuration", Warning, `pool[1].gpus: "GPU-typo" is no GPU of this node`},
	{"a pool of an index that is no GPU's", func(f *Facts) { withPools(f, "0-1", "7") },
		"configuration", Warning, `pool[1].gpus: "7" is no GPU of this node`},
	{"pools beside a stale inventory", func(f *Facts) {
		withPools(f, "0", "7")
		f.InventoryProblem = &grant.Problem{Message: "stale"}
	}, "configuration", OK, "is in force"},

	{"a quota of a user that is not there", func(f *Facts) {
		f.Quotas = []string{`quota[0]: this node has no user "ada": the quota is skipped`}
	}, "configuration", Warning, `quota[0]: this node has no user "ada"`},

	{"enforcing", func(*Facts) {}, "policy", OK, "enforced"},
	{"reporting", func(f *Facts) { f.Mode = grant.Report }, "policy", Warning, `policy.mode is "report"`},
	{"disabled", func(f *Facts) { f.Mode = grant.Disabled }, "policy", Warning,
		"disabled until `gpuledger enable`"},
	{"disabled for a time", func(f *Facts) { f.Mode, f.Until = grant.Disabled, time.Unix(1e9, 0) }, "policy",
		Warning, "disabled until 2001"},

	{"directories", func(*Facts) {}, "directories", OK, "/state and /run/g"},
	{"directories that do not exist yet", func(f *Facts) {
		f.State, f.Run = PathFacts{Missing: true, Writable: true},
			PathFacts{Missing: true, Writable: true}
	},
		"directories", OK, "alone"},
	{"a state that cannot be made", func(f *Facts) { f.State = PathFacts{Path: "/state", Missing: true} },
		"directories", Problem, "/state does not exist and cannot be made"},
	{"a readable state", func(f *Facts) { f.State.Mode = fs.ModeDir | 0o755 }, "directories", Problem,
		"/state has mode 0755 and owner 0"},
	{"another's run directory", func(f *Facts) { f.Run.UID = 7 }, "directories", Problem,
		"/run/g has mode 0700 and owner 7"},
	{"a file for a directory", func(f *Facts) { f.State.Mode = 0o600 }, "directories", Problem,
		"no directory"},
	{"a read-only state", func(f *Facts) { f.State.Writable = false }, "directories", Problem,
		"cannot be written to"},
	{"a state in a loose directory",
		func(f *Facts) { f.State.Above = []PathFacts{file("/srv", fs.ModeDir|0o777)} },
		"directories", Problem,
		"/srv can be changed"},
	{"a state that cannot be seen", func(f *Facts) { f.State.Error = errors.New("input/output error") },
		"directories", Problem, "input/output error"},

	{"programs", func(*Facts) {}, "programs", OK, "all programs"},
	{"a missing program", func(f *Facts) { f.Programs[0].Missing = true }, "programs", Warning,
		"gpuledger-runtime is not there"},
	{"a program writable by all", func(f *Facts) { f.Programs[0].Mode = 0o777 }, "programs",
		Problem, "mode 0777"},

	{"a runtime", func(*Facts) {}, "runtimes", OK, "runc version 1.3"},
	{"no runtime", func(f *Facts) { f.Runtimes = nil }, "runtimes", Problem, "none of runc is there"},
	{"a runtime writable by all", func(f *Facts) { f.Runtimes[0].Mode = 0o757 }, "runtimes",
		Problem, "mode 0757"},
	{"a runtime of what is not judged", func(f *Facts) {
		f.Unjudged = map[string]PathFacts{
			"nvidia-container-runtime": {Path: "/usr/bin/nvidia-container-runtime", Mode: 0o755}}
	}, "runtimes", OK, "containers that are not judged run under /usr/bin/nvidia-container-runtime"},
	{"a runtime of containers that are not judged, removed", func(f *Facts) {
		f.Unjudged = map[string]PathFacts{"/opt/n": {Path: "/opt/n", Missing: true}}
	}, "runtimes", Warning, "/opt/n is not there (runtime.unjudged)"},
	{"a runtime of containers that are not judged, writable by all", func(f *Facts) {
		f.Unjudged = map[string]PathFacts{"/opt/n": {Path: "/opt/n", Mode: 0o757}}
	}, "runtimes", Problem, "mode 0757"},
	{"a runtime that fails", func(f *Facts) { f.Runtimes[0].Failed = errors.New("exit status 1") },
		"runtimes", Problem, "does not run: exit status 1"},

	{"a kernel", func(*Facts) {}, "kernel", OK, "Linux 6.1.0"},
	{"Linux 5.11", func(f *Facts) { f.Kernel = "5.11.22" }, "kernel", Warning, "mount_setattr"},
	{"Linux 4.18", func(f *Facts) { f.Kernel = "4.18.0-553.el8" }, "kernel", Warning, "openat2"},

	{"cgroup v2", func(*Facts) {}, "cgroup", OK, "cgroup v2 holds device rules"},
	{"cgroup v1 and v2", func(f *Facts) { f.Cgroup = Cgroup{Version: 1, Hybrid: true} }, "cgroup", OK,
		"v2 is mounted beside it"},
	{"no cgroup", func(f *Facts) { f.Cgroup = Cgroup{} }, "cgroup", Problem,
		"every container can open every GPU"},
	{"no device programs", func(f *Facts) { f.Cgroup.Error = errors.New("invalid argument") }, "cgroup",
		Problem, "invalid argument"},

	{"a driver", func(*Facts) {}, "driver", OK, "driver 580.142, majors nvidia 195, nvidia-uvm 510"},
	{"no driver", func(f *Facts) { f.Majors = nil }, "driver", Problem, "no NVIDIA driver is loaded"},
	{"no driver on a simulated node", simulated, "driver", OK, "none is needed"},
	{"no UVM", func(f *Facts) { delete(f.Majors, "nvidia-uvm") }, "driver", Warning, "CUDA finds no GPU"},

	{"an inventory", func(*Facts) {}, "inventory", OK, "1 GPUs from source nvml"},
	{"no inventory", func(f *Facts) { f.InventoryProblem = &grant.Problem{Message: "none", Hint: "refresh"} },
		"inventory", Problem, "none"},
	{"a sick GPU", func(f *Facts) { f.Inventory.GPUs[0].Health = "fell off the bus" }, "inventory", Warning,
		"GPU 0 (GPU-a) takes no grants: fell off"},
	{"no GPU", func(f *Facts) { f.Inventory.GPUs = nil }, "inventory", Warning, "has no GPU"},
	{"simulated beside a driver", func(f *Facts) { f.Policy.Inventory.Source = grant.Simulated }, "inventory",
		Warning, "simulated, but an NVIDIA driver is loaded"},

	{"closed nodes", func(*Facts) {}, "devices", OK, "only root"},
	{"open nodes", func(f *Facts) { f.Devices[0].Mode = fs.ModeDevice | 0o666 }, "devices", Warning,
		"every user of the host can open /dev/nvidia0"},
	{"nodes of a group", func(f *Facts) {
		f.Devices[0].Mode, f.Devices[0].GID = fs.ModeDevice|0o660, 44
	}, "devices", Warning, "can open /dev/nvidia0 (mode 0660 and group 44), around"},
	{"nodes of a user", func(f *Facts) { f.Devices[0].UID = 1000 }, "devices", Warning,
		"can open /dev/nvidia0 (mode 0600 and owner 1000), around"},
	{"nodes with an access list", func(f *Facts) { f.Devices[0].Mode = fs.ModeDevice | 0o660 }, "devices",
		OK, "only root"},
	{"nodes that the driver gives to a user", func(f *Facts) {
		f.Sets, f.Policy.Enforcement.UserNodes = host.NodePermissions{Mode: 0o660, UID: 1000},
			grant.UserNodesACL
	}, "devices", Problem, "gives its nodes mode 0660 and owner 1000 whenever"},
	{"nodes that the driver opens", func(f *Facts) {
		f.Sets, f.Policy.Enforcement.UserNodes = host.NodePermissions{Mode: 0o666}, grant.UserNodesACL
	}, "devices", Problem, "gives its nodes mode 0666 whenever"},
	{"nodes that the driver closes", func(f *Facts) {
		f.Sets, f.Policy.Enforcement.UserNodes = host.NodePermissions{Mode: 0o660}, grant.UserNodesACL
	}, "devices", OK, "only root"},
	{"nodes that the driver gives to a group", func(f *Facts) {
		f.Sets = host.NodePermissions{Mode: 0o660, GID: 44}
	}, "devices", Warning, "mode 0660 and group 44"},
	{"no nodes", func(f *Facts) { f.Devices = nil }, "devices", Warning, "no NVIDIA device node"},
	{"no nodes of simulated GPUs", simulated, "devices", OK, "simulated"},

	{"no strength", func(*Facts) {}, "strength", OK, "memory is only counted here"},
	{"neither by the driver", func(*Facts) {}, "strength", OK,
		"the shim is not installed, and driver 580.142 does not limit memory, 615 and newer do"},
	{"the shim", shim, "strength",
		OK,
		"mode limit has strength library on this node (by the shim in /lib/shim); not by the driver: " +
			"driver 580.142"},
	{"R615", limiting, "strength", OK,
		"mode limit has strength driver on this node (by driver 615.62.00 on cgroup v2, with gpuledgerd)"},
	{"R615 and the shim", func(f *Facts) { shim(f); limiting(f) }, "strength", OK,
		"mode limit has strength driver"},
	{"R615 is strong enough",
		func(f *Facts) { limiting(f); f.Policy.Rules.MinimumStrength = grant.StrengthDriver }, "strength", OK,
		"mode limit has strength driver"},
	{"strong enough", func(f *Facts) { shim(f); f.Policy.Rules.MinimumStrength = grant.StrengthLibrary },
		"strength", OK, "has strength library"},
	{"the driver's limit cannot be", func(f *Facts) { f.Policy.Enforcement.Limit = grant.DriverBackend },
		"strength", Warning,
		`in mode limit memory is only counted here: driver 580.142 does not limit memory, 615 and newer ` +
			`do; enforcement.limit is "driver", so grants of mode limit are refused (limit-unenforceable)`},
	{"a limit that cannot be", func(f *Facts) { f.Policy.Enforcement.Limit = grant.LibraryBackend },
		"strength", Warning,
		`enforcement.limit is "library", so grants of mode limit are refused (limit-unenforceable)`},
	{"a throttle", func(f *Facts) { shim(f); throttled(f); f.Daemon = 7 }, "strength", OK,
		"strength library, experimental: the shim throttles launches"},
	{"a throttle alone", func(f *Facts) { shim(f); throttled(f) }, "strength", Warning,
		"gpuledgerd does not run: launches pass for that part of the time"},
	{"a throttle that cannot be",
		func(f *Facts) { shim(f); throttled(f); f.WhyNoComputeShare = "launches cannot be throttled: why" },
		"strength", Warning,
		"a share of compute in mode limit is refused (limit-unenforceable): launches cannot be " +
			"throttled: why"},
	{"no MPS", func(*Facts) {}, "strength", OK,
		"cannot be used on this node: the driver's files in the inventory have no nvidia-cuda-mps-control"},
	{"MPS without its server", func(f *Facts) { f.Inventory.Driver.Files = control[:1] }, "strength", OK,
		"cannot be used on this node: the driver's files in the inventory have no nvidia-cuda-mps-server"},
	{"MPS that limits no memory", func(f *Facts) {
		f.Inventory.Driver.Files, f.Inventory.Driver.Version = control, "470.256.02"
	}, "strength", OK,
		"driver 470.256.02 does not limit the memory of MPS clients, as driver 495 and newer do"},
	{"MPS", func(f *Facts) { f.Inventory.Driver.Files, f.Daemon = control, 7 }, "strength", OK,
		"mode mps has strength server; docs/strength.md"},
	{"MPS for all users", func(f *Facts) {
		f.Inventory.Driver.Files, f.Inventory.Driver.Version, f.Daemon = control, "550.54.15", 7
		f.Policy.Enforcement.MPSUsers = grant.MPSAll
	}, "strength", Warning, "containers of mode mps are refused (mps-not-ready): driver 550.54.15 does not " +
		"know -multiuser-server"},
	{"MPS without gpuledgerd", func(f *Facts) { f.Inventory.Driver.Files, f.Daemon = control, 0 }, "strength",
		OK, "needs gpuledgerd, which does not run"},
	{"MPS is too weak", func(f *Facts) {
		f.Inventory.Driver.Files, f.Policy.Rules.MinimumStrength = control, grant.StrengthDriver
	}, "strength", OK, "its grants are refused (limit-unenforceable)"},
	{"R615 on cgroup v1",
		func(f *Facts) { f.WhyNoDriverLimit = "the driver limits cgroups of v2, and /sys/fs/cgroup is none" },
		"strength", OK, "memory is only counted here"},
	{"too weak", func(f *Facts) { f.Policy.Rules.MinimumStrength = grant.StrengthLibrary }, "strength",
		Warning, "limit-unenforceable"},

	{"a driver whose packages were upgraded", func(f *Facts) {
		f.Inventory.Driver.Files, f.Gone = control, []string{"/usr/lib/libcuda.so.535.171"}
	}, "inventory", Problem, "1 of the driver's 2 files are gone, the first is /usr/lib/libcuda.so.535.171"},

	{"a ledger", func(*Facts) {}, "ledger", OK, "3 grants, 2 in use"},
	{"no ledger", func(f *Facts) { f.LedgerLooked = false }, "ledger", OK, "empty"},
	{"a ledger of unknown state", broken, "ledger", Warning, "not looked at"},
	{"strength by an unknown policy", broken, "strength", Warning, "not looked at, because the"},
	{"the daemon by an unknown run directory", broken, "daemon", Warning, "gpuledgerd was not looked for"},
	{"a daemon with a broken configuration", func(f *Facts) { broken(f); f.Daemon = 7 }, "daemon", Warning,
		"gpuledgerd runs (process 7); its address was not looked at"},
	{"a locked ledger", func(f *Facts) { f.LedgerError = errors.New("cannot lock") }, "ledger", Problem,
		"cannot lock"},
	{"a damaged ledger", func(f *Facts) {
		f.Ledger.Findings = []ledger.Finding{{Subject: "g-x", Problem: "half", Hint: "drop it"}}
	}, "ledger", Problem, "g-x: half"},
	{"a repaired ledger", func(f *Facts) {
		f.Ledger.Findings = []ledger.Finding{
			{Subject: "g-x", Repaired: true}}
	}, "ledger", OK, "sound"},

	{"a full state directory", func(f *Facts) { f.StateFree = 1 << 20 }, "directories", Warning,
		"the file system of /state has 1MiB free"},
	{"a full run directory", func(f *Facts) { f.RunFree = 0 }, "directories", Warning,
		"the file system of /run/g has 0MiB free"},

	{"an audit log", func(*Facts) {}, "audit", OK, "recorded in /var/log/a"},
	{"no audit log", func(f *Facts) { f.Policy.Audit.File = "" }, "audit", Warning, "off"},
	{"an audit log that cannot be written", func(f *Facts) { f.Audit.Writable = false }, "audit", Problem,
		"cannot be written"},
	{"a FIFO", func(f *Facts) { f.Audit.Mode = fs.ModeNamedPipe | 0o600 }, "audit", Problem,
		"no regular file"},
	{"an audit log writable by all", func(f *Facts) { f.Audit.Mode = 0o622 }, "audit", Problem, "mode 0622"},
	{"a full disk", func(f *Facts) { f.Free = 1 << 20 }, "audit", Warning,
		"may grow to 2MiB, and its file system has 1MiB free"},

	{"a default handler", func(*Facts) {}, "engines", OK,
		"containerd: containers that choose no handler go through"},
	{"no engine", func(f *Facts) { f.Engines = nil }, "engines", Warning, "was found"},
	{"an engine without us", func(f *Facts) { f.Engines[0].Handlers, f.Engines[0].Default = nil, "" },
		"engines", Warning, "not configured in it"},
	{"a handler to choose", func(f *Facts) { f.Engines[0].Default = "runc" }, "engines", Warning,
		"only containers that choose handler gpuledger"},
	{"a handler that is not there", func(f *Facts) { delete(f.Engines[0].Handlers, "gpuledger") }, "engines",
		Problem, "starts no container"},
	{"a handler without its program", func(f *Facts) { f.Engines[0].Handlers["gpuledger"] = "/nowhere/w" },
		"engines", Problem, `"/nowhere/w", is not there`},
	{"a default that another program changed", func(f *Facts) {
		f.Default = []configure.Default{
			{Engine: grant.Containerd, Name: "containerd", File: "/etc/c.toml", Handler: "nvidia"}}
	}, "engines", Problem, `containerd: /etc/c.toml names "nvidia" as its default handler`},
	{"a default that is gpuledger's", func(f *Facts) {
		f.Default = []configure.Default{
			{Engine: grant.Containerd, Ours: true}}
	}, "engines", OK, "go through"},
	{"an engine that cannot be read", func(f *Facts) { f.Engines[0].Err = errors.New("no TOML") }, "engines",
		Warning, "containerd: no TOML"},

	{"no hooks", func(*Facts) {}, "hooks", OK, "no engine has a hook"},
	{"our hook", func(f *Facts) {
		f.Hooks = []Hook{{PathFacts: file("/h/a.json", 0o644), Program: "/usr/bin/gpuledger-hook"}}
	}, "hooks", OK, "called by /h/a.json"},
	{"our hook without its program", func(f *Facts) {
		f.Hooks = []Hook{{PathFacts: file("/h/a.json", 0o644),
			Program: "/usr/bin/gpuledger-hook", Gone: true}}
	}, "hooks", Problem, "which is not there"},
	{"NVIDIA's hook", func(f *Facts) {
		f.Hooks = []Hook{{PathFacts: file("/h/n.json", 0o644),
			Program: "/usr/bin/nvidia-container-runtime-hook"}}
	}, "hooks", Warning, "to every container"},
	{"a hook that cannot be read", func(f *Facts) {
		f.Hooks = []Hook{
			{PathFacts: file("/h/n.json", 0o644), Error: errors.New("no JSON")}}
	}, "hooks", Warning, "no JSON"},
	{"a hook writable by all", func(f *Facts) {
		f.Hooks = []Hook{{PathFacts: file("/h/n.json", 0o666)}}
	}, "hooks", Problem, "mode 0666"},

	{"an engine that leaves a pod's UID to the pod", func(f *Facts) { f.Engines[0].PassesUID = "*" },
		"engines", Warning, `passes on the pods' annotations "*"`},
	{"no CDI", func(*Facts) {}, "cdi", OK, "no CDI files"},
	{"CDI", func(f *Facts) {
		f.CDI = []CDIFacts{{PathFacts: file("/etc/cdi", fs.ModeDir|0o755)},
			{PathFacts: file("/etc/cdi/n.yaml", 0o644), Kind: "nvidia.com/gpu"}}
	}, "cdi", OK, "kinds nvidia.com/gpu"},
	{"CDI that builds of Docker may name", func(f *Facts) {
		f.Engines = append(f.Engines, engines.Presence{Engine: grant.Docker, CDIBuilds: true})
		f.CDI = []CDIFacts{{PathFacts: file("/etc/cdi/n.yaml", 0o644), Kind: "nvidia.com/gpu"}}
	}, "cdi", Warning, "to build steps"},
	{"CDI of gpuledger's, which brings the hook along", func(f *Facts) {
		f.Engines = append(f.Engines, engines.Presence{Engine: grant.Docker, CDIBuilds: true})
		f.CDI = []CDIFacts{{PathFacts: file("/etc/cdi/g.json", 0o644), Kind: grant.CDIKindGPU}}
	}, "cdi", OK, "kinds gpuledger.dev/gpu"},
	{"management's CDI", func(f *Facts) {
		f.CDI = []CDIFacts{
			{PathFacts: file("/c/m.yaml", 0o644), Kind: "management.nvidia.com/gpu"}}
	}, "cdi", Warning, "all GPUs at once"},
	{"CDI files writable by all", func(f *Facts) {
		f.CDI = []CDIFacts{{PathFacts: file("/etc/cdi", fs.ModeDir|0o777)}}
	}, "cdi", Problem, "what stands there, engines inject"},
	{"CDI that cannot be read", func(f *Facts) {
		f.CDI = []CDIFacts{
			{PathFacts: file("/c/m.json", 0o644), Error: errors.New("no JSON")}}
	}, "cdi", Warning, "no JSON"},

	{"no toolkit", func(*Facts) {}, "toolkit", OK, "not installed"},
	{"a toolkit that nothing calls", func(f *Facts) { f.Toolkit = []string{"/usr/bin/nvidia-ctk"} },
		"toolkit", OK, "/usr/bin/nvidia-ctk: nothing calls it"},
	{"both inject", func(f *Facts) { f.Runtimes[0].Path = "/usr/bin/nvidia-container-runtime" }, "toolkit",
		Problem, "inject again"},
	{"only we inject", func(f *Facts) {
		f.Runtimes[0].Path, f.Policy.Enforcement.VisibleDevices = "/usr/bin/nvidia-container-runtime",
			grant.VisibleVoid
	}, "toolkit", OK, ""},
	{"a way around",
		func(f *Facts) { f.Engines[0].Handlers["nvidia"] = "/usr/bin/nvidia-container-runtime.cdi" },
		"toolkit", Warning, "choose handler nvidia"},

	{"no other plugin", func(*Facts) {}, "plugins", OK, "no other program"},
	{"NVIDIA's plugin, in report mode", func(f *Facts) {
		f.Mode, f.Plugins = grant.Report, []string{"/var/lib/kubelet/device-plugins/nvidia-gpu.sock"}
	}, "plugins", Warning, "at /var/lib/kubelet/device-plugins/nvidia-gpu.sock"},
	{"NVIDIA's plugin, enforced", func(f *Facts) {
		f.Mode, f.Plugins = grant.Enforce, []string{"/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"}
	}, "plugins", Problem, "so its pods are refused"},

	{"a daemon", func(f *Facts) { f.Daemon = 7 }, "daemon", OK, "process 7"},
	{"another at its address", func(f *Facts) {
		f.Daemon, f.Policy.Daemon.Listen, f.Listening = 7, "127.0.0.1:9836",
			Listening{Others: []uint32{65534}}
	}, "daemon", Problem, "a program of user 65534 listens on 127.0.0.1:9836, which is gpuledgerd's"},
	{"no listener at its address", func(f *Facts) { f.Daemon, f.Policy.Daemon.Listen = 7, "127.0.0.1:9836" },
		"daemon", Warning, "does not listen on 127.0.0.1:9836"},
	{"no daemon", func(*Facts) {}, "daemon", OK, "does not run"},
	{"quotas without a daemon", func(f *Facts) { f.Policy.Quotas = []grant.Quota{{User: "*"}} }, "daemon",
		Warning, "no user without root gets a grant"},
	{"access lists without a daemon", func(f *Facts) {
		f.Policy.Enforcement.UserNodes = grant.UserNodesACL
	}, "daemon", Warning, "no access list follows the grants"},
}

func TestExamine(t *testing.T) {
	for _, tt := range answers {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.change(&f)
			lines := Examine(f)
			i := slices.IndexFunc(lines, func(l Line) bool {
				return l.Check == tt.check && l.Status == tt.status && strings.Contains(l.Message, tt.says)
			})
			if i < 0 {
				t.Fatalf("want %s %s: %s among %+v", tt.status, tt.check, tt.says, lines)
			}
			if tt.status != OK && lines[i].Hint == "" {
				t.Error("it does not say what to do")
			}
			if tt.status == Problem && Healthy(lines) {
				t.Error("a node with a problem is not healthy")
			}
		})
	}
}

// TestEveryCheckIsDocumented compares docs/doctor.md with the checks and their order, and requires
// a row above for each.
func TestEveryCheckIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	if !Healthy(Examine(healthy())) {
		t.Error("a node that is healthy is healthy")
	}
	var rows, names []string
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "| `"); found {
			name, _, _ = strings.Cut(name, "`")
			rows = append(rows, name)
		}
	}
	for _, c := range Checks {
		names = append(names, c.Name)
		if lines := c.look(healthy()); len(lines) == 0 || lines[0].Status != OK {
			t.Errorf("%s reports %v on a healthy node", c.Name, lines)
		}
	}
	if !slices.Equal(rows, names) {
		t.Errorf("docs/doctor.md has the checks\n%v\nwant\n%v", rows, names)
	}
}

// TestABrokenConfigurationSaysNothingFalse: without an inventory no line is about the driver's
// files or the shim.
func TestABrokenConfigurationSaysNothingFalse(t *testing.T) {
	f := healthy()
	broken(&f)
	for _, l := range Examine(f) {
		for _, about := range []string{"shim", "mode mps", "does not run"} {
			if l.Status == OK && strings.Contains(l.Message, about) {
				t.Errorf("%s: %s", l.Check, l.Message)
			}
		}
	}
}
