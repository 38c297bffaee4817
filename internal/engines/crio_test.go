package engines

import (
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
