package engines

import (
	"os"
	"testing"
)

// TestPodmanFollowsNoLinkToItsDropIns, but links above that directory, and in it.
func TestPodmanFollowsNoLinkToItsDropIns(t *testing.T) {
	const conf, text = "/site/containers/containers.conf.d/zz-gpuledger.conf", "[engine]\nruntime = " +
		"\"gpuledger\"\n[engine.runtimes]\ngpuledger = [\"/usr/bin/gpuledger-runtime.podman\"]\n"
	for _, row := range []struct{ link, target, byDefault string }{
		{"/etc/containers", "/site/containers", "gpuledger"},
		{"/etc/containers/containers.conf.d", "/site/containers/containers.conf.d", ""},
		{"/etc/containers/containers.conf.d/10.conf", conf, "gpuledger"},
	} {
		root := newSystem(t, map[string]string{conf: text, "/etc/here": "", "/usr/bin/podman": ""})
		for _, dir := range []string{"/etc/containers", "/etc/containers/containers.conf.d"} {
			if len(dir) < len(row.link) {
				if err := os.Mkdir(root+dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := os.Symlink(row.target, root+row.link); err != nil {
			t.Fatal(err)
		}
		found := Find(root)
		if len(found) != 1 || found[0].Default != row.byDefault {
			t.Errorf("%s is a link: %+v, want the default %q", row.link, found, row.byDefault)
		}
	}
}
