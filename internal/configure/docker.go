package configure

import (
	"bytes"
	"fmt"
)

// docker plans the edit of Docker's daemon.json.
func (p *Plan) docker() (present, error) {
	path := p.mainFile()
	_, c, err := p.load(path)
	if err != nil {
		return present{}, err
	}
	d, err := parseJSON(c.data)
	if err != nil {
		return present{}, fmt.Errorf("cannot read %s:%w", path, err)
	}
	if err := p.dockerFlags(); err != nil {
		return present{}, err
	}
	was := dockerPresent(d.tree)
	set := setter{d, nil}
	set.to(p.link(), "runtimes", Handler, "path")
	if p.options.AsDefault {
		set.to(Handler, "default-runtime")
	}
	set.to(true, "features", "cdi") // off by default until Docker 28.3
	set.cdiDirs(d.tree, "cdi-spec-dirs", []string{"cdi-spec-dirs"})
	if set.err != nil {
		return present{}, fmt.Errorf("cannot edit %s:%w", path, set.err)
	}
	p.noteConfig("Docker")
	return was, p.change(path, d.bytes())
}

func dockerPresent(tree map[string]any) present {
	was := present{roots: []string{"/run/docker/runtime-runc/moby"}} // of every runtime (moby, daemon/runtime_unix.go)
	if name := text(tree, "default-runtime"); name != Handler {
		was.binary = text(tree, "runtimes", name, "path")
	}
	return was
}

// dockerFlags refuses a unit that gives dockerd by flags what daemon.json shall say: dockerd would not start, because a
// directive may stand in one of them only.
func (p *Plan) dockerFlags() error {
	units := []string{}
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"} {
		units = append(units, dir+"/docker.service")
		units = append(units, p.system.glob(dir+"/docker.service.d/*.conf")...)
	}
	for _, path := range units {
		_, c, err := p.load(path)
		if err != nil {
			return err
		}
		for _, flag := range []string{"--add-runtime", "--default-runtime"} {
			if bytes.Contains(c.data, []byte(flag)) && (flag == "--add-runtime" || p.options.AsDefault) {
				return fmt.Errorf("cannot configure docker: %s starts dockerd with %s, which must not stand in daemon.json too; move it from there into %s", path, flag, p.mainFile())
			}
		}
	}
	return nil
}
