package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// place is where a distribution of Kubernetes keeps its own containerd's configuration. It writes the main file anew at each
// of its starts, so nothing is ever written there.
type place struct {
	name    string
	main    string   // what containerd reads
	dropIns string   // a directory whose files the distribution takes in by itself, whether or not the main file imports it
	units   []string // of systemd; none where the distribution watches the directory
	runc    string   // where it brings its own, and nobody else looks
	// template writes into what the distribution makes the main file from. It is for one that imports no directory.
	template func(*Plan, *containerdConfig, present) error
}

// The distributions' sources: k3s pkg/agent/templates and pkg/agent/containerd, whose code RKE2 runs; k0s
// pkg/component/worker/containerd; microk8s microk8s-resources/wrappers/run-containerd-with-args.
var places = []place{
	rancher("k3s", "data/current/bin/runc", "k3s.service", "k3s-agent.service"),
	rancher("rke2", "bin/runc", "rke2-server.service", "rke2-agent.service"),
	{name: "k0s", main: "/etc/k0s/containerd.toml", dropIns: "/etc/k0s/containerd.d", runc: "/var/lib/k0s/bin/runc"},
	{name: "MicroK8s", main: microk8s + "/containerd.toml", units: []string{"snap.microk8s.daemon-containerd.service"},
		runc: "/snap/microk8s/current/bin/runc", template: (*Plan).microk8sTemplate},
}

const microk8s = "/var/snap/microk8s/current/args"

func rancher(name, runc string, units ...string) place {
	dir := "/var/lib/rancher/" + name
	return place{name: name, main: dir + "/agent/etc/containerd/config.toml", units: units, runc: filepath.Join(dir, runc),
		template: func(p *Plan, c *containerdConfig, was present) error { return p.rancherTemplate(name, c, was) }}
}

// place is the distribution whose containerd is configured; nil where it is a containerd of its own.
func (p *Plan) place() *place {
	for i := range places {
		if p.options.Engine == grant.Containerd && places[i].main == p.mainFile() {
			return &places[i]
		}
	}
	return nil
}

// unit is that of its units which is active, or the first one; "" where none need be restarted.
func (place *place) unit() string {
	for _, unit := range place.units {
		if _, err := os.Lstat("/run/systemd/units/invocation:" + unit); err == nil {
			return unit
		}
	}
	return strings.Join(place.units[:min(1, len(place.units))], "")
}

// findMain is the engine's main file: as told, as it was configured before, a distribution's, or "" for where the engine looks.
func (p *Plan) findMain(r record) (string, error) {
	switch {
	case p.options.File != "":
		return p.options.File, nil
	case r.Main != "":
		return r.Main, nil
	case p.options.Engine != grant.Containerd:
		return "", nil
	}
	var names, mains []string
	for _, place := range places {
		if p.system.exists(place.main) {
			names, mains = append(names, place.name), append(mains, place.main)
		}
	}
	if len(mains) > 1 {
		return mains[0], fmt.Errorf("cannot tell which containerd is meant: %s are both here; name its file by --file: %s", strings.Join(names, " and "), strings.Join(mains, ", "))
	}
	return strings.Join(mains, ""), nil
}

// File is the engine's main configuration file, as configure finds it; "" for where the engine looks.
func File(o Options, stateDir string) (string, error) {
	p := &Plan{options: o, system: system{root: o.Root}}
	p.Policy.StateDir = stateDir
	r, _, err := p.record()
	if err != nil {
		return "", err
	}
	return p.findMain(r)
}

// rancherTemplate writes into the template from which k3s and RKE2 make a main file that imports nothing (releases before
// the directory config-v3.toml.d). The default handler is a setting of theirs, because a template can add tables to theirs and
// cannot change one.
func (p *Plan) rancherTemplate(name string, c *containerdConfig, was present) error {
	path := p.rancherTemplateFile(c)
	_, now, err := p.load(path)
	if err != nil {
		return err
	}
	text := string(now.data)
	if text == "" {
		text = "{{ template \"base\" . }}\n"
	}
	d, err := parseTOML(nil)
	set := setter{d, err}
	p.setContainerdHandler(&set, []string{"plugins", c.plugin, "containerd", "runtimes", Handler}, was, nil)
	if set.err != nil {
		return fmt.Errorf("cannot edit %s:%w", path, set.err)
	}
	before, rest, found := strings.Cut(text, blockBegin)
	_, after, ends := strings.Cut(rest, blockEnd)
	if found != ends {
		return fmt.Errorf("cannot edit %s: the lines %q and %q must both be there, or none", path, strings.TrimSpace(blockBegin), strings.TrimSpace(blockEnd))
	}
	if !found && !strings.HasSuffix(text, "\n") {
		before += "\n"
	}
	if err := p.change(path, []byte(before+blockBegin+string(d.bytes())+blockEnd+after)); err != nil {
		return err
	}
	if on, found := lookup(was.tree, []string{"enable_cdi"}); c.version < 3 && (!found || on == false) {
		p.note("CDI stays off: enable_cdi stands in a table of %s's own template", name)
	}
	if !p.options.AsDefault {
		return nil
	}
	return p.change("/etc/rancher/"+name+"/config.yaml.d/"+dropIn+".yaml", []byte("# Written by `gpuledger configure containerd`; `--undo` takes it away.\ndefault-runtime: "+Handler+"\n"))
}

const (
	blockBegin = "# gpuledger begins: written by `gpuledger configure containerd`\n"
	blockEnd   = "# gpuledger ends\n"
)

// rancherTemplateFile is the template that is there, the one for version 3 first, or the one that the present version needs.
func (p *Plan) rancherTemplateFile(c *containerdConfig) string {
	dir := filepath.Dir(c.main)
	v3, v2 := filepath.Join(dir, "config-v3.toml.tmpl"), filepath.Join(dir, "config.toml.tmpl")
	if p.system.exists(v3) || c.version >= 3 && !p.system.exists(v2) {
		return v3
	}
	return v2
}

// microk8sTemplate edits the template, which is TOML with ${NAMES} in its strings.
func (p *Plan) microk8sTemplate(c *containerdConfig, was present) error {
	path := microk8s + "/containerd-template.toml"
	d, err := p.loadTOML(path)
	if err != nil {
		return err
	}
	c.files[0] = containerdFile{path, d}
	if err := p.setContainerd(c, c.files[0], was); err != nil {
		return fmt.Errorf("cannot edit %s:%w", path, err)
	}
	if err := c.verify(p, c.files[0]); err != nil {
		return err
	}
	return p.change(path, d.bytes())
}
