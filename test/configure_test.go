package test

import (
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/test/rig"
)

// engineNames are those of `gpuledger configure`.
var engineNames = []string{"containerd", "crio", "podman", "docker"}

// image makes the tree of a system below the node's directory, with an engine's configuration to
// edit.
func image(t testing.TB, n *rig.Node, name string) string {
	t.Helper()
	root := filepath.Join(n.Dir, name)
	for path, text := range map[string]string{
		"usr/bin/gpuledger-runtime":  "#!/bin/sh\n",
		"etc/containerd/config.toml": "version = 2\n# ours\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"runc\" # for now\n",
		"etc/docker/daemon.json":     "{\"debug\": true}\n",
		"etc/gpuledger/config.toml":  "engine = \"containerd\"\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// program creates a program in the wrapper's place.
func program(t testing.TB, n *rig.Node) string {
	t.Helper()
	path := n.Write("gpuledger-runtime", "#!/bin/sh\n")
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// tree is every file and link below a root, except the files in which configure keeps its own
// state.
func tree(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		if err != nil {
			return err
		}
		if name == "/var" {
			return fs.SkipDir
		}
		text, _ := os.ReadFile(path)
		target, _ := os.Readlink(path)
		b.WriteString(name + " " + d.Type().String() + " " + target + "\n" + string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestConfigureKilled kills configure and its undo at every step, one step each time. Whatever is
// left, the next call completes it, or reverts it to the byte.
func TestConfigureKilled(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Tags: []string{"failpoint"}})
	kills := 0
	for _, engine := range engineNames {
		root := image(t, n, engine)
		before := tree(t, root)
		configure := []string{"configure", engine, "--root", root, "--as-default"}
		undo := []string{"configure", engine, "--root", root, "--undo"}
		n.Must(configure...)
		after := tree(t, root)
		n.Must(undo...)
		want(t, "undo of "+engine, tree(t, root), before)

		for _, at := range marks("configure/recorded", "configure/changed") {
			for _, then := range []struct {
				args []string
				want string
			}{{configure, after}, {undo, before}} {
				if !killed(t, n, at, configure...) {
					break // it is not passed so often
				}
				kills++
				n.Must(then.args...)
				want(t, engine+", killed at "+at+", then "+strings.Join(then.args, " "),
					tree(t, root), then.want)
				n.Must(undo...)
				want(t, engine+", killed at "+at+", then undone", tree(t, root), before)
			}
			n.Must(undo...)
		}
		for _, at := range marks("configure/restored", "configure/forgotten") {
			n.Must(configure...)
			if killed(t, n, at, undo...) {
				kills++
				n.Must(undo...)
			}
			want(t, "undo of "+engine+", killed at "+at+", then undone", tree(t, root), before)
		}
	}
	if kills < 4*2*6 {
		t.Errorf("only %d kills: the marks are not passed", kills)
	}
}

func marks(names ...string) []string {
	var all []string
	for _, name := range names {
		for pass := range 4 {
			all = append(all, name+":"+strconv.Itoa(pass+1))
		}
	}
	return all
}

// killed runs a command that dies at a mark, and reports whether it did. If it did not die it must
// have succeeded.
func killed(t *testing.T, n *rig.Node, at string, args ...string) bool {
	t.Helper()
	cmd := command(n, args...)
	cmd.Env = append(cmd.Env, failpoint.Variable+"="+at)
	r := rig.Run(cmd)
	if !r.Killed() && r.Code != 0 {
		t.Fatalf("%s at %s: %+v", strings.Join(args, " "), at, r)
	}
	return r.Killed()
}

func want(t *testing.T, what, got, wanted string) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s: the files are\n%s\nwant\n%s", what, got, wanted)
	}
}

// TestConfigureKilledWhileHandingOver: gpuledger's configuration belongs to the engine that is
// configured last.
func TestConfigureKilledWhileHandingOver(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Tags: []string{"failpoint"}})
	root := image(t, n, "image")
	if err := os.RemoveAll(root + "/etc/gpuledger"); err != nil {
		t.Fatal(err)
	}
	before := tree(t, root)
	for _, at := range marks("configure/inherited", "configure/restored", "configure/forgotten") {
		n.Must("configure", "containerd", "--root", root)
		n.Must("configure", "podman", "--root", root, "--as-default")
		if !killed(t, n, at, "configure", "containerd", "--root", root, "--undo") &&
			strings.HasSuffix(at, ":1") {
			t.Errorf("%s is not passed", at)
		}
		n.Must("configure", "containerd", "--root", root, "--undo")
		n.Must("configure", "podman", "--root", root, "--undo")
		want(t, "killed at "+at, tree(t, root), before)
	}
}

// TestConfigureIsReadByContainerd: containerd reads gpuledger's handler, everything else as before,
// and after the undo the same as at first.
func TestConfigureIsReadByContainerd(t *testing.T) {
	rig.Need(t, "containerd")
	n := rig.NewNode(t, rig.Setup{})
	dump := func(root string) string {
		t.Helper()
		r := rig.Run(exec.Command("containerd", "--config",
			root+"/etc/containerd/config.toml", "config", "dump"))
		if r.Code != 0 {
			t.Fatalf("%+v", r)
		}
		return r.Stdout
	}
	byDefault := rig.Run(exec.Command("containerd", "config", "default")).Stdout
	for name, config := range map[string]string{
		"missing": "", "short": "version = 2\n", "whole": byDefault,
		"systemd": strings.ReplaceAll(byDefault, "SystemdCgroup = false", "SystemdCgroup = true"),
	} {
		t.Run(name, func(t *testing.T) {
			root := image(t, n, name)
			file := root + "/etc/containerd/config.toml"
			if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
				t.Fatal(err)
			}
			before := dump(root)
			n.Must("configure", "containerd", "--root", root, "--as-default")
			after := dump(root)
			for _, line := range []string{`default_runtime_name = "gpuledger"`,
				`BinaryName = "/usr/bin/gpuledger-runtime.containerd"`,
				`[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]`,
				`pod_annotations = ["gpuledger.dev/*", `} {
				if !strings.Contains(after, line) {
					t.Errorf("containerd reads no %s in\n%s", line, after)
				}
			}
			if got := strings.Count(after, "SystemdCgroup = true"); name == "systemd" && got != 2 {
				t.Errorf("SystemdCgroup is true %d times, want in both handlers", got)
			}
			n.Must("configure", "containerd", "--root", root, "--undo")
			if text, err := os.ReadFile(file); err != nil || string(text) != config {
				t.Errorf("after the undo: %v\n%s", err, text)
			}
			want(t, "after the undo", dump(root), before)
		})
	}
}

// TestConfigureListsContainersItWouldRefuse starts real containers, and runs the command before
// anything is changed.
func TestConfigureListsContainersItWouldRefuse(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	n.Root = filepath.Join(n.Dir, "roots", "k8s.io")
	rig.Binary(t, "gpuledger-runtime")
	for id, edit := range map[string][]rig.Edit{
		"web": {}, "train": {rig.Env("NVIDIA_VISIBLE_DEVICES=all"),
			rig.Annotation("io.kubernetes.cri.sandbox-namespace", "team"),
			rig.Annotation("io.kubernetes.cri.sandbox-name", "job-0")},
		"ended": {rig.Env("NVIDIA_VISIBLE_DEVICES=all")},
	} {
		b := n.Bundle(id, append(edit, rig.Light)...)
		if r := rig.Run(n.Real("create", "--bundle", b.Dir, id)); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	if r := rig.Run(n.Real("kill", "ended", "KILL")); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	wrapper := program(t, n)
	file := n.Write("containerd.toml",
		"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nRoot = \""+
			n.Dir+"/roots\"\n")
	args := []string{"configure", "containerd", "--file", file, "--runtime", wrapper, "--as-default"}
	var r rig.Result
	rig.Eventually(t, "the killed container is no longer counted", func() bool {
		r = n.CLI(append(args, "--dry-run")...)
		return r.Code != 0 || strings.HasPrefix(r.Stdout, "containers of this engine that run now: 2;")
	})
	for _, line := range []string{
		"containers of this engine that run now: 2; the policy would refuse: 1, and only record it, " +
			"because policy.mode is \"report\"\n" +
			"  team/job-0 train: refuse (visible-devices-all): ",
		"edit " + n.Config + "\n", "note: the wrapper reads " + n.Config +
			" only if the environment of containerd has GPULEDGER_CONFIG=",
	} {
		if r.Code != 0 || !strings.Contains(r.Stdout, line) {
			t.Errorf("got status %d and\n%s%s\nwant %q in it", r.Code, r.Stdout, r.Stderr, line)
		}
	}
	if r := n.CLI(append(args, "--dry-run", "--mode", "enforce", "--json")...); !strings.Contains(r.Stdout,
		`"running": 2`) || !strings.Contains(r.Stdout, `"code": "visible-devices-all"`) {
		t.Errorf("%+v", r)
	}
}

// TestConfigureDistinguishesEngines: CRI-O and Podman may keep their containers in one directory.
func TestConfigureDistinguishesEngines(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	for id, manager := range map[string]string{"a": "cri-o", "b": "libpod", "c": "libpod"} {
		b := n.Bundle(id, rig.Env("NVIDIA_VISIBLE_DEVICES=all"),
			rig.Annotation("io.container.manager", manager), rig.Light)
		if r := rig.Run(n.Real("create", "--bundle", b.Dir, id)); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	file := n.Write("crio.conf", "[crio.runtime.runtimes.runc]\nruntime_root = \""+n.Root+"\"\n")
	r := n.CLI("configure", "crio", "--file", file, "--runtime", program(t, n), "--as-default", "--dry-run")
	if r.Code != 0 || !strings.HasPrefix(r.Stdout,
		"containers of this engine that run now: 1; the policy would refuse: 1") ||
		!strings.Contains(r.Stdout, "\n  a: refuse (") {
		t.Errorf("%+v", r)
	}
}

// TestConfigureRestarts: only if requested, and then the unit by systemd.
func TestConfigureRestarts(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	if err := os.MkdirAll("/run/systemd/system", 0o755); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(n.Dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	n.Write("bin/systemctl", "#!/bin/sh\necho \"$@\" >>"+n.Dir+"/called\n[ \"$2\" != crio.service ]\n")
	if err := os.Chmod(bin+"/systemctl", 0o755); err != nil {
		t.Fatal(err)
	}
	n.Env = append(n.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	if err := os.MkdirAll(n.Dir+"/crio/crio.conf.d", 0o755); err != nil {
		t.Fatal(err)
	}
	args := func(engine string, more ...string) []string {
		return append([]string{"configure", engine, "--file", filepath.Join(n.Dir, engine, "config"),
			"--runtime", program(t, n)}, more...)
	}
	for _, c := range []struct {
		args   []string
		status int
		prints string
	}{
		{args("containerd"), 0, "for containerd to read it: systemctl restart containerd.service\n"},
		{args("containerd", "--restart", "--dry-run"), 0, "nothing to change\ndry run"},
		{args("containerd", "--restart"), 0, "done: systemctl restart containerd.service\n"},
		{args("docker", "--restart"), 0, "done: systemctl reload docker.service\n"},
		{args("podman", "--restart"), 0, "create "},
		{args("crio", "--restart"), 1, "cannot restart crio.service: exit status 1"},
	} {
		r := n.CLI(c.args...)
		if r.Code != c.status ||
			!strings.Contains(r.Stdout+r.Stderr, strings.TrimSuffix(c.prints, "dry run")) {
			t.Errorf("%s: %+v, want status %d and %q", strings.Join(c.args, " "), r, c.status, c.prints)
		}
	}
	called, _ := os.ReadFile(n.Dir + "/called")
	want(t, "systemctl was called", string(called),
		"restart containerd.service\nis-active --quiet docker.service\nreload docker.service\n"+
			"restart crio.service\n")
}

// TestConfigureNeedsARealRuntime: a default handler without one would stop the node.
func TestConfigureNeedsARealRuntime(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	config := n.Write("other.toml", "state_dir = \""+n.Dir+
		"/state\"\n[runtime]\npath = [\"/nowhere/runc\"]\n")
	r := n.CLI("configure", "docker", "--file", n.Dir+"/daemon.json", "--runtime", program(t, n), "--config",
		config, "--as-default")
	if r.Code != 1 || !strings.Contains(r.Stderr,
		"cannot make gpuledger the default: none of /nowhere/runc is there") {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(n.Dir + "/daemon.json"); err == nil {
		t.Error("daemon.json was written")
	}
}

// TestConfigureFindsTheEngine if systemd does not run: by its process, which may use another
// configuration file.
func TestConfigureFindsTheEngine(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.HideRun()
	script := n.Write("dockerd", "#!/bin/sh\ntrap 'echo reloaded >"+n.Dir+
		"/reloaded; kill $!; exit' HUP\nsleep 1000 &\necho >"+n.Dir+"/up\nwait\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	// the caller of the tests may ignore the signal (nohup), and a shell cannot trap a signal that
	// was ignored at its start
	signal.Notify(signals, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(signals) })
	engine := exec.Command(script, "--config-file", "/srv/daemon.json")
	engine.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	// with its sleep, which it may not have come to end
	t.Cleanup(func() { _ = syscall.Kill(-engine.Process.Pid, syscall.SIGKILL); _ = engine.Wait() })
	rig.Eventually(t, "the engine is up", func() bool { _, err := os.Stat(n.Dir + "/up"); return err == nil })

	pid := strconv.Itoa(engine.Process.Pid)
	args := []string{"configure", "docker", "--file", n.Dir + "/daemon.json", "--runtime", program(t, n)}
	output := n.Must(args...)
	for _, line := range []string{"for docker to read it: kill -HUP " + pid + "\n",
		"note: docker (pid " + pid + ") reads /srv/daemon.json, not " + n.Dir +
			"/daemon.json: name it by --file\n"} {
		if !strings.Contains(output, line) {
			t.Errorf("it prints\n%s\nwant %q", output, line)
		}
	}
	n.Must(append(args, "--restart")...)
	rig.Eventually(t, "the engine reads its configuration again", func() bool {
		_, err := os.Stat(n.Dir + "/reloaded")
		return err == nil
	})
	if r := n.CLI("configure", "containerd", "--file", n.Dir+"/c.toml", "--runtime",
		n.Dir+"/gpuledger-runtime", "--restart"); r.Code != 1 ||
		!strings.Contains(r.Stderr, "cannot restart containerd: it does not run here") {
		t.Errorf("%+v", r)
	}
}
