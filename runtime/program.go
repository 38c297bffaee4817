package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// handedOn names the variable that says which process has handed a container on to
// runtime.unjudged. That runtime may call us in turn: NVIDIA's toolkit takes the engine's default
// runtime, which we are, for the one below its own. A program keeps its pid and start time over
// exec, so the value holds for this one process and for none that inherits the environment.
const handedOn = "_GPULEDGER_HANDED_ON"

// calledBack reports whether this process has been the wrapper before, and has decided about the
// container.
func calledBack() bool {
	value := os.Getenv(handedOn)
	return value != "" && value == self()
}

func self() string {
	p, err := host.Default().Self()
	if err != nil {
		return ""
	}
	return p.String()
}

// exec becomes a runtime.
func (w *wrapper) exec(program string) error {
	env := slices.DeleteFunc(os.Environ(),
		func(entry string) bool { return strings.HasPrefix(entry, handedOn+"=") })
	if program == w.unjudged {
		env = append(env, handedOn+"="+self())
	}
	argv := append([]string{program}, w.argv[1:]...)
	return fmt.Errorf("cannot run %s: %w", program, syscall.Exec(program, argv, env))
}

// keeper is the runtime that a subcommand other than a create goes to: the real one where it keeps
// a container that the arguments name, else the one that runs what is not judged. NVIDIA's has no
// state of its own, and may have runc below it where the real runtime is crun.
func (w *wrapper) keeper() string {
	if w.unjudged == "" {
		return w.real
	}
	if w.kept() != "" {
		return w.real
	}
	return w.unjudged
}

// kept is the first of the arguments that is the id of a container which the real runtime keeps, ""
// without one.
func (w *wrapper) kept() string {
	state := "state.json"
	if strings.HasPrefix(filepath.Base(w.real), "crun") {
		state = "status"
	}
	for _, word := range w.argv[1:] {
		if word == "" || word[0] == '-' || strings.ContainsRune(word, '/') {
			continue
		}
		if _, err := os.Stat(filepath.Join(w.runtimeRoot(), word, state)); err == nil {
			return word
		}
	}
	return ""
}

// binDirs are searched after PATH: an engine's monitor may run us without one.
var binDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// find gives the first of several runtimes that is there, and never this program under another
// name.
func find(names []string) (string, error) {
	us, _ := os.Stat("/proc/self/exe")
	for _, name := range names {
		for _, path := range places(name) {
			info, err := os.Stat(path)
			if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !os.SameFile(info, us) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("cannot find the real OCI runtime: none of %s is there; set runtime.path in %s",
		strings.Join(names, ", "), policy.Path(""))
}

func places(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var paths []string
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), binDirs...) {
		if filepath.IsAbs(dir) { // a relative one would be the engine's working directory: the bundle
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}
