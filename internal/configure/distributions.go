package configure

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// templates edit the file from which a distribution makes containerd's main file, by the
// distribution's name. k0s needs none: its main file imports a directory.
var templates = map[string]func(c *engines.Containerd, w wanted, name string) (fileEdits, error){
	"k3s": rancherTemplate, "rke2": rancherTemplate, "MicroK8s": microK8sTemplate,
}

// rancherTemplate edits the template from which k3s and RKE2 make a main file that imports nothing.
// These are releases before the directory config-v3.toml.d. A template can add tables to theirs but
// cannot change one, so the default handler is a setting of the distribution.
func rancherTemplate(c *engines.Containerd, w wanted, name string) (fileEdits, error) {
	var e fileEdits
	path := rancherTemplateFile(c, w.in.System)
	_, now, err := w.in.System.Load(path)
	if err != nil {
		return e, err
	}
	text := string(now.Data)
	if text == "" {
		text = "{{ template \"base\" . }}\n"
	}
	d, err := configfile.ParseTOML(nil)
	set := configfile.Setter{Document: d, Err: err}
	setContainerdHandler(&set, &e, w,
		[]string{"plugins", c.Plugin, "containerd", "runtimes", engines.Handler}, nil)
	if set.Err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", path, set.Err)
	}
	before, rest, found := strings.Cut(text, blockBegin)
	_, after, ends := strings.Cut(rest, blockEnd)
	if found != ends {
		return e, fmt.Errorf("cannot edit %s: the lines %q and %q must both be there, or none", path,
			strings.TrimSpace(blockBegin), strings.TrimSpace(blockEnd))
	}
	if !found && !strings.HasSuffix(text, "\n") {
		before += "\n"
	}
	e.write(path, []byte(before+blockBegin+string(d.Bytes())+blockEnd+after))
	on, found := configfile.Lookup(w.was.Tree, []string{"enable_cdi"})
	if c.Version < 3 && (!found || on == false) {
		e.note("CDI stays off: enable_cdi stands in a table of %s's own template", name)
	}
	if !w.asDefault {
		return e, nil
	}
	e.write("/etc/rancher/"+name+"/config.yaml.d/"+engines.DropIn+".yaml",
		[]byte("# Written by `gpuledger configure containerd`; `--undo` takes it away.\ndefault-runtime: "+
			engines.Handler+"\n"))
	return e, nil
}

const (
	blockBegin = "# gpuledger begins: written by `gpuledger configure containerd`\n"
	blockEnd   = "# gpuledger ends\n"
)

// rancherTemplateFile is the template that exists, the one for version 3 first. If there is none,
// it is the one for the main file's version.
func rancherTemplateFile(c *engines.Containerd, in filetree.System) string {
	dir := filepath.Dir(c.Main)
	v3, v2 := filepath.Join(dir, "config-v3.toml.tmpl"), filepath.Join(dir, "config.toml.tmpl")
	if in.Exists(v3) || c.Version >= 3 && !in.Exists(v2) {
		return v3
	}
	return v2
}

// microK8sTemplate edits the template, which is TOML with ${NAMES} in its strings.
func microK8sTemplate(c *engines.Containerd, w wanted, _ string) (fileEdits, error) {
	var e fileEdits
	path := filepath.Join(filepath.Dir(c.Main), "containerd-template.toml")
	d, err := engines.ReadTOML(w.in.System, path)
	if err != nil {
		return e, err
	}
	c.Files[0] = engines.ContainerdFile{Path: path, TOML: d}
	if err := setContainerd(&e, c, w, c.Files[0]); err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", path, err)
	}
	if err := verifyContainerd(c, w, c.Files[0]); err != nil {
		return e, err
	}
	e.write(path, d.Bytes())
	return e, nil
}
