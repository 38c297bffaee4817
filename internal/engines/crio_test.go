package engines

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestCRIOsDropInsForAnotherMainFile: CRI-O reads its usual directory, unless one lies beside the
// main file, which --config-dir then names.
func TestCRIOsDropInsForAnotherMainFile(t *testing.T) {
	root := newSystem(t, map[string]string{"/srv/crio.conf": "", "/opt/crio/crio.conf": "",
		"/opt/crio/crio.conf.d/10.conf": "", "/old/crio.conf": "",
		"/old/crio.conf.d/zz-gpuledger.conf": ""})
	for file, want := range map[string]string{"": "/etc/crio/crio.conf.d/zz-gpuledger.conf",
		"/old/crio.conf":      "/etc/crio/crio.conf.d/zz-gpuledger.conf",
		"/srv/crio.conf":      "/etc/crio/crio.conf.d/zz-gpuledger.conf",
		"/opt/crio/crio.conf": "/opt/crio/crio.conf.d/zz-gpuledger.conf"} {
		in := Installation{Engine: grant.CRIO, System: filetree.System{Root: root}, File: file}
		c, err := in.Read()
		if err != nil || c.(CRIO).Ours != want || c.Paths()[0] != in.MainFile() {
			t.Errorf("%q: %q (%v), want %s", file, c.Paths(), err, want)
		}
	}
}

// TestCRIOReadsDirectoriesOfDropIns, in the order of their names: one that is read after
// gpuledger's file overrules it.
func TestCRIOReadsDirectoriesOfDropIns(t *testing.T) {
	const dir, sets = "/etc/crio/crio.conf.d/", "[crio.runtime]\ndefault_runtime = "
	root := newSystem(t, map[string]string{"/etc/crio/crio.conf": "", dir + "zz-gpuledger.conf": "",
		dir + "10/a/x": sets + `"crun"`, dir + "10.conf": sets + `"runc"`, dir + "zzz/x": sets + `"kata"`})
	c, err := Installation{Engine: grant.CRIO, System: filetree.System{Root: root}}.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/etc/crio/crio.conf", dir + "10/a/x", dir + "10.conf", dir + "zz-gpuledger.conf",
		dir + "zzz/x"}
	if !slices.Equal(c.Paths(), want) || c.InForce().Default != "kata" {
		t.Errorf("%q, with the default %q; want %q", c.Paths(), c.InForce().Default, want)
	}
	if other := c.(CRIO).Overruled("crio", "runtime", "default_runtime"); other != dir+"zzz/x" {
		t.Errorf("gpuledger's file is overruled by %q", other)
	}
}

// TestCRIOsHandlersReplaceEarlierOnes: of two tables of one handler the later one alone counts.
func TestCRIOsHandlersReplaceEarlierOnes(t *testing.T) {
	const dir, runc = "/etc/crio/crio.conf.d/", "[crio.runtime.runtimes.runc]\n"
	root := newSystem(t, map[string]string{
		dir + "10": "[crio.runtime]\ndefault_runtime = \"runc\"\n" + runc +
			"allowed_annotations = [\"io.kubernetes.cri-o.Devices\"]\n" +
			"[crio.runtime.runtimes.crun]\nruntime_path = \"/opt/crun\"\n",
		dir + "20": runc + "runtime_path = \"/opt/runc\"\n",
		dir + "30": "[crio.runtime]\nlog_level = \"info\"\n"})
	c, err := Installation{Engine: grant.CRIO, System: filetree.System{Root: root}}.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"runtime_path": "/opt/runc"}
	for range 2 { // reading changes nothing
		if was := c.DefaultHandler(); !reflect.DeepEqual(was.Settings, want) {
			t.Errorf("the handler is %v, want %v", was.Settings, want)
		}
	}
	handlers := map[string]string{"runc": "/opt/runc", "crun": "/opt/crun"}
	if has := c.InForce().Handlers; !maps.Equal(has, handlers) {
		t.Errorf("the handlers are %v", has)
	}
}
