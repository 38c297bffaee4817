package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/test/rig"
)

// The tests of this file run NVIDIA's own nvidia-ctk next to `gpuledger configure`, in every order,
// and compare the configuration that each containerd then has in force.

// step is one command of a story.
type step string

const (
	toolkit        step = "nvidia-ctk"            // adds the handler nvidia
	toolkitDefault step = "nvidia-ctk as default" // and makes it the default
	// with all that the engine reports, gpuledger's own part included
	toolkitDump step = "nvidia-ctk from the engine's dump"
	toolkitBoth step = "nvidia-ctk from the dump as default" //
	toolkitMain step = "nvidia-ctk into the main file"       // as releases before drop-in files do
	configured  step = "gpuledger configure --as-default"    //
	undone      step = "gpuledger configure --undo"          //
	changed     step = "the administrator changes something" //
)

var orders = [][]step{
	{configured, undone},
	{toolkit, configured, undone},
	{toolkitDefault, configured, undone},
	{configured, toolkit, undone},
	{configured, toolkitDefault, undone},
	{configured, toolkitDefault, configured, undone},
	{toolkitDefault, configured, toolkitDefault, configured, changed, configured, undone},
	{configured, toolkitDump, undone},
	{toolkitDefault, configured, toolkitBoth, undone},
	{configured, toolkitMain, undone},
	{toolkitMain, configured, toolkit, undone, configured, undone},
	{configured, toolkitDump, configured, toolkitDefault, undone},
}

// containerds are the versions on this machine: Debian's, and those that test/engines/build.sh has
// built.
func containerds(t *testing.T) map[string]string {
	t.Helper()
	rig.Need(t, "containerd")
	debian, _ := exec.LookPath("containerd")
	found := map[string]string{"1.6": debian}
	for _, name := range []string{"1.7", "2"} {
		path, _ := filepath.Abs("../.cache/engines/containerd-" + name + "/containerd")
		if _, err := os.Stat(path); err == nil {
			found[name] = path
		} else {
			t.Logf("containerd %s is not built: nothing is shown about it (test/engines/build.sh "+
				"containerd-%s)", name, name)
		}
	}
	if found["1.7"] != "" {
		delete(found, "1.6") // which merges files as 1.7 does
	}
	return found
}

// mains are main files of containerd at the start, in a directory DIR.
var mains = map[string]string{
	"plain": `version = 2
# the administrator's
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pause:1" # why
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
`,
	"imports": `version = 2
imports = ["DIR/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
`,
	"version 3": `version = 3
imports = ["DIR/conf.d/*.toml"]
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "pause:1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = true
`,
}

// TestConfigureBesideNVIDIA: before, after and between. After every step the engine's default
// handler exists, with a program that exists. While gpuledger is configured it is the default.
// After the undo the configuration in force is what the other steps alone give.
func TestConfigureBesideNVIDIA(t *testing.T) {
	rig.More(t)
	ctk := rig.Toolkit(t, "nvidia-ctk")
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	program(t, n)
	for version, containerd := range containerds(t) {
		for name, main := range mains {
			if name == "version 3" && version != "2" {
				continue
			}
			for i, order := range orders {
				t.Run(fmt.Sprintf("%s/%s/%d", version, name, i), func(t *testing.T) {
					with, without := newEngineFiles(t, n, ctk, containerd, main),
						newEngineFiles(t, n, ctk, containerd, main)
					for i, s := range order {
						with.do(s)
						if s != configured && s != undone {
							without.do(s)
						}
						is := with.inForce(fmt.Sprint(order[:i+1]))
						if guarded(name, order[:i+1]) && is.Default != "gpuledger" {
							t.Fatalf("after %v the default handler is %q: unguarded", order[:i+1], is.Default)
						}
						// of a main file with imports, everything else is as without gpuledger
						if s == configured && name != "plain" {
							is.withoutGpuledger().sameAs(t, without.inForce("the others' steps"), true,
								fmt.Sprint(order[:i+1], ", but for ours,"))
						}
						if s == undone {
							want := without.inForce(fmt.Sprint("only the others of ", order))
							is.sameAs(t, want, slices.Contains(order[:i], toolkitDump) ||
								slices.Contains(order[:i], toolkitBoth), fmt.Sprint(order[:i+1]))
						}
					}
				})
			}
		}
	}
}

// guarded reports whether gpuledger's handler must be the default after some steps. A main file
// without imports stands alone. If NVIDIA's toolkit then makes it import a file, that file is read
// after it, until configure runs again.
func guarded(main string, steps []step) bool {
	last := slices.Index(steps, configured)
	for i, s := range steps {
		switch s {
		case configured:
			last = i
		case undone:
			last = -1
		}
	}
	return last == len(steps)-1 || last >= 0 && main != "plain"
}

// engineFiles are the configuration of a containerd in a directory of its own.
type engineFiles struct {
	t                    *testing.T
	n                    *rig.Node
	dir, ctk, containerd string
}

func newEngineFiles(t *testing.T, n *rig.Node, ctk, containerd, main string) *engineFiles {
	e := &engineFiles{t: t, n: n, ctk: ctk, containerd: containerd, dir: t.TempDir()}
	if err := os.Mkdir(e.dir+"/conf.d", 0o755); err != nil {
		t.Fatal(err)
	}
	e.write("nvidia-container-runtime", "#!/bin/sh\n", 0o755)
	e.write("config.toml", strings.ReplaceAll(main, "DIR", e.dir), 0o644)
	return e
}

func (e *engineFiles) write(name, text string, mode os.FileMode) string {
	e.t.Helper()
	path := filepath.Join(e.dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		e.t.Fatal(err)
	}
	return path
}

func (e *engineFiles) do(s step) {
	e.t.Helper()
	args := []string{"runtime", "configure", "--runtime=containerd", "--config=" + e.dir + "/config.toml",
		"--nvidia-runtime-path=" + e.dir + "/nvidia-container-runtime"}
	dropIn := "--drop-in-config=" + e.dir + "/conf.d/99-nvidia.toml"
	configure := []string{"configure", "containerd", "--file", e.dir + "/config.toml", "--runtime",
		e.n.Dir + "/gpuledger-runtime"}
	switch s {
	case toolkit:
		e.run(e.ctk, append(args, dropIn)...)
	case toolkitDefault:
		e.run(e.ctk, append(args, dropIn, "--set-as-default")...)
	case toolkitDump:
		e.run(e.ctk, append(args, dropIn, "--config-source=command", "--executable-path="+e.dumper())...)
	case toolkitBoth:
		e.run(e.ctk, append(args, dropIn, "--config-source=command", "--executable-path="+e.dumper(),
			"--set-as-default")...)
	case toolkitMain:
		e.run(e.ctk, append(args, "--drop-in-config=")...)
	case configured:
		e.n.Must(append(configure, "--as-default")...)
	case undone:
		e.n.Must(append(configure, "--undo")...)
	case changed:
		e.write("conf.d/50-site.toml", "version = 2\n[debug]\nlevel = \"debug\"\n", 0o644)
	}
}

func (e *engineFiles) run(program string, args ...string) rig.Result {
	e.t.Helper()
	r := rig.Run(exec.Command(program, args...))
	if r.Code != 0 {
		e.t.Fatalf("%s %s: %+v\n%s", program, strings.Join(args, " "), r, e.all())
	}
	return r
}

// dumper is containerd with the file that nvidia-ctk does not pass to it.
func (e *engineFiles) dumper() string {
	return e.write("dumper", fmt.Sprintf("#!/bin/sh\nexec %s --config %s/config.toml \"$@\"\n",
		e.containerd, e.dir), 0o755)
}

func (e *engineFiles) all() string {
	var b strings.Builder
	files, _ := filepath.Glob(e.dir + "/*.toml")
	more, _ := filepath.Glob(e.dir + "/*/*.toml")
	for _, file := range append(files, more...) {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(&b, "--- %s\n%s", file, text)
	}
	return b.String()
}

// inForce is what a containerd's CRI plugin does.
type inForce struct {
	Default string
	Section map[string]any
	files   string
}

// inForce reads the configuration from containerd. The default handler must be one that can start a
// container.
func (e *engineFiles) inForce(when string) inForce {
	e.t.Helper()
	config := e.run(e.containerd, "--config", e.dir+"/config.toml", "config", "dump").Stdout
	var dump struct{ Plugins map[string]map[string]any }
	if err := toml.Unmarshal([]byte(config), &dump); err != nil {
		e.t.Fatal(err)
	}
	section := dump.Plugins["io.containerd.cri.v1.runtime"]
	if section == nil {
		section = dump.Plugins["io.containerd.grpc.v1.cri"]
	}
	containerd, _ := section["containerd"].(map[string]any)
	is := inForce{Section: section, files: strings.ReplaceAll(e.all(), e.dir, "DIR")}
	is.Default, _ = containerd["default_runtime_name"].(string)
	runtimes, _ := containerd["runtimes"].(map[string]any)
	handler, _ := runtimes[is.Default].(map[string]any)
	options, _ := handler["options"].(map[string]any)
	binary, _ := options["BinaryName"].(string)
	if _, err := os.Stat(binary); handler == nil || binary != "" && err != nil {
		e.t.Fatalf("after %s no container starts: the default handler is %q with the program %q\n%s", when,
			is.Default, binary, e.all())
	}
	is.Section = e.anywhere(section)
	return is
}

// anywhere is a section whose paths are those of no directory.
func (e *engineFiles) anywhere(section map[string]any) map[string]any {
	text, err := json.Marshal(section)
	if err != nil {
		e.t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte(e.dir), []byte("DIR")), &out); err != nil {
		e.t.Fatal(err)
	}
	return out
}

// withoutGpuledger is what would be in force without gpuledger's handler and the default.
func (is inForce) withoutGpuledger() inForce {
	containerd, _ := is.Section["containerd"].(map[string]any)
	runtimes, _ := containerd["runtimes"].(map[string]any)
	delete(runtimes, "gpuledger")
	is.Default, is.files = "", ""
	return is
}

// sameAs compares everything except what nvidia-ctk has copied from gpuledger's handler to its own,
// the annotations that it passes on, and whether CDI is on, if it copied all that the engine
// reports.
func (is inForce) sameAs(t *testing.T, want inForce, dumped bool, when string) {
	t.Helper()
	if is.Default != want.Default && is.Default != "" {
		t.Errorf("after %s the default handler is %q, want %q\n%s", when, is.Default, want.Default, is.files)
	}
	if strings.Contains(is.files, "gpuledger-runtime") {
		t.Errorf("after %s the files still name gpuledger:\n%s", when, is.files)
	}
	for _, section := range []map[string]any{is.Section, want.Section} {
		containerd, _ := section["containerd"].(map[string]any)
		runtimes, _ := containerd["runtimes"].(map[string]any)
		nvidia, _ := runtimes["nvidia"].(map[string]any)
		delete(nvidia, "pod_annotations")
		delete(nvidia, "container_annotations")
		if dumped {
			delete(section, "enable_cdi")
		}
		delete(containerd, "default_runtime_name") // compared above
		withoutDefaults(section)
	}
	if want.Section != nil && !reflect.DeepEqual(is.Section, want.Section) {
		got, _ := json.MarshalIndent(is.Section, "", " ")
		wanted, _ := json.MarshalIndent(want.Section, "", " ")
		t.Errorf("after %s in force is\n%s\nwant\n%s\n%s", when, got, wanted, is.files)
	}
}

// withoutDefaults removes values without a meaning: some dumps of containerd have them, and some do
// not.
func withoutDefaults(tree map[string]any) {
	for name, v := range tree {
		if table, isTable := v.(map[string]any); isTable {
			withoutDefaults(table)
		}
		switch {
		case v == "", v == false, v == 0.0, v == nil, v == "podsandbox", reflect.DeepEqual(v, []any{}),
			reflect.DeepEqual(v, map[string]any{}):
			delete(tree, name)
		}
	}
}

// TestConfigureOtherEnginesBesideNVIDIA: Docker has one file, which nvidia-ctk rewrites; CRI-O has
// drop-in files, of which gpuledger's is read last.
func TestConfigureOtherEnginesBesideNVIDIA(t *testing.T) {
	ctk := rig.Toolkit(t, "nvidia-ctk")
	n := rig.NewNode(t, rig.Setup{Engine: "docker"})
	program(t, n)
	nvidia := n.Write("nvidia-container-runtime", "")
	for engine, main := range map[string]struct{ file, text, byDefault string }{
		"docker": {"daemon.json", "{\n  \"log-driver\": \"journald\",\n  \"default-runtime\": \"runc\"\n}\n", `"default-runtime": "gpuledger"`},
		"crio":   {"crio.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_root = \"/run/crun\"\n", `default_runtime = "gpuledger"`},
	} {
		for i, order := range [][]step{
			{configured, undone}, {toolkit, configured, undone}, {toolkitDefault, configured, undone},
			{configured, toolkit, undone},
			{configured, toolkitDefault, configured, undone},
			{toolkitDefault, configured, toolkit, configured, undone, configured, undone},
		} {
			t.Run(fmt.Sprintf("%s/%d", engine, i), func(t *testing.T) {
				with, without := t.TempDir(), t.TempDir()
				do := func(dir string, s step) {
					t.Helper()
					file := filepath.Join(dir, main.file)
					args := []string{"runtime", "configure", "--runtime=" + engine, "--config=" + file,
						"--nvidia-runtime-path=" + nvidia}
					if engine == "crio" {
						args = append(args, "--drop-in-config="+dir+"/crio.conf.d/99-nvidia.conf")
					}
					configure := []string{"configure", engine, "--file", file, "--runtime",
						n.Dir + "/gpuledger-runtime"}
					switch s {
					case configured:
						n.Must(append(configure, "--as-default")...)
						if all := tree(t, dir); !strings.Contains(all, main.byDefault) {
							t.Fatalf("after %v, %s: unguarded\n%s", order, s, all)
						}
					case undone:
						n.Must(append(configure, "--undo")...)
					case toolkitDefault:
						args = append(args, "--set-as-default")
						fallthrough
					case toolkit:
						if r := rig.Run(exec.Command(ctk, args...)); r.Code != 0 {
							t.Fatalf("%s: %+v", s, r)
						}
					}
				}
				for _, dir := range []string{with, without} {
					err := os.WriteFile(filepath.Join(dir, main.file), []byte(main.text), 0o644)
					if err == nil && engine == "crio" { // without a file of others it would not be CRI-O's
						err = errors.Join(os.Mkdir(dir+"/crio.conf.d", 0o755),
							os.WriteFile(dir+"/crio.conf.d/00-theirs.conf", nil, 0o644))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				for _, s := range order {
					do(with, s)
					if s != configured && s != undone {
						do(without, s)
					}
				}
				is, wanted := engineTree(t, with, main.file), engineTree(t, without, main.file)
				if !reflect.DeepEqual(is, wanted) {
					t.Errorf("after %v the files are\n%v\nwant\n%v", order, is, wanted)
				}
			})
		}
	}
}

// engineTree maps the names of an engine's files to their contents.
func engineTree(t *testing.T, dir, main string) map[string]any {
	t.Helper()
	all := map[string]any{}
	more, _ := filepath.Glob(dir + "/*.d/*")
	for _, path := range append(more, filepath.Join(dir, main)) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content := map[string]any{}
		if strings.HasSuffix(path, ".json") {
			err = json.Unmarshal(text, &content)
		} else {
			err = toml.Unmarshal(text, &content)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(path, dir)] = content
	}
	return all
}
