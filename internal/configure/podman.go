package configure

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
)

// podmanJSON and podmanNoCgroups are Podman's defaults for the lists runtime_supports_json and
// runtime_supports_nocgroups (containers/common, pkg/config/default.go). A list in a file replaces
// the default.
var (
	podmanJSON      = []string{"crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"}
	podmanNoCgroups = []string{"crun", "krun"}
)

// editPodman writes gpuledger's drop-in file.
func editPodman(c engines.Podman, w wanted) (fileEdits, error) {
	var e fileEdits
	if c.Linked != "" {
		return e, fmt.Errorf("cannot configure podman: %s is a symbolic link, and Podman reads no files "+
			"through it; make it a directory", c.Linked)
	}
	set := configfile.Setter{Document: c.Doc, Err: addHeader(c.Doc, w.in)}
	keys := [][]string{{"engine", "runtimes", engines.Handler}, {"engine", "runtime_supports_json"}}
	engine := configfile.Table(w.was.Tree, "engine")
	setCDIDirs(&set, engine, "cdi_spec_dirs", []string{"engine", "cdi_spec_dirs"})
	if w.asDefault {
		keys = append(keys, []string{"engine", "runtime"})
		set.To(engines.Handler, "engine", "runtime")
	}
	// Podman looks a runtime up by its name in the list, or by the file's name if --runtime gives a
	// path.
	names := []string{engines.Handler, filepath.Base(w.link)}
	set.To(podmanList(c.Doc, engine, "runtime_supports_json", podmanJSON, names), "engine",
		"runtime_supports_json")
	if strings.HasPrefix(filepath.Base(w.in.System.FirstProgram(w.runtimes)), "crun") {
		set.To(podmanList(c.Doc, engine, "runtime_supports_nocgroups", podmanNoCgroups, names), "engine",
			"runtime_supports_nocgroups")
	}
	set.To([]string{w.link}, "engine", "runtimes", engines.Handler)
	e.noteConfig(w, "conmon_env_vars in Podman's containers.conf")
	return editDropIn(e, c.DropIns, w.in, set.Err, keys...)
}

// podmanList is a list as the files set it, or else Podman's default, with gpuledger's names.
func podmanList(ours *configfile.TOML, engine map[string]any, key string,
	byDefault, names []string) []string {
	list, found := configfile.Texts(engine, key)
	if !found {
		list = byDefault
	}
	has, _ := configfile.Texts(ours.Tree(), "engine", key)
	return configfile.Union(configfile.Union(has, list...), names...)
}
