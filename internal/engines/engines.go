// Package engines finds the container engines of a node: which are installed, what their
// configuration files say, which processes they run and how each of them restarts. It changes no
// file.
package engines

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Handler is the name of gpuledger's runtime handler in every engine.
const Handler = "gpuledger"

// All are the engines that gpuledger knows.
var All = []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker}

// Properties is what differs between engines.
type Properties struct {
	Name    string        // for `gpuledger configure`, and of the link to the wrapper
	Program string        // its program
	File    string        // its main configuration file
	Unit    string        // the service of systemd; "" if it has none
	Daemon  string        // the name of its process; "" if it has none
	Keys    []HandlerKeys // the keys by which its files name handlers

	read func(Installation) (Configuration, error)
}

// HandlerKeys are the paths of an engine's table of handlers and of the key for its default
// handler.
type HandlerKeys struct{ Handlers, Default []string }

// Of is what is known of an engine.
func Of(engine grant.Engine) Properties { return properties[engine] }

// properties is set by init, because the functions in it use it.
var properties map[grant.Engine]Properties

func init() {
	properties = map[grant.Engine]Properties{
		grant.Containerd: {"containerd", "containerd", "/etc/containerd/config.toml", "containerd.service",
			"containerd", containerdKeys, readContainerd},
		grant.CRIO:   {"crio", "crio", "/etc/crio/crio.conf", "crio.service", "crio", crioKeys, readCRIO},
		grant.Podman: {"podman", "podman", "/etc/containers/containers.conf", "", "", podmanKeys, readPodman},
		grant.Docker: {"docker", "dockerd", "/etc/docker/daemon.json", "docker.service", "dockerd",
			dockerKeys, readDocker},
	}
}

// Installation is one engine on a system.
type Installation struct {
	Engine grant.Engine
	System filetree.System
	File   string // the main configuration file; "" for the usual one
}

// Of is what is known of the engine.
func (in Installation) Of() Properties { return Of(in.Engine) }

// MainFile is the engine's main configuration file.
func (in Installation) MainFile() string {
	if in.File != "" {
		return in.File
	}
	return in.Of().File
}

// Read reads the engine's files. With an error it returns what could be read.
func (in Installation) Read() (Configuration, error) { return in.Of().read(in) }

// Configuration is an engine's configuration as the engine reads it, as far as it can be read. It
// is a *Containerd, CRIO, Podman or Docker.
type Configuration interface {
	// Paths are the files that the engine reads.
	Paths() []string
	// InForce is what the files say.
	InForce() Settings
	// DefaultHandler is the handler of containers that choose none, other than gpuledger's.
	DefaultHandler() DefaultHandler
}

// Settings is what an engine's files say; see Presence.
type Settings struct {
	Handlers          map[string]string
	Default           string
	CDIDirs, HookDirs []string
	CDIBuilds         bool
	PassesUID         string
	// the engine runs no containers of its own, as a containerd that only serves Docker
	Absent bool
}

// handlers are the programs of a table's handlers, by handler.
func handlers(all map[string]any, program func(map[string]any) string) map[string]string {
	programs := map[string]string{}
	for name, settings := range all {
		handler, _ := settings.(map[string]any)
		programs[name] = program(handler)
	}
	return programs
}

// ReadTOML reads a TOML file. A missing one is empty.
func ReadTOML(in filetree.System, path string) (*configfile.TOML, error) {
	_, c, err := in.Load(path)
	if err != nil {
		return nil, err
	}
	d, err := configfile.ParseTOML(c.Data)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", path, err)
	}
	return d, nil
}
