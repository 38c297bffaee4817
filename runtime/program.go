package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// handedOverEnv is the variable that says which process has passed a container to runtime.unjudged.
// That runtime may call the wrapper again: NVIDIA's toolkit uses the engine's default runtime,
// which is the wrapper, as its low-level runtime. A program keeps its pid and start time over exec.
// So the value is valid for this process and for none that inherits the environment.
const handedOverEnv = "_GPULEDGER_HANDED_ON"

// calledBack reports whether this process was the wrapper before and has decided about the
// container.
func calledBack() bool {
	value := os.Getenv(handedOverEnv)
	return value != "" && value == self()
}

func self() string {
	p, err := host.Default().Self()
	if err != nil {
		return ""
	}
	return p.String()
}

// exec replaces this program by a runtime. It returns only on an error.
func (w *wrapper) exec(program string) error {
	env := slices.DeleteFunc(os.Environ(),
		func(entry string) bool { return strings.HasPrefix(entry, handedOverEnv+"=") })
	if program == w.unjudged {
		env = append(env, handedOverEnv+"="+self())
	}
	argv := append([]string{program}, w.argv[1:]...)
	return fmt.Errorf("cannot run %s: %w", program, syscall.Exec(program, argv, env))
}

// runtimeOfContainer returns the runtime for a subcommand other than a create. It is the real one
// if that keeps a container which the arguments name, otherwise the unjudged one. NVIDIA's runtime
// keeps no state of its own, and may use runc where the real runtime is crun.
func (w *wrapper) runtimeOfContainer() string {
	if w.unjudged == "" {
		return w.real
	}
	if w.knownContainer() != "" {
		return w.real
	}
	return w.unjudged
}

// knownContainer returns the container of an exec, or of another subcommand the first argument that
// is the id of a container whose state the real runtime keeps, or "".
func (w *wrapper) knownContainer() string {
	state := "state.json"
	if strings.HasPrefix(filepath.Base(w.real), "crun") {
		state = "status"
	}
	words := w.argv[1:]
	if w.IDAt > 0 {
		words = []string{w.ID} // the others are values and a tenant's command
	}
	for _, word := range words {
		if word == "" || word[0] == '-' || strings.ContainsRune(word, '/') {
			continue
		}
		if _, err := os.Stat(filepath.Join(w.runtimeRoot(), word, state)); err == nil {
			return word
		}
	}
	return ""
}

// findReal returns the first of several runtimes that exists, or the one that keeps the container
// of a subcommand. The first is another one after an installation, and while the configuration
// cannot be read.
func (w *wrapper) findReal(names []string) (string, error) {
	first, err := find(names)
	if err != nil || slices.Contains(oci.Creates, w.Name) {
		return first, err
	}
	for _, name := range names {
		if w.real, _ = find([]string{name}); w.real != "" && w.knownContainer() != "" {
			return w.real, nil
		}
	}
	return first, nil
}

// binDirs are searched after PATH: an engine's monitor may run the wrapper without PATH. The last
// one has the runtimes of CRI-O's packages.
var binDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
	"/usr/libexec/crio"}

// find returns the path of the first of several runtimes that exists. It never returns this program
// under another name.
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
		if filepath.IsAbs(dir) { // a relative one would be below the engine's working directory: the bundle
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}
