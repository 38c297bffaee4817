package doctor

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// engineLines reports for each engine whether its containers go through gpuledger.
func engineLines(f Facts) []Line {
	lines, told := changed(f.Default)
	for _, e := range f.Engines {
		if !told[e.Engine] {
			lines = append(lines, engineLine(e))
		}
	}
	if len(lines) == 0 {
		return []Line{{Status: Warning, Message: "no containerd, CRI-O, Podman or Docker was found",
			Hint: "configure an engine that gpuledger does not know to run gpuledger-runtime"}}
	}
	return lines
}

// changed reports the engines that have lost what `gpuledger configure --as-default` has written.
func changed(all []configure.Default) (lines []Line, told map[grant.Engine]bool) {
	told = map[grant.Engine]bool{}
	for _, d := range all {
		if problem := d.Problem(); problem != "" {
			lines = append(lines, Line{Status: Problem, Message: problem, Hint: d.Hint()})
			told[d.Engine] = true
		}
	}
	return lines, told
}

func engineLine(e engines.Presence) Line {
	command := "gpuledger configure " + e.Name
	program, has := e.Handlers[engines.Handler]
	switch {
	case e.Err != nil:
		return Line{Status: Warning, Message: fmt.Sprintf("%s: %v", e.Engine, e.Err),
			Hint: "correct it, then run `" + command + " --dry-run`"}
	case !has && e.Default == engines.Handler:
		return Line{Status: Problem, Message: string(e.Engine) +
			": its default handler is gpuledger, which is not configured: it starts no container",
			Hint: "run `" + command + "`"}
	case !has:
		return Line{Status: Warning, Message: string(e.Engine) +
			": gpuledger is not configured in it; its containers go around the ledger",
			Hint: "run `" + command + " --as-default`, if it runs containers on this node"}
	case engines.FindProgram(program) == "":
		return Line{Status: Problem,
			Message: fmt.Sprintf("%s: the program of handler gpuledger, %q, is not there", e.Engine, program),
			Hint:    "run `" + command + "` again"}
	case e.PassesUID != "":
		return Line{Status: Warning, Message: fmt.Sprintf("%s: handler gpuledger passes on the pods' "+
			"annotations %q: by them a pod can claim another pod's UID, and use its grant, because "+
			"containerd before 1.6.11 does not write the UID", e.Engine, e.PassesUID),
			Hint: "update containerd, or list in the handler's pod_annotations only what containers need"}
	case e.Default != engines.Handler:
		return Line{Status: Warning, Message: string(e.Engine) +
			": only containers that choose handler gpuledger go through it; the others go around the ledger",
			Hint: "run `" + command + " --as-default`"}
	}
	return Line{Status: OK, Message: string(e.Engine) +
		": containers that choose no handler go through gpuledger"}
}

// injectors are prefixes of the names of NVIDIA's programs that put GPUs into containers.
var injectors = []string{"nvidia-container-runtime", "nvidia-container-toolkit"}

func injects(program string) bool {
	return slices.ContainsFunc(injectors, func(name string) bool {
		return strings.HasPrefix(filepath.Base(program), name)
	})
}

func hooks(f Facts) []Line {
	var lines []Line
	var ours []string
	for _, h := range f.Hooks {
		switch {
		case h.Error != nil:
			lines = append(lines, Line{Status: Warning,
				Message: fmt.Sprintf("%s cannot be read: %v", h.Path, h.Error),
				Hint:    "engines skip such a file, or fail"})
		case h.loose() || len(h.Above) > 0:
			lines = append(lines, open(h.PathFacts))
		case injects(h.Program):
			lines = append(lines, Line{Status: Warning,
				Message: h.Path + " gives NVIDIA's hook to every container: it injects the GPUs that a " +
					"variable or a mount asks for",
				Hint: "it can stay where gpuledger-runtime runs the containers, which removes it where " +
					"there is a grant; beside gpuledger-hook see docs/hook.md"})
		case filepath.Base(h.Program) == "gpuledger-hook" && h.Gone:
			lines = append(lines, Line{Status: Problem, Message: h.Path + " runs " + h.Program +
				", which is not there: its engine starts no container",
				Hint: "install it, or remove the file"})
		case filepath.Base(h.Program) == "gpuledger-hook":
			ours = append(ours, h.Path)
		}
	}
	if len(ours) > 0 {
		lines = append(lines, Line{Status: OK, Message: "gpuledger-hook is called by " +
			strings.Join(ours, ", ")})
	}
	return orOK(lines, "no engine has a hook for GPUs")
}

func cdi(f Facts) []Line {
	var lines []Line
	var kinds []string
	for _, s := range f.CDI {
		vendor, _, _ := strings.Cut(s.Kind, "/")
		switch {
		case s.loose() || len(s.Above) > 0:
			l := open(s.PathFacts)
			l.Message += ": what stands there, engines inject"
			lines = append(lines, l)
		case s.Error != nil:
			lines = append(lines, Line{Status: Warning,
				Message: fmt.Sprintf("%s cannot be read: %v", s.Path, s.Error),
				Hint:    "engines leave such a file out; write it anew"})
		case vendor == "management.nvidia.com":
			lines = append(lines, Line{Status: Warning, Message: s.Path + " names all GPUs at once (" +
				s.Kind + ")",
				Hint: "it is for the GPU operator's own containers; another container that asks for it is " +
					"refused without a grant, if gpuledger is the handler"})
		case s.Kind == "nvidia.com/gpu" && slices.ContainsFunc(f.Engines,
			func(e engines.Presence) bool { return e.CDIBuilds }):
			lines = append(lines, Line{Status: Warning, Message: s.Path + " (" + s.Kind + "): from Docker " +
				"29 on, `docker build --allow device` gives its GPUs to build steps, around the ledger",
				Hint: "set \"builder\": {\"entitlements\": {\"device\": false}} in Docker's " +
					"daemon.json, and restart dockerd"})
		case s.Kind != "":
			kinds = append(kinds, s.Kind)
		}
	}
	if len(lines) > 0 {
		return lines
	}
	slices.Sort(kinds)
	if kinds = slices.Compact(kinds); len(kinds) > 0 {
		return []Line{{Status: OK, Message: "only root writes there; kinds " + strings.Join(kinds, ", ")}}
	}
	return []Line{{Status: OK, Message: "no CDI files"}}
}

// toolkit reports whether NVIDIA's container toolkit would inject GPUs a second time, or without
// gpuledger.
func toolkit(f Facts) []Line {
	var lines []Line
	if len(f.Runtimes) > 0 && injects(f.Runtimes[0].Path) &&
		f.Policy.Enforcement.VisibleDevices == grant.VisibleUUIDs {
		lines = append(lines, Line{Status: Problem, Message: "containers run under " + f.Runtimes[0].Path +
			", which would inject again what gpuledger injects",
			Hint: "set runtime.path = [\"runc\"], or enforcement.visible_devices = \"void\""})
	}
	for _, e := range f.Engines {
		for _, name := range sortedKeys(e.Handlers) {
			if injects(e.Handlers[name]) {
				lines = append(lines, Line{
					Status: Warning,
					Message: fmt.Sprintf(
						"%s: containers that choose handler %s get GPUs from %s, around the ledger", e.Engine,
						name, e.Handlers[name]),
					Hint: "take the handler out, when nothing on this node needs it any more"})
			}
		}
	}
	if len(f.Toolkit) == 0 {
		return orOK(lines, "NVIDIA's container toolkit is not installed")
	}
	return orOK(lines, "%s: nothing calls it behind or beside gpuledger", strings.Join(f.Toolkit, ", "))
}
