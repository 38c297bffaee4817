package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestPackagedConfigurationSetsNothing: `gpuledger configure` must find every choice open, and an
// administrator who uncomments a line must find its default. An older version refuses an empty
// table, too, if it does not know it, so only the tables of the first release are there.
func TestPackagedConfigurationSetsNothing(t *testing.T) {
	rig.Need(t, "sed")
	packaged, err := exec.Command("sed", "-Ef", "../packaging/config.sed", "../configs/config.toml").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(packaged)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '[' {
			t.Errorf("it sets %s", line)
		}
		if table, _, is := strings.Cut(line, "]"); is && line[0] == '[' && !slices.Contains([]string{
			"[runtime", "[inventory", "[policy", "[annotations", "[enforcement", "[cdi", "[daemon", "[audit"},
			table) {
			t.Errorf("it has the table %s]", table)
		}
	}
	if p, err := policy.Parse(packaged); err != nil || !reflect.DeepEqual(p, policy.Default()) {
		t.Errorf("it is not the default policy: %+v (%v)", p, err)
	}
}

// TestUnitsAreUnderstood: systemd's own parser reports nothing about the units.
func TestUnitsAreUnderstood(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("misses systemd-analyze, to read the units; `make test-packages` does it")
	}
	dir := t.TempDir()
	units, err := filepath.Glob("../packaging/systemd/*")
	if err != nil || len(units) == 0 {
		t.Fatal("there are no units", err)
	}
	args := []string{"verify", "--man=no"}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.Base(unit))
		installed := strings.NewReplacer("/usr/bin/gpuledgerd ", "/bin/true ", "/usr/bin/gpuledger ",
			"/bin/true ").Replace(string(text))
		if err := os.WriteFile(name, []byte(installed), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, name)
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil || strings.Contains(string(out), "gpuledger") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAPathUnitWatchesOnePath: of two paths, systemd drops an event of one while it looks anew for
// the other, which may be missing.
func TestAPathUnitWatchesOnePath(t *testing.T) {
	units, err := filepath.Glob("../packaging/systemd/*.path")
	if err != nil || len(units) == 0 {
		t.Fatal("there are no path units", err)
	}
	for _, unit := range units {
		if n := strings.Count(read(t, unit), "\nPathChanged="); n != 1 {
			t.Errorf("%s watches %d paths", unit, n)
		}
	}
}

// TestRemovalWaits runs the package's script in a system of its own: while an engine names
// gpuledger's programs, or runs a container through them, the package stays.
func TestRemovalWaits(t *testing.T) {
	const conmon, bundle = "conmon\x00-r\x00/usr/bin/gpuledger-runtime.podman\x00",
		"/run/containerd/io.containerd.runtime.v2.task/k8s.io/c/runtime"
	conmonIn := func(namespace string) map[string]string {
		return map[string]string{"/proc/77/comm": "conmon\n", "/proc/77/cmdline": conmon,
			"/proc/77/ns/pid": namespace, "/proc/self/ns/pid": "the node's"}
	}
	for name, row := range map[string]struct {
		files  map[string]string
		prints string // "": it is removed
	}{
		"nothing":                    {nil, ""},
		"a record":                   {map[string]string{"/var/lib/gpuledger/configure/docker/record.json": "{}"}, "what `gpuledger configure docker` changed is not undone"},
		"a record elsewhere":         {map[string]string{"/s/configure/crio/record.json": "{}", "/etc/gpuledger/config.toml": "state_dir = \"/s\"\n"}, "what `gpuledger configure crio` changed is not undone"},
		"containerd":                 {map[string]string{"/etc/containerd/config.toml": "version = 2\nBinaryName = \"/usr/bin/gpuledger-runtime.containerd\"\n"}, "/etc/containerd/config.toml names"},
		"a file that it imports":     {map[string]string{"/etc/containerd/conf.d/a.toml": "BinaryName = \"/usr/bin/gpuledger-runtime.containerd\"\n"}, "/etc/containerd/conf.d/a.toml names"},
		"CRI-O":                      {map[string]string{"/etc/crio/crio.conf.d/zz-gpuledger.conf": "runtime_path = \"/usr/bin/gpuledger-runtime.crio\"\n"}, "zz-gpuledger.conf names"},
		"Docker":                     {map[string]string{"/etc/docker/daemon.json": `{"runtimes": {"gpuledger": {"path": "/usr/bin/gpuledger-runtime.docker"}}}`}, "daemon.json names"},
		"Podman":                     {map[string]string{"/etc/containers/containers.conf": "gpuledger = [\"/usr/bin/gpuledger-runtime.podman\"]\n"}, "containers.conf names"},
		"a hook":                     {map[string]string{"/etc/containers/oci/hooks.d/g.json": `{"hook": {"path": "/usr/bin/gpuledger-hook"}}`}, "g.json names"},
		"a comment":                  {map[string]string{"/etc/containerd/config.toml": "# /usr/bin/gpuledger-runtime was here\n"}, ""},
		"a container of containerd":  {map[string]string{bundle: "/usr/bin/gpuledger-runtime.containerd"}, "1 containers run"},
		"a container of k3s":         {map[string]string{"/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/c/runtime": "/usr/bin/gpuledger-runtime.containerd"}, "1 containers run"},
		"a container of Docker's":    {map[string]string{"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/c/runtime": "/usr/bin/gpuledger-runtime.docker"}, "1 containers run"},
		"one of another runtime":     {map[string]string{bundle: "/usr/bin/runc"}, ""},
		"a container under a conmon": {map[string]string{"/proc/77/comm": "conmon\n", "/proc/77/cmdline": conmon}, "1 containers run"},
		"CRI-O's own name for it":    {map[string]string{"/proc/77/comm": "crio-conmon\n", "/proc/77/cmdline": conmon}, "1 containers run"},
		"a name in a container":      {conmonIn("its own"), ""},
		"a conmon of the node":       {conmonIn("the node's"), "1 containers run"},
		"another program names it":   {map[string]string{"/proc/77/comm": "less\n", "/proc/77/cmdline": "less\x00/usr/bin/gpuledger-runtime\x00"}, ""},
		"made to go on":              {map[string]string{bundle: "/usr/bin/gpuledger-runtime.containerd", "/run/gpuledger/remove-anyway": ""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := rootOfScript(t, "preremove.sh", row.files)
			out, err := runScript(root, "preremove.sh", "remove")
			if row.prints == "" && (err != nil || out != "") {
				t.Errorf("it is not removed: %v\n%s", err, out)
			}
			if row.prints != "" && (err == nil || !strings.Contains(out, row.prints) ||
				!strings.Contains(out, "\nhint: ")) {
				t.Errorf("removed, or not with %q: %v\n%s", row.prints, err, out)
			}
			called, _ := os.ReadFile(root + "/called")
			if closes := string(called) == "close-nodes\n"; closes != (row.prints == "") {
				t.Errorf("gpuledgerd was called with %q", called)
			}
			if _, err := os.Stat(root + "/run/gpuledger/remove-anyway"); err == nil {
				t.Error("the choice for this removal counts for the next one too")
			}
		})
	}
}

// TestPurgeOfARemovedPackage: dpkg runs no preremove for it. What another installation uses stays.
func TestPurgeOfARemovedPackage(t *testing.T) {
	const ledger, limit, daemon = "/var/lib/gpuledger/ledger.json", "/run/gpuledger/limits/c",
		"/etc/systemd/system/multi-user.target.wants/gpuledgerd.service"
	for name, other := range map[string]string{
		"nothing is there":                    "",
		"gpuledger-setup's installation":      "/usr/lib/gpuledger/setup.list",
		"one by hand":                         "/usr/bin/gpuledger",
		"the wrapper stays until the boot":    "/usr/bin/gpuledger-runtime",
		"an engine that was configured since": "/var/lib/gpuledger/configure/crio/record.json",
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{ledger: "{}", limit: "", daemon: ""}
			if other != "" {
				files[other] = ""
			}
			root := rootOfScript(t, "postremove.sh", files)
			out, err := runScript(root, "postremove.sh", "purge")
			says := other != "" && strings.Contains(out, other+" is of another installation") &&
				strings.Contains(out, "\nhint: dpkg has deleted /etc/gpuledger/config.toml")
			if err != nil || says != (other != "") || !says && out != "" {
				t.Errorf("%v\n%s", err, out)
			}
			for _, file := range []string{ledger, limit, daemon} {
				if _, err := os.Stat(root + file); (err == nil) != (other != "") {
					t.Errorf("%s: %v", file, err)
				}
			}
		})
	}
}

// TestPurgeWithMounts: a grant of mode mps is left, and with it what gpuledgerd has mounted for its
// daemon. The purge unmounts it. What it cannot remove does not make it fail.
func TestPurgeWithMounts(t *testing.T) {
	for name, row := range map[string]struct {
		listed, prints string
	}{
		"MPS daemons": {"tmpfs /run/gpuledger/mps/a/pipe tmpfs rw 0 0\n" +
			"tmpfs /run/gpuledger/mps/a/pipe/in tmpfs rw 0 0\n", ""},
		"a mount that is not seen": {"", "hint: what could not be removed is of no use any more"},
	} {
		t.Run(name, func(t *testing.T) {
			root := rootOfScript(t, "postremove.sh", map[string]string{"/run/gpuledger/mps/a/pipe/x": "",
				"/var/lib/gpuledger/ledger.json": "{}", "/proc/self/mounts": row.listed})
			for _, dir := range []string{"/run/gpuledger/mps/a/pipe", "/run/gpuledger/mps/a/pipe/in"} {
				must(t, os.MkdirAll(root+dir, 0o700), unix.Mount("tmpfs", root+dir, "tmpfs", 0, ""))
				t.Cleanup(func() { _ = unix.Unmount(root+dir, unix.MNT_DETACH) })
			}
			out, err := runScript(root, "postremove.sh", "purge")
			if err != nil || row.prints == "" && out != "" || !strings.Contains(out, row.prints) {
				t.Errorf("%v\n%s", err, out)
			}
			if _, err := os.Stat(root + "/run/gpuledger"); os.IsNotExist(err) != (row.prints == "") {
				t.Errorf("/run/gpuledger: %v", err)
			}
		})
	}
}

// TestRemovalAndMPS: the package's removal ends the MPS daemons, unless a container may use one.
func TestRemovalAndMPS(t *testing.T) {
	const header = "ID              STATE     MODE   GPUS    COMPUTE\n"
	for name, row := range map[string]struct {
		grants string
		stops  bool
	}{
		"an entry is damaged": {"damaged", false},
		"no grant":            {"", true},
		"a free one":          {header + "g-nzvczfhfjhkd  free      mps    0:4GiB  25\n", true},
		"one in use":          {header + "g-nzvczfhfjhkd  bound     mps    0:4GiB  25\n", false},
		"one that was ended":  {header + "g-nzvczfhfjhkd  draining  mps    0:4GiB  25\n", false},
		"one of another mode": {header + "g-nzvczfhfjhkd  bound     limit  0:4GiB  -\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			root := rootOfScript(t, "preremove.sh", map[string]string{"/run/systemd/system/here": "",
				"/bin/systemctl": "#!/bin/sh\necho \"$@\" >>/called\n",
				"/bin/gpuledger": "#!/bin/sh\nif [ $1 = check ]; then ! grep -q damaged /grants; " +
					"else cat /grants; fi\n", "/grants": row.grants})
			for _, how := range []string{"upgrade", "remove"} {
				if out, err := runScript(root, "preremove.sh", how); err != nil {
					t.Fatalf("%s: %v\n%s", how, err, out)
				}
				called, _ := os.ReadFile(root + "/called")
				if stopped := strings.Contains(string(called), "disable --now gpuledgerd.service\n"+
					"stop gpuledger-inventory.path\nstop gpuledger-mps@*.service\n"); stopped !=
					(row.stops && how == "remove") {
					t.Errorf("%s calls %q", how, called)
				}
			}
		})
	}
}

// TestDaemonReload: a reload takes the GPUs from containers of NVIDIA's legacy hook, so the scripts
// do it only if systemd does not have the units as they are. A refused removal changes none.
func TestDaemonReload(t *testing.T) {
	const loaded = "LoadState=loaded\nNeedDaemonReload=no\n"
	const changed = "LoadState=loaded\nNeedDaemonReload=yes\n"
	for name, row := range map[string]struct {
		script, call, shown string
		reloads             bool
	}{
		"installed":                {"postinstall.sh", "configure", "", true},
		"a unit was missing":       {"postinstall.sh", "configure", "LoadState=not-found\nNeedDaemonReload=no\n\n" + loaded, true},
		"upgraded":                 {"postinstall.sh", "configure 1.0-1", loaded + "\n" + changed, true},
		"installed again":          {"postinstall.sh", "configure 1.0-1", loaded + "\n" + loaded, false},
		"rpm: upgraded":            {"postinstall.sh", "2", changed, true},
		"a refused removal":        {"postinstall.sh", "abort-remove", changed, false},
		"an upgrade that failed":   {"postinstall.sh", "abort-upgrade 1.1-1", "", false},
		"removed":                  {"postremove.sh", "remove", loaded, true},
		"the old version of a deb": {"postremove.sh", "upgrade 1.1-1", changed, false},
		"rpm: erased":              {"postremove.sh", "0", loaded, true},
		"rpm: the version before":  {"postremove.sh", "1", loaded, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := rootOfScript(t, row.script, map[string]string{"/run/systemd/system/here": "",
				"/bin/systemctl": "#!/bin/sh\necho \"$1\" >>/called\n[ \"$1\" != show ] || cat /shown\n",
				"/bin/udevadm":   "#!/bin/sh\n", "/shown": row.shown})
			if out, err := runScript(root, row.script, strings.Fields(row.call)...); err != nil || out != "" {
				t.Errorf("%v\n%s", err, out)
			}
			called, _ := os.ReadFile(root + "/called")
			if strings.Contains(string(called), "daemon-reload") != row.reloads {
				t.Errorf("it calls systemctl with %q", called)
			}
		})
	}
}

// rootOfScript makes the root of a system that has one of the package's scripts, busybox for its
// tools, and files.
func rootOfScript(t *testing.T, script string, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	put := func(name string, text []byte) {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if strings.HasSuffix(name, "/ns/pid") {
			must(t, os.Symlink(string(text), path))
			return
		}
		must(t, os.WriteFile(path, text, 0o755))
	}
	for from, to := range map[string]string{"/bin/busybox": "/bin/busybox",
		"../packaging/scripts/" + script: "/" + script} {
		text, err := os.ReadFile(from)
		must(t, err)
		put(to, bytes.ReplaceAll(text, []byte(" --one-file-system"), nil)) // busybox's rm does not have it
	}
	for _, applet := range []string{"sh", "sed", "head", "grep", "cat", "rm", "rmdir", "basename", "dirname",
		"readlink", "sort", "umount"} {
		must(t, os.Symlink("busybox", root+"/bin/"+applet))
	}
	put("/dev/null", nil)
	put("/bin/gpuledgerd", []byte("#!/bin/sh\n"+`echo "$@" >>/called`))
	for name, text := range files {
		put(name, []byte(text))
	}
	return root
}

// runScript runs that script in its root, as dpkg does, and returns what it prints.
func runScript(root, script string, args ...string) (string, error) {
	cmd := exec.Command("/bin/sh", append([]string{"/" + script}, args...)...)
	cmd.SysProcAttr, cmd.Dir, cmd.Env = &syscall.SysProcAttr{Chroot: root}, "/", []string{"PATH=/bin"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
