package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// NeedsHandler reports whether the engine stops a container by the handler that the container was
// made with, which it looks up by name. The others remember the runtime's path.
func (in Installation) NeedsHandler() bool {
	return in.Engine == grant.Podman || in.Engine == grant.CRIO
}

// Monitors are the monitors of running containers that the engine cannot stop without gpuledger's
// handler (Podman, CRI-O) or without the link by which it calls gpuledger's runtime (containerd,
// Docker). There are none if the root is not "/".
//
// Podman's include those of users without root, which have mount namespaces of their own. The
// others are root's, in this mount namespace, so no container and no user without root can pretend
// to be one.
func (in Installation) Monitors(link string) []grant.Process {
	if in.System.Root != "/" {
		return nil
	}
	var pids []int
	switch in.Engine {
	case grant.Podman:
		pids = slices.DeleteFunc(processes("conmon", "pid"),
			func(pid int) bool { return !conmonCalls(pid, "/"+filepath.Base(link)) })
	case grant.CRIO:
		pids = slices.Concat(processes("conmon", "mnt"), processes("crio-conmon", "mnt"))
		pids = slices.DeleteFunc(pids, func(pid int) bool { return !hasItsName(pid) || !handlerIsOurs(pid) })
	default:
		const shim = "containerd-shim" // -runc-v2: the kernel keeps 15 bytes of a name (TASK_COMM_LEN)
		pids = slices.DeleteFunc(processes(shim, "mnt"),
			func(pid int) bool { return !hasItsName(pid) || !shimCalls(pid, link) })
	}
	var running []grant.Process
	for _, pid := range pids {
		if p, _, err := host.Default().Process(pid); err == nil {
			running = append(running, p)
		}
	}
	return running
}

func processDir(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid)) }

// hasItsName reports whether a process has its program's name. A user can give a setuid program,
// which is root's, any name by a link, and so its process.
func hasItsName(pid int) bool {
	name, _ := os.ReadFile(processDir(pid) + "/comm")
	program, _ := os.Readlink(processDir(pid) + "/exe")
	return strings.HasPrefix(filepath.Base(program), strings.TrimSpace(string(name)))
}

// arguments are those of a process.
func arguments(pid int) []string {
	line, _ := os.ReadFile(processDir(pid) + "/cmdline")
	return strings.Split(string(line), "\x00")
}

// conmonCalls reports whether conmon has a runtime whose path ends so.
func conmonCalls(pid int, runtime string) bool {
	return slices.ContainsFunc(arguments(pid),
		func(arg string) bool { return strings.HasSuffix(arg, runtime) })
}

// handlerIsOurs reports whether the pod of a container of CRI-O's has gpuledger's handler by name.
// CRI-O writes the name into the spec of the pod's sandbox, which is beside those of its containers
// (conmon -b), also where the sandbox has no process.
func handlerIsOurs(pid int) bool {
	args := arguments(pid)
	i := slices.Index(args, "-b")
	if i < 0 || i+1 >= len(args) {
		return false
	}
	bundle := args[i+1]
	sandbox := annotation(bundle, "io.kubernetes.cri-o.SandboxID")
	if sandbox == "" || strings.Contains(sandbox, "/") {
		return false
	}
	pod := filepath.Join(filepath.Dir(filepath.Dir(bundle)), sandbox, filepath.Base(bundle))
	return annotation(pod, "io.kubernetes.cri-o.RuntimeHandler") == Handler
}

// annotation is an annotation of a bundle's spec.
func annotation(bundle, key string) string {
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	text, _ := os.ReadFile(filepath.Join(bundle, "config.json"))
	_ = json.Unmarshal(text, &spec)
	return spec.Annotations[key]
}

// shimCalls reports whether a shim of containerd's (Docker's, too) calls a runtime. The shim writes
// the runtime's path into each bundle (WriteRuntime in containerd's
// cmd/containerd-shim-runc-v2/runc/container.go), and was started in that of its first container.
// All its containers have one handler. If the first is gone, any bundle beside it counts.
func shimCalls(pid int, runtime string) bool {
	bundle, err := os.Readlink(processDir(pid) + "/cwd")
	if err != nil {
		return false
	}
	files := []string{bundle + "/runtime"}
	if path, gone := strings.CutSuffix(bundle, " (deleted)"); gone {
		files, _ = filepath.Glob(filepath.Dir(path) + "/*/runtime")
	}
	return slices.ContainsFunc(files, func(file string) bool {
		path, _ := os.ReadFile(file)
		return strings.TrimSpace(string(path)) == runtime
	})
}
