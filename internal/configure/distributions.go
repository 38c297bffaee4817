package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// distribution is a distribution of Kubernetes with a containerd of its own. It writes containerd's
// main file anew at each start, so configure never edits that file.
type distribution struct {
	name string
	main string // the main file that containerd reads
	// a directory whose files the distribution imports by itself, whatever the main file imports
	dropIns string
	units   []string // the services of systemd; none if the distribution watches the directory
	runc    string   // its own runc, in a directory that nothing else searches
	// template edits the file from which the distribution makes the main file. It is set if the
	// main file imports no directory.
	template func(*Plan, *containerdConfig, defaultHandler) error
}

// distributions are known from their sources: k3s pkg/agent/templates and pkg/agent/containerd,
// whose code RKE2 runs; k0s pkg/component/worker/containerd; microk8s
// microk8s-resources/wrappers/run-containerd-with-args.
var distributions = []distribution{
	rancher("k3s", "data/current/bin/runc", "k3s.service", "k3s-agent.service"),
	rancher("rke2", "bin/runc", "rke2-server.service", "rke2-agent.service"),
	{name: "k0s", main: "/etc/k0s/containerd.toml", dropIns: "/etc/k0s/containerd.d",
		runc: "/var/lib/k0s/bin/runc"},
	{name: "MicroK8s", main: microk8s + "/containerd.toml",
		units: []string{"snap.microk8s.daemon-containerd.service"},
		runc:  "/snap/microk8s/current/bin/runc", template: (*Plan).microk8sTemplate},
}

const microk8s = "/var/snap/microk8s/current/args"

func rancher(name, runc string, units ...string) distribution {
	dir := "/var/lib/rancher/" + name
	return distribution{name: name, main: dir + "/agent/etc/containerd/config.toml", units: units,
		runc: filepath.Join(dir, runc),
		template: func(p *Plan, c *containerdConfig, was defaultHandler) error {
			return p.rancherTemplate(name, c, was)
		}}
}

// distribution is the one whose containerd is configured; nil for a containerd of the node itself.
func (p *Plan) distribution() *distribution {
	for i := range distributions {
		if p.options.Engine == grant.Containerd && distributions[i].main == p.mainFile() {
			return &distributions[i]
		}
	}
	return nil
}

// unit is the first active one of its units, else the first one. It is "" if none needs a restart.
func (distribution *distribution) unit() string {
	for _, unit := range distribution.units {
		if _, err := os.Lstat("/run/systemd/units/invocation:" + unit); err == nil {
			return unit
		}
	}
	return strings.Join(distribution.units[:min(1, len(distribution.units))], "")
}

// findMain is the engine's main file. It is the one of the options, of the record, or of the only
// distribution that is installed. It is "" for the engine's usual file.
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
	for _, distribution := range distributions {
		if p.system.Exists(distribution.main) {
			names, mains = append(names, distribution.name), append(mains, distribution.main)
		}
	}
	if len(mains) > 1 {
		return mains[0],
			fmt.Errorf("cannot tell which containerd is meant: %s are both here; name its file by --file: %s",
				strings.Join(names, " and "), strings.Join(mains, ", "))
	}
	return strings.Join(mains, ""), nil
}

// File is the engine's main configuration file, as configure finds it; "" for the usual one.
func File(o Options, stateDir string) (string, error) {
	p := &Plan{options: o, system: filetree.System{Root: o.Root}}
	p.Policy.StateDir = stateDir
	r, _, err := p.record()
	if err != nil {
		return "", err
	}
	return p.findMain(r)
}

// rancherTemplate edits the template from which k3s and RKE2 make a main file that imports nothing.
// These are releases before the directory config-v3.toml.d. A template can add tables to theirs but
// cannot change one, so the default handler is a setting of the distribution.
func (p *Plan) rancherTemplate(name string, c *containerdConfig, was defaultHandler) error {
	path := p.rancherTemplateFile(c)
	_, now, err := p.system.Load(path)
	if err != nil {
		return err
	}
	text := string(now.Data)
	if text == "" {
		text = "{{ template \"base\" . }}\n"
	}
	d, err := configfile.ParseTOML(nil)
	set := configfile.Setter{Document: d, Err: err}
	p.setContainerdHandler(&set, []string{"plugins", c.plugin, "containerd", "runtimes", Handler}, was, nil)
	if set.Err != nil {
		return fmt.Errorf("cannot edit %s:%w", path, set.Err)
	}
	before, rest, found := strings.Cut(text, blockBegin)
	_, after, ends := strings.Cut(rest, blockEnd)
	if found != ends {
		return fmt.Errorf("cannot edit %s: the lines %q and %q must both be there, or none", path,
			strings.TrimSpace(blockBegin), strings.TrimSpace(blockEnd))
	}
	if !found && !strings.HasSuffix(text, "\n") {
		before += "\n"
	}
	if err := p.change(path, []byte(before+blockBegin+string(d.Bytes())+blockEnd+after)); err != nil {
		return err
	}
	if on, found := configfile.Lookup(was.tree, []string{"enable_cdi"}); c.version < 3 && (!found || on == false) {
		p.note("CDI stays off: enable_cdi stands in a table of %s's own template", name)
	}
	if !p.options.AsDefault {
		return nil
	}
	return p.change("/etc/rancher/"+name+"/config.yaml.d/"+dropIn+".yaml",
		[]byte("# Written by `gpuledger configure containerd`; `--undo` takes it away.\ndefault-runtime: "+
			Handler+"\n"))
}

const (
	blockBegin = "# gpuledger begins: written by `gpuledger configure containerd`\n"
	blockEnd   = "# gpuledger ends\n"
)

// rancherTemplateFile is the template that exists, the one for version 3 first. If there is none,
// it is the one for the main file's version.
func (p *Plan) rancherTemplateFile(c *containerdConfig) string {
	dir := filepath.Dir(c.main)
	v3, v2 := filepath.Join(dir, "config-v3.toml.tmpl"), filepath.Join(dir, "config.toml.tmpl")
	if p.system.Exists(v3) || c.version >= 3 && !p.system.Exists(v2) {
		return v3
	}
	return v2
}

// microk8sTemplate edits the template, which is TOML with ${NAMES} in its strings.
func (p *Plan) microk8sTemplate(c *containerdConfig, was defaultHandler) error {
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
	return p.change(path, d.Bytes())
}
