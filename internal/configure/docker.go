package configure

import (
	"bytes"
	"fmt"

	"github.com/gpuledger/gpuledger/internal/configfile"
)

// dockerConfig is Docker's daemon.json.
type dockerConfig struct {
	path string
	*configfile.JSON
}

var dockerKeys = []keys{{handlers: []string{"runtimes"}, byDefault: []string{"default-runtime"}}}

func readDocker(p *Plan) (configuration, error) {
	c := dockerConfig{p.mainFile(), &configfile.JSON{}}
	_, file, err := p.system.Load(c.path)
	if err != nil {
		return c, err
	}
	d, err := configfile.ParseJSON(file.Data)
	if err != nil {
		return c, fmt.Errorf("cannot read %s:%w", c.path, err)
	}
	return dockerConfig{c.path, d}, nil
}

func (c dockerConfig) paths() []string { return []string{c.path} }

func (c dockerConfig) inForce() engineFacts {
	facts := engineFacts{byDefault: configfile.Text(c.Tree(), "default-runtime")}
	facts.handlers = handlers(configfile.Table(c.Tree(), "runtimes"),
		func(h map[string]any) string { return configfile.Text(h, "path") })
	facts.cdiDirs, _ = configfile.Texts(c.Tree(), "cdi-spec-dirs")
	return facts
}

// defaultHandler reads the default runtime. It is a program, or a shim with its options (moby,
// daemon/runtime_unix.go).
func (c dockerConfig) defaultHandler(*Plan) defaultHandler {
	// the same directory for every runtime
	was := defaultHandler{tree: c.Tree(), name: configfile.Text(c.Tree(), "default-runtime"),
		roots: []string{"/run/docker/runtime-runc/moby"}}
	if was.name == "" || was.name == Handler {
		was.name = "runc"
	}
	was.handler = configfile.Table(c.Tree(), "runtimes", was.name)
	was.binary = configfile.Text(was.handler, "path")
	shim := configfile.Text(was.handler, "runtimeType")
	if was.handler == nil && was.name != "runc" {
		shim = was.name
	}
	switch {
	case shim == runcShim:
		was.binary = configfile.Text(was.handler, "options", "BinaryName")
	case shim != "":
		was.kind = shim
	}
	return was
}

// edit changes daemon.json itself, because Docker has no drop-in files.
func (c dockerConfig) edit(p *Plan, was defaultHandler) error {
	if err := p.dockerFlags(); err != nil {
		return err
	}
	set := configfile.Setter{Document: c.JSON}
	set.To(p.link(), "runtimes", Handler, "path")
	if p.options.AsDefault {
		set.To(Handler, "default-runtime")
	}
	set.To(true, "features", "cdi") // off by default before Docker 28.3
	setCDIDirs(&set, was.tree, "cdi-spec-dirs", []string{"cdi-spec-dirs"})
	if set.Err != nil {
		return fmt.Errorf("cannot edit %s:%w", c.path, set.Err)
	}
	p.noteConfig("Docker")
	return p.change(c.path, c.Bytes())
}

// dockerFlags refuses if a unit of systemd gives dockerd a flag for what daemon.json will say.
// dockerd does not start with a directive in both places.
func (p *Plan) dockerFlags() error {
	units := []string{}
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"} {
		units = append(units, dir+"/docker.service")
		units = append(units, p.system.Glob(dir+"/docker.service.d/*.conf")...)
	}
	for _, path := range units {
		_, c, err := p.system.Load(path)
		if err != nil {
			return err
		}
		for _, flag := range []string{"--add-runtime", "--default-runtime"} {
			if bytes.Contains(c.Data, []byte(flag)) && (flag == "--add-runtime" || p.options.AsDefault) {
				return fmt.Errorf("cannot configure docker: %s starts dockerd with %s, which must not "+
					"stand in daemon.json too; move it from there into %s", path, flag, p.mainFile())
			}
		}
	}
	return nil
}
