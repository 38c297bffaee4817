package configure

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// wanted is what configure puts into an engine's files.
type wanted struct {
	in        engines.Installation
	was       engines.DefaultHandler // without gpuledger
	asDefault bool                   // gpuledger's handler becomes the one of containers that choose none
	link      string                 // the path by which the engine calls the wrapper
	config    string                 // gpuledger's own configuration file
	globs     []string               // patterns of the pod annotations that the wrapper must see
	runtimes  []string               // the real runtimes that the wrapper may execute
}

// editEngine puts gpuledger into an engine's files.
func editEngine(c engines.Configuration, w wanted) (fileEdits, error) {
	switch c := c.(type) {
	case *engines.Containerd:
		return editContainerd(c, w)
	case engines.CRIO:
		return editCRIO(c, w)
	case engines.Podman:
		return editPodman(c, w)
	case engines.Docker:
		return editDocker(c, w)
	}
	return fileEdits{}, fmt.Errorf("internal error: cannot edit a configuration of type %T", c)
}

// addHeader puts a comment into a new file that says which command wrote it.
func addHeader(d *configfile.TOML, in engines.Installation) error {
	if len(d.Bytes()) > 0 {
		return nil
	}
	name := in.Of().Name
	signed, err := configfile.ParseTOML(fmt.Appendf(nil,
		"# Written by `gpuledger configure %s`; `gpuledger configure %s --undo` takes it away.\n", name,
		name))
	if err == nil {
		*d = *signed
	}
	return err
}

// configEnv is the variable by which the wrapper finds its configuration.
func (w wanted) configEnv() string { return policy.PathEnv + "=" + w.config }

func isConfigEnv(entry string) bool { return strings.HasPrefix(entry, policy.PathEnv+"=") }

// noteConfig adds a note if the wrapper finds its configuration only by its environment, which
// comes from where.
func (e *fileEdits) noteConfig(w wanted, where string) {
	if w.config != policy.DefaultPath {
		e.note("the wrapper reads %s only if %s has %s", w.config, where, w.configEnv())
	}
}

// hostDevices are the settings that keep the host's devices from privileged containers.
var hostDevices = []string{"privileged_without_host_devices",
	"privileged_without_host_devices_all_devices_allowed"}

// setHostDevices copies hostDevices from the present default handler, if gpuledger's becomes the
// default. A privileged pod then finds the same devices as before. A handler that pods choose keeps
// the engine's default.
func setHostDevices(set *configfile.Setter, w wanted, path []string, like, has map[string]any) {
	if !w.asDefault {
		return
	}
	for _, key := range hostDevices {
		if before := like[key] == true; before != (has[key] == true) {
			set.To(before, slices.Concat(path, []string{key})...)
		}
	}
}

// editDropIn writes gpuledger's file among an engine's drop-in files. It refuses if a file that is
// read later sets one of the keys. err is the error of the edits. It begins with the number of a
// line, so it follows the path without a space: PATH:LINE: why.
func editDropIn(e fileEdits, d engines.DropIns, in engines.Installation, err error,
	keys ...[]string) (fileEdits, error) {
	if err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", d.Ours, err)
	}
	for _, key := range keys {
		if other := d.Overruled(key...); other != "" {
			return e, fmt.Errorf("cannot configure %s: %s is read after %s and sets %s; take it out there",
				in.Engine, other, d.Ours, configfile.Dotted(key))
		}
	}
	e.write(d.Ours, d.Doc.Bytes())
	return e, nil
}

// setCDIDirs adds the standard directories of CDI to a list that a file sets without them. An
// engine's own default has them.
func setCDIDirs(set *configfile.Setter, tree map[string]any, key string, path []string) {
	dirs, found := configfile.Texts(tree, key)
	if missing := missingCDI(dirs); found && len(missing) > 0 {
		set.To(configfile.Union(dirs, missing...), path...)
	}
}

func missingCDI(dirs []string) []string {
	missing := []string{}
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		if !slices.Contains(dirs, dir) && !slices.Contains(dirs, strings.TrimPrefix(dir, "/var")) {
			missing = append(missing, dir)
		}
	}
	return missing
}
