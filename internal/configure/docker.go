package configure

import (
	"fmt"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
)

// editDocker changes daemon.json itself, because Docker has no drop-in files.
func editDocker(c engines.Docker, w wanted) (fileEdits, error) {
	var e fileEdits
	if err := dockerFlags(w); err != nil {
		return e, err
	}
	set := configfile.Setter{Document: c.JSON}
	set.To(w.link, "runtimes", engines.Handler, "path")
	if w.asDefault {
		set.To(engines.Handler, "default-runtime")
	}
	set.To(true, "features", "cdi") // off by default before Docker 28.3
	setCDIDirs(&set, w.was.Tree, "cdi-spec-dirs", []string{"cdi-spec-dirs"})
	if set.Err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", c.Path, set.Err)
	}
	e.noteConfig(w, "the environment of the containerd that Docker uses")
	e.write(c.Path, c.Bytes())
	return e, nil
}

// dockerFlags refuses if dockerd runs with a flag for what daemon.json will say, or if a unit of
// systemd gives it one. dockerd does not start with a directive in both places. A reload says so
// only in its log. A unit can take its flags from another file, where only the process shows them.
func dockerFlags(w wanted) error {
	if flag := conflicting(w.in.Arguments(), w.asDefault); flag != "" {
		return fmt.Errorf("cannot configure docker: dockerd runs with %s, which must not stand in "+
			"daemon.json too; move it from its arguments into %s, and restart dockerd", flag,
			w.in.MainFile())
	}
	units := []string{}
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"} {
		units = append(units, dir+"/docker.service")
		units = append(units, w.in.System.Glob(dir+"/docker.service.d/*.conf")...)
	}
	for _, path := range units {
		_, c, err := w.in.System.Load(path)
		if err != nil {
			return err
		}
		if flag := conflicting(strings.Fields(string(c.Data)), w.asDefault); flag != "" {
			return fmt.Errorf("cannot configure docker: %s starts dockerd with %s, which must not "+
				"stand in daemon.json too; move it from there into %s", path, flag, w.in.MainFile())
		}
	}
	return nil
}

// conflicting is the first flag of a command line for what configure writes into daemon.json.
func conflicting(words []string, asDefault bool) string {
	for _, word := range words {
		flag, _, _ := strings.Cut(strings.Trim(word, `"'`), "=")
		switch flag {
		case "--add-runtime", "--feature":
			return flag
		case "--default-runtime":
			if asDefault {
				return flag
			}
		}
	}
	return ""
}
