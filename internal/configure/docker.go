package configure

import (
	"bytes"
	"fmt"

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

// dockerFlags refuses if a unit of systemd gives dockerd a flag for what daemon.json will say.
// dockerd does not start with a directive in both places.
func dockerFlags(w wanted) error {
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
		for _, flag := range []string{"--add-runtime", "--default-runtime"} {
			if bytes.Contains(c.Data, []byte(flag)) && (flag == "--add-runtime" || w.asDefault) {
				return fmt.Errorf("cannot configure docker: %s starts dockerd with %s, which must not "+
					"stand in daemon.json too; move it from there into %s", path, flag, w.in.MainFile())
			}
		}
	}
	return nil
}
