package verdict

import (
	"fmt"
	"strconv"
	"strings"
)

// vectors are the ways to a GPU that documents name, and what only looks like one.
var vectors = []func(*generator){
	func(g *generator) { // environment
		g.variable(one(g.Rand, []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
			"NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"}), g.visible())
	},
	func(g *generator) { g.variable("NVIDIA_VISIBLE_DEVICES", g.visible()) },
	func(g *generator) { // an old CUDA image
		g.env = append(g.env, "CUDA_VERSION=8.0.61")
		if g.chance(30) {
			g.env = append(g.env, "NVIDIA_REQUIRE_CUDA=cuda>=8.0")
		}
	},
	func(g *generator) {
		g.env = append(g.env, one(g.Rand, []string{"NVIDIA_MIG_CONFIG_DEVICES=all",
			"NVIDIA_MIG_MONITOR_DEVICES=all",
			"NVIDIA_IMEX_CHANNELS=0", "NVIDIA_GPU_MEMORY_LIMIT=4096", "NVIDIA_GPU_MEMORY_REQUEST=1024",
			"NVIDIA_GDS=enabled",
			"NVIDIA_GDS=disabled", "NVIDIA_NVSWITCH=enabled", "CUDA_MPS_PIPE_DIRECTORY=/x",
			"CUDA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=x"}))
	},
	(*generator).node, (*generator).node,
	(*generator).openRule, (*generator).openRule,
	func(g *generator) { // privileged
		g.rules = []any{rule(false, "", -1, -1, "rwm"), rule(true, one(g.Rand, []string{"a", "a", ""}), -1,
			-1, "rwm")}
		if g.chance(70) {
			g.caps = append(g.caps, "CAP_SYS_ADMIN")
		}
		if g.chance(60) {
			for _, gpu := range g.in.Node.GPUs {
				g.devices = append(g.devices, object{"path": fmt.Sprintf("/dev/nvidia%d", gpu.Minor),
					"type": "c", "major": 195, "minor": gpu.Minor})
			}
		}
	},
	func(g *generator) {
		g.caps = append(g.caps, one(g.Rand, []string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_MODULE"}))
	},
	func(g *generator) { // no rule that denies all
		g.rules = one(g.Rand, [][]any{nil, {}, {rule(true, "c", 1, 3, "rwm")}, {rule(false, "c", -1, -1,
			"rwm")},
			{rule(false, "a", -1, -1, "m")}, {rule(true, "", -1, -1, "m")}, {rule(false, "b", -1, -1,
				"rwm")}})
	},
	(*generator).mount, (*generator).mount, (*generator).mount,
	func(g *generator) { // NVIDIA's list of devices by mounts
		name := one(g.Rand, []string{"all", g.gpuName(), g.gpuName()})
		g.mounts = append(g.mounts, object{"destination": one(g.Rand, []string{"/var/run",
			"/run"}) + "/nvidia-container-devices/" + name,
			"type": "bind", "source": "/dev/null", "options": []any{"bind"}})
	},
	func(g *generator) { // hooks
		path := one(g.Rand, []string{"/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook",
			"/usr/bin/nvidia-container-cli",
			"/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-container-toolkit",
			"/usr/bin/nvidia-container-runtime-hook.real", "/usr/bin/logger"})
		g.hooks[one(g.Rand, []string{"prestart", "createRuntime", "createContainer",
			"startContainer"})] = []any{object{"path": path, "args": []any{path}}}
	},
	func(g *generator) { // CDI
		g.notes[one(g.Rand, []string{"cdi.k8s.io/x", "cdi.k8s.io/x",
			"nvidia.cdi.k8s.io/container.main"})] = one(g.Rand, []string{
			"management.nvidia.com/gpu=all", "vendor.com/nic=0, nvidia.com/mig=0",
			"nvidia.com/gpu=" + g.gpuName(), "nvidia.com/gpu=all", "vendor.com/nic=eth0",
			"gpuledger.dev/gpu=" + g.gpuName(), "gpuledger.dev/gpu=all", "nvidia.com/imex-channel=0",
			"k8s.device-plugin.nvidia.com/gpu=" + g.gpuName() + ", vendor.com/nic=0"})
	},
	func(g *generator) { // raw cgroup keys
		key := one(g.Rand, []string{"cgroup.procs", "cgroup.type", "cgroup.max.depth", "cgroup.pressure",
			"memory.high", "cpu.weight",
			"dmem.max", "vendor.max", "../x/cgroup.procs", "cgroup.newkey", "pids.max"})
		g.unified[key] = "1"
	},
	func(g *generator) { // what changes rules from outside
		key := one(g.Rand, []string{"org.systemd.property.DeviceAllow", "org.systemd.property.DevicePolicy",
			"org.systemd.property.PIDs",
			"org.systemd.property.TimeoutStopUSec", "run.oci.delegate-cgroup",
			"run.oci.keep_original_groups"})
		g.notes[key] = one(g.Rand, []string{"'closed'", "sub", "../other"})
	},
	func(g *generator) {
		g.linux["cgroupsPath"] = one(g.Rand, []string{"/docker", "/kubepods", "/kubepods/besteffort",
			"/user.slice", "/user.slice/c1", "/docker/c1", "/bound", "/bound/0", "/bound/0/sub",
			"/bound/00"})
	},
	func(g *generator) { g.namespace = g.namespace[g.IntN(len(g.namespace)):] },
	func(g *generator) { g.notes["gpuledger.dev/grant"] = one(g.Rand, []string{"adopt", "", "adopt"}) },
	func(g *generator) {
		g.root["path"] = g.rootFileSystem()
	},
}

func (g *generator) visible() string {
	switch g.IntN(12) {
	case 0, 1, 2:
		return "all"
	case 3:
		return one(g.Rand, []string{"void", "none", ""})
	case 4:
		return g.gpuName() + "," + g.gpuName()
	case 5:
		return one(g.Rand, []string{"all,void", "0,all", "void,0", "nvidia.com/gpu=0", "99", "GPU-0", "0,",
			"ALL", " 0"})
	}
	return g.gpuName()
}

// device is the number of a device, mostly of NVIDIA's driver.
func (g *generator) device() Number {
	n := g.in.Node
	gpu := g.gpu()
	switch g.IntN(16) {
	case 0:
		return Number{195, 255}
	case 1:
		return Number{195, 254}
	case 2:
		return Number{195, 77}
	case 3:
		return Number{n.Majors["nvidia-uvm"], g.Int64N(2)}
	case 4:
		return Number{n.Majors["nvidia-caps"], g.Int64N(4)}
	case 5:
		return Number{226, one(g.Rand, gpu.Render)}
	case 6:
		return Number{n.Majors["nvidia-nvswitch"], 255}
	case 7:
		return Number{n.Majors["nvidia-caps-imex-channels"], 0}
	case 8:
		return Number{10, 200}
	case 9:
		if len(gpu.MIG) > 0 {
			return Number{n.Majors["nvidia-caps"], one(g.Rand, gpu.MIG).Caps[g.IntN(2)]}
		}
	}
	return Number{195, gpu.Minor}
}

// node is a device of the spec.
func (g *generator) node() {
	d := g.device()
	path := one(g.Rand, []string{fmt.Sprintf("/dev/nvidia%d", d.Minor), "/dev/x", g.in.Node.Dev + "/nvidia0",
		"/dev/null"})
	g.devices = append(g.devices, object{"path": path, "type": one(g.Rand, []string{"c", "c", "c", "c", "u",
		"b", "p"}), "major": d.Major, "minor": d.Minor})
	if g.chance(50) {
		g.rules = append(g.rules, rule(true, "c", d.Major, d.Minor, "rwm"))
	}
}

// openRule is a device rule behind those of the engine.
func (g *generator) openRule() {
	d := g.device()
	access := one(g.Rand, []string{"rwm", "rwm", "rwm", "r", "w", "m", "rm"})
	switch g.IntN(14) {
	case 6: // numbers and access of a rule about all devices do not count
		g.rules = append(g.rules, rule(true, one(g.Rand, []string{"a", ""}), one(g.Rand, []int64{-1, 1}), -1,
			access))
	case 7:
		g.rules = append(g.rules, rule(true, "c", d.Major, d.Minor, access), rule(false, "a", one(g.Rand,
			[]int64{-1, 1}), -1, access))
	case 0:
		g.rules = append(g.rules, rule(true, "c", d.Major, -1, access))
	case 1:
		g.rules = append(g.rules, rule(true, "c", -1, -1, access))
	case 2:
		g.rules = append(g.rules, rule(true, "b", one(g.Rand, []int64{-1, 8}), -1, access))
	case 3: // numbers to come
		g.rules = append(g.rules, rule(true, "c", one(g.Rand, []int64{234, 254, 384, 511, 500, 240, 233, 300,
			226}), one(g.Rand, []int64{-1, 0, 7}), access))
	case 4:
		g.rules = append(g.rules, rule(true, "c", d.Major, d.Minor, access), rule(false, "", -1, -1, "rwm"))
	case 5:
		g.rules = append(g.rules, rule(true, "c", d.Major, d.Minor, access), rule(false, "c", d.Major,
			d.Minor, "rwm"))
	default:
		g.rules = append(g.rules, rule(true, "c", d.Major, d.Minor, access))
	}
}

// mount is a mount of something of the node.
func (g *generator) mount() {
	p, dev := g.policy, g.in.Node.Dev
	source := one(g.Rand, []string{dev + "/nvidia0", dev + "/nvidia1", dev + "/nvidiactl",
		dev + "/nvidia-uvm", dev + "/innocent", dev + "/null",
		dev + "/link", dev + "/torun", dev, dev + "/plain", "/", p.StateDir, p.RunDir, p.StateDir + "/grants",
		p.RunDir + "/lock", p.StateDir + "/..",
		"/tmp/nvidia-mps", "/run/nvidia-mps", "/var/run/nvidia-mps", "/tmp", "/proc/self/cwd", "/etc",
		dev + "/nvidia-modeset",
		dev + "/plain/../nvidia0", dev + "//nvidia1/", dev + "/torun/lock", dev + "/card"})
	source = strings.TrimSuffix(source, "/")
	if source == "" {
		source = "/"
	}
	m := object{"destination": "/mnt/" + strconv.Itoa(g.IntN(100)), "source": source}
	switch g.IntN(5) {
	case 0:
		m["type"] = "bind"
	case 1:
		m["type"], m["options"] = "none", []any{"rbind", "ro"}
	case 2:
		m["options"] = []any{"bind"}
	case 3:
		m["type"], m["options"] = "bind", []any{"rbind", "rw"}
	case 4:
		if g.chance(50) {
			m["type"], m["options"] = "tmpfs", []any{"nosuid"}
			break
		}
		m["type"], m["source"], m["options"] = "overlay", "overlay", []any{"lowerdir=" + source}
	}
	g.mounts = append(g.mounts, m)
}

// rootFileSystem: a root that is a directory of the node is judged with all mounts in it (ADR
// 19), so only a runtime without device rules gets one here.
func (g *generator) rootFileSystem() string {
	if g.in.Node.Rootless {
		return one(g.Rand, []string{g.in.Node.Dev, "/", "rootfs"})
	}
	return one(g.Rand, []string{g.policy.RunDir, "rootfs"})
}
