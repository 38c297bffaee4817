package configure

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// editCRIO writes gpuledger's drop-in file.
func editCRIO(c engines.CRIO, w wanted) (fileEdits, error) {
	var e fileEdits
	if err := readsDropIn(w.in.System, w.in.Arguments(), c.Ours); err != nil {
		return e, err
	}
	set := configfile.Setter{Document: c.Doc, Err: addHeader(c.Doc, w.in)}
	keys := [][]string{{"crio", "runtime", "runtimes", engines.Handler}}
	setCDIDirs(&set, configfile.Table(w.was.Tree, "crio", "runtime"), "cdi_spec_dirs",
		[]string{"crio", "runtime", "cdi_spec_dirs"})
	if w.asDefault {
		keys = append(keys, []string{"crio", "runtime", "default_runtime"})
		set.To(engines.Handler, "crio", "runtime", "default_runtime")
	}
	setCRIOHandler(&set, &e, w)
	return editDropIn(e, c.DropIns, w.in, set.Err, keys...)
}

// readsDropIn refuses if a running CRI-O, with these arguments, does not read gpuledger's file.
func readsDropIn(in filetree.System, args []string, ours string) error {
	if len(args) == 0 {
		return nil
	}
	dir := cmp.Or(flagOf(args, "config-dir"), flagOf(args, "d"), engines.CRIODropIns)
	reads, err := in.Resolve(dir)
	want, bad := in.Resolve(filepath.Dir(ours))
	if err != nil || bad != nil || reads == want {
		return errors.Join(err, bad)
	}
	return fmt.Errorf("cannot configure crio: it reads only the drop-in files of %s, not %s; "+
		"start it with --config-dir %s", grant.Printable(dir), ours, filepath.Dir(ours))
}

// defaultPath is the environment that CRI-O gives to a monitor by default. A list in a file
// replaces it.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// setCRIOHandler copies the present default handler to gpuledger's. It copies allowed_annotations
// and adds nothing to it. CRI-O passes every annotation on, and drops a handler whose list has a
// key that CRI-O does not know.
func setCRIOHandler(set *configfile.Setter, e *fileEdits, w wanted) {
	like := w.was.Settings
	path := []string{"crio", "runtime", "runtimes", engines.Handler}
	at := func(name string) []string { return slices.Concat(path, []string{name}) }
	v, _ := set.Get(path...)
	has, _ := v.(map[string]any)
	set.To(w.link, at("runtime_path")...)
	set.To("oci", at("runtime_type")...)
	if w.was.Kind != "" {
		e.note("the present default handler is of type %s; gpuledger's is of type oci", w.was.Kind)
		like = nil
	}
	if _, found := like["runtime_root"]; !found && has["runtime_root"] == nil {
		root := "/run/runc"
		if strings.HasPrefix(
			filepath.Base(cmp.Or(w.in.System.FirstProgram(w.runtimes), w.runtimes[0])), "crun") {
			root = "/run/crun"
		}
		set.To(root, at("runtime_root")...)
	}
	setHostDevices(set, w, path, like, has)
	set.Copy(path, like, has, append([]string{"runtime_path", "runtime_type", "monitor_env",
		"runtime_config_path", "platform_runtime_paths",
		"inherit_default_runtime", "runtime_pull_image"}, hostDevices...))
	set.To(monitorEnv(e, w, like, has), at("monitor_env")...)
}

// monitorEnv is the only environment that reaches the wrapper under CRI-O, so it must name
// gpuledger's configuration.
func monitorEnv(e *fileEdits, w wanted, like, has map[string]any) []string {
	env, found := configfile.Texts(has, "monitor_env")
	if !found {
		env, found = configfile.Texts(like, "monitor_env")
	}
	if !found {
		env = []string{defaultPath}
	}
	if all, _ := configfile.Texts(w.was.Tree, "crio", "runtime", "conmon_env"); len(all) > 0 &&
		!slices.Contains(all, w.configEnv()) {
		e.note("crio.runtime.conmon_env is set and replaces monitor_env of every handler: add %q to it",
			w.configEnv())
	}
	env = slices.DeleteFunc(slices.Clone(env), isConfigEnv)
	return append(env, w.configEnv())
}
