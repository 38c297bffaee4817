package engines

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/configfile"
)

// Docker is Docker's daemon.json.
type Docker struct {
	Path string
	*configfile.JSON
}

var dockerKeys = []HandlerKeys{{Handlers: []string{"runtimes"}, Default: []string{"default-runtime"}}}

func readDocker(in Installation) (Configuration, error) {
	c := Docker{in.MainFile(), &configfile.JSON{}}
	_, file, err := in.System.Load(c.Path)
	if err != nil {
		return c, err
	}
	d, err := configfile.ParseJSON(file.Data)
	if err != nil {
		return c, fmt.Errorf("cannot read %s:%w", c.Path, err)
	}
	return Docker{c.Path, d}, nil
}

// Paths are the files that the engine reads.
func (c Docker) Paths() []string { return []string{c.Path} }

// InForce is what the files say.
func (c Docker) InForce() Settings {
	says := Settings{Default: configfile.Text(c.Tree(), "default-runtime")}
	says.Handlers = handlers(configfile.Table(c.Tree(), "runtimes"),
		func(h map[string]any) string { return configfile.Text(h, "path") })
	says.CDIDirs, _ = configfile.Texts(c.Tree(), "cdi-spec-dirs")
	// both are on by default (moby v29, cdiEnabled and getEntitlements)
	says.CDIBuilds = configfile.Table(c.Tree(), "features")["cdi"] != false &&
		configfile.Table(c.Tree(), "builder", "entitlements")["device"] != false
	return says
}

// DefaultHandler reads the default runtime. It is a program, or a shim with its options (moby,
// daemon/runtime_unix.go).
func (c Docker) DefaultHandler() DefaultHandler {
	// the same directory for every runtime
	was := DefaultHandler{Tree: c.Tree(), Name: configfile.Text(c.Tree(), "default-runtime"),
		Roots: []string{"/run/docker/runtime-runc/moby"}}
	if was.Name == "" || was.Name == Handler {
		was.Name = "runc"
	}
	was.Settings = configfile.Table(c.Tree(), "runtimes", was.Name)
	was.Binary = configfile.Text(was.Settings, "path")
	shim := configfile.Text(was.Settings, "runtimeType")
	if was.Settings == nil && was.Name != "runc" {
		shim = was.Name
	}
	switch {
	case shim == RuncShim:
		was.Binary = configfile.Text(was.Settings, "options", "BinaryName")
	case shim != "":
		was.Kind = shim
	}
	return was
}
