package configure

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/filetree"
)

// TestCRIOMustReadOurFile: a running CRI-O can name another directory, or none where one beside its
// main file is meant.
func TestCRIOMustReadOurFile(t *testing.T) {
	for _, row := range []struct{ args, ours, wants string }{
		{"", "/opt/crio.conf.d/zz", ""},
		{"crio", "/etc/crio/crio.conf.d/zz", ""},
		{"crio --config /opt/crio.conf", "/etc/crio/crio.conf.d/zz", ""},
		{"crio --config-dir /opt/crio.conf.d/", "/opt/crio.conf.d/zz", ""},
		{"crio -d /opt/crio.conf.d", "/opt/crio.conf.d/zz", ""},
		{"crio --config-dir=/linked", "/etc/crio/crio.conf.d/zz", ""},
		{"crio --config-dir=/srv/d", "/etc/crio/crio.conf.d/zz", "only the drop-in files of /srv/d"},
		{"crio --config=/opt/crio.conf", "/opt/crio.conf.d/zz", "only the drop-in files of /etc/crio/crio.conf.d"},
	} {
		root := newRoot(t, map[string]string{"/etc/crio/crio.conf.d/10": ""})
		if err := os.Symlink("/etc/crio/crio.conf.d", root+"/linked"); err != nil {
			t.Fatal(err)
		}
		err := readsDropIn(filetree.System{Root: root}, strings.Fields(row.args), row.ours)
		if (err == nil) != (row.wants == "") || err != nil && !strings.Contains(err.Error(), row.wants) {
			t.Errorf("%q, %s: got %v, want %q", row.args, row.ours, err, row.wants)
		}
	}
}
