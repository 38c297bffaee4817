package test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestOtherSubcommandsGiveRuncsOutput: a subcommand that starts no container has runc's output, to
// the byte, and its status.
func TestOtherSubcommandsGiveRuncsOutput(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	b := n.Bundle("c")
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	runc, err := exec.LookPath("runc") // it prints the name by which it was called
	must(t, err)
	for _, args := range []string{"list", "list --format json", "state c", "state nope", "state create",
		"ps c -o pid,args", "features", "--version", "-v", "--help", "",
		"nonsense", "nonsense create", "--nonsense", "kill nope KILL", "delete nope", "delete",
		"delete --force nope", "start nope", "update nope", "exec nope sh",
		"events --stats c", "pause nope", "checkpoint nope", "create --help", "run -h", "--log"} {
		words := strings.Fields(args)
		got, want := rig.Run(n.Wrapper(words...)),
			rig.Run(n.Command(runc, append([]string{"--root", n.Root}, words...)...))
		if args == "create --help" || args == "run -h" {
			continue // for the wrapper these are creates: it must only not crash
		}
		if timeless(got) != timeless(want) {
			t.Errorf("%q: got %+v\nwant %+v", args, got, want)
		}
	}
}

var stamp = regexp.MustCompile(`time="[^"]*"|"cpu":\{.*`)

// timeless is a result without what differs between calls.
func timeless(r rig.Result) rig.Result {
	return rig.Result{Stdout: stamp.ReplaceAllString(r.Stdout, ""),
		Stderr: stamp.ReplaceAllString(r.Stderr, ""), Code: r.Code}
}

// recorder puts a program in the real runtime's place that records its arguments and ends with
// status 7.
func recorder(t *testing.T, n *rig.Node) (called func() (argv string, was bool)) {
	t.Helper()
	script := n.Write("runc-recorder", "#!/bin/sh\nprintf '%s\\n' \"$@\" >"+n.Dir+"/called\nexit 7\n")
	must(t, os.Chmod(script, 0o755))
	setRuntime(t, n, script)
	return func() (string, bool) {
		data, err := os.ReadFile(n.Dir + "/called")
		_ = os.Remove(n.Dir + "/called")
		return strings.TrimSuffix(string(data), "\n"), err == nil
	}
}

// setRuntime changes runtime.path.
func setRuntime(t *testing.T, n *rig.Node, paths ...string) {
	t.Helper()
	list, err := json.Marshal(paths)
	must(t, err)
	n.Write("config.toml", regexp.MustCompile(`(?m)^path = .*$`).ReplaceAllString(read(t, n.Config),
		"path = "+string(list)))
}

// TestEveryFormOfACreateIsJudged: engines, and people, write the same create in many ways.
func TestEveryFormOfACreateIsJudged(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	called := recorder(t, n)
	greedy := n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all")).Dir
	plain := n.Bundle("plain").Dir
	for _, args := range []string{
		"create --bundle B c", "create -b B c", "create --bundle=B c", "create -bundle B c",
		"create -bundle=B c", "create -b=B c", "create c --bundle B",
		"create c", "create -- c", "create --bundle B -- c", "create c --no-pivot",
		"create --no-pivot --no-new-keyring c", "create --bundle /nowhere --bundle B c",
		"create --bundle B create", "create --bundle B run", "create --bundle B state",
		"run --bundle B create", "run B c --bundle B",
		"create --console-socket S --pid-file P --preserve-fds 3 --bundle B c",
		"create --pidfd-socket S --bundle B c",
		"run c", "run -d c", "run --detach --keep --bundle B c", "run --bundle B -d c",
		"restore --bundle B c", "restore --image-path I --work-path W --bundle B c", "restore -d c",
		"--root=R create c", "--root R create c", "-root R create c", "-root=R create c", "--debug create c",
		"--log L --log-format json create c",
		"--log=L --systemd-cgroup create c", "--rootless auto create c", "--rootless=true create c",
		"--criu X create c", "--log-level debug create c", "--cgroup-manager systemd create c",
		"--root create create c", "--log state create c",
		"--unknown create c", "--unknown=value create c", "--unknown value create c",
		"--unknown value --debug create c", "--unknown value --root R run c",
		"--unknown state create c", "-x create c", "--debug --unknown value create c", "create --unknown c",
		"create --unknown=x c",
		"-- create c", "--debug -- run c", "--unknown value -- create c",
		"create --config config.json c", "create -f config.json c", "create -f B/config.json --bundle P c",
	} {
		words := strings.Fields(strings.NewReplacer("B", greedy, "P", plain, "R", n.Root).Replace(args))
		cmd := n.Command(rig.Binary(t, "gpuledger-runtime"), words...)
		cmd.Dir = greedy
		r := rig.Run(cmd)
		code := "visible-devices-all"
		if strings.HasPrefix(args, "restore") { // the recorder says no version, which weighs more
			code = "rules-not-enforced"
		}
		if argv, was := called(); was && !(code == "rules-not-enforced" && argv == "--version") {
			t.Errorf("%q was handed on: %q", args, argv)
		}
		wantRefused(t, r, code)
	}
}

// TestAFormThatOnlyCrunReadsIsRefused is refused: crun would start another container than the one
// that gpuledger judged.
func TestAFormThatOnlyCrunReadsIsRefused(t *testing.T) {
	if rig.Under(t, rig.V1) { // crun 1.8 refuses a hybrid
		return
	}
	rig.NeedRuntime(t, "crun")
	n := rig.NewNode(t, rig.Setup{Runtime: "crun"})
	greedy := n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo started"))
	plain := n.Bundle("plain", rig.Shell("echo started"))
	for _, args := range []string{"run -bB c", "run -dbB c", "run --bun=B c", "run --bund B c",
		"run -fB/config.json c", "--cgroup-m=disabled run c", "update --reso=B/config.json c"} {
		cmd := n.Wrapper(strings.Fields(strings.ReplaceAll(args, "B", greedy.Dir))...)
		cmd.Dir = plain.Dir
		r := rig.Run(cmd)
		wantRefused(t, r, "spec-invalid")
		if r.Stdout != "" || !strings.Contains(r.Stderr, "runtimes disagree on the option -") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := plain.Run(); r.Code != 0 || r.Stdout != "started\n" {
		t.Errorf("in full: %+v", r)
	}
}

// TestOtherSubcommandsAreHandedOn unchanged, and their status returned, however much they look like
// a create.
func TestOtherSubcommandsAreHandedOn(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	called := recorder(t, n)
	greedy := n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all")).Dir
	for _, args := range []string{
		"state create", "start create", "kill run KILL", "delete create", "exec create run",
		"exec -t c create", "--log create state c", "--root create list", "ps run",
		"checkpoint --image-path X create", "checkpoint restore", "events create", "list", "features",
		"spec --bundle B", "pause create", "--version", "--debug", "nonsense create", "--unknown state c",
		"--unknown value state c", "--unknown value --root R state create", "update --pids-limit 5 create",
		"--", "--debug -- state create", "", "create -h", "--root R run --help", "restore", "create",
		"update -h", "delete",
	} {
		cmd := n.Command(rig.Binary(t, "gpuledger-runtime"), strings.Fields(args)...)
		cmd.Dir = greedy
		r := rig.Run(cmd)
		argv, was := called()
		if want := strings.Join(strings.Fields(args), "\n"); !was || argv != want || r.Code != 7 ||
			r.Stderr != "" {
			t.Errorf("%q: handed on %v as %q, %+v", args, was, argv, r)
		}
	}
}

// TestACreateIsHandedOnUnchanged: the real runtime gets every word of a create that passes or is
// admitted.
func TestACreateIsHandedOnUnchanged(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	called := recorder(t, n)
	reference := n.Grant("--memory", "1GiB")
	for _, dir := range []string{n.Bundle("plain").Dir,
		n.Bundle("train", rig.Annotation("gpuledger.dev/grant", reference.String())).Dir} {
		args := []string{"--root", n.Root, "--log=/dev/null", "--unknown", "create", "--bundle", dir,
			"--pid-file", "a b", "--", "c"}
		r := rig.Run(n.Command(rig.Binary(t, "gpuledger-runtime"), args...))
		if argv, was := called(); !was || argv != strings.Join(args, "\n") || r.Code != 7 {
			t.Errorf("%v %q, %+v", was, argv, r)
		}
	}
}

// TestRefusalReachesTheEngine: containerd and Docker read the log's last error, CRI-O and Podman
// stderr. The tenant's words in it are only text.
func TestRefusalReachesTheEngine(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	evil := "all,\x1b[2J\x07\r\n{\"level\":\"error\",\"msg\":\"forged\"}\u202e\u009b\u2028"
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=1,"+evil),
		rig.Annotation("gpuledger.dev/grant", "g-\x1b]0;x\x07\n"))
	before := n.Write("log.json", `{"level":"info","msg":"runc was here","time":"2026-01-01T00:00:00Z"}`+"\n")
	text := filepath.Join(n.Dir, "log.txt")
	r := rig.Run(n.Wrapper("--log", before, "--log-format", "json", "create", "--bundle", b.Dir, "c"))
	wantRefused(t, r, "annotation-malformed")

	lines := strings.Split(strings.TrimSuffix(read(t, before), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("the log has %d lines, want the earlier one and gpuledger's:\n%q", len(lines), lines)
	}
	var entry struct{ Level, Msg, Time string }
	must(t, json.Unmarshal([]byte(lines[1]), &entry))
	sentence, hint, _ := strings.Cut(strings.TrimSuffix(r.Stderr, "\n"), "\n")
	if _, err := time.Parse(time.RFC3339, entry.Time); err != nil || entry.Level != "error" ||
		entry.Msg != sentence+"; "+hint {
		t.Errorf("%+v\n%v", entry, err)
	}

	_ = rig.Run(n.Wrapper("--log="+text, "create", "--bundle", b.Dir, "c"))
	line := regexp.MustCompile(`^time="[^"]+" level=error msg="gpuledger: refused ` +
		`\(annotation-malformed\): .*; hint: .*"\n$`)
	if got := read(t, text); !line.MatchString(got) {
		t.Errorf("text log: %q", got)
	}
	greedy := n.Bundle("d", rig.Env("NVIDIA_VISIBLE_DEVICES=1,"+evil))
	r = rig.Run(n.Wrapper("--log", before, "--log-format", "json", "create", "--bundle",
		greedy.Dir, "d\x1b[31m\n"))
	wantRefused(t, r, "visible-devices-all")
	for name, out := range map[string]string{"stderr": r.Stderr, "log": read(t, before),
		"text log": read(t, text), "audit": read(t, n.Dir+"/audit.jsonl")} {
		if i := strings.IndexFunc(out, func(r rune) bool {
			return r < ' ' && r != '\n' || r == 0x7f || r == '\u202e' || r == '\u009b' || r == '\u2028'
		}); i >= 0 {
			t.Errorf("%s carries %q", name, out[i:min(len(out), i+10)])
		}
	}
	nowhere := rig.Run(n.Wrapper("create", "--bundle", "/nowhere\x1b[2J\n", "c"))
	wantRefused(t, nowhere, "spec-invalid")
	for _, log := range []string{"/nowhere/log.json", n.Dir} {
		wantRefused(t, rig.Run(n.Wrapper("--log", log, "create", "--bundle", greedy.Dir, "d")),
			"visible-devices-all")
	}
}

// update runs the wrapper's update with the resources on standard input.
func update(b *rig.Bundle, resources string) rig.Result {
	cmd := b.Node.Wrapper("update", "--resources", "-", b.ID)
	cmd.Stdin = strings.NewReader(resources)
	return rig.Run(cmd)
}

func TestUpdate(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB", "--gpu", "0")
	b := n.Bundle("c", rig.Annotation("gpuledger.dev/grant", reference.String()))
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	limit := func(r rig.Result, want string) {
		t.Helper()
		if got := b.Cgroup("pids", "pids.max"); r.Code != 0 || got != want {
			t.Errorf("pids.max is %s, want %s: %+v", got, want, r)
		}
	}
	own := `{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}`
	limit(update(b, `{"pids":{"limit":41}}`), "41")
	limit(rig.Run(n.Wrapper("update", "--pids-limit", "42", "c")), "42")
	// as containerd sends with every update
	limit(update(b, `{"devices":[`+own+`],"pids":{"limit":43}}`), "43")
	file := n.Write("resources.json", `{"pids":{"limit":44}}`)
	limit(rig.Run(n.Wrapper("update", "-r", file, "c")), "44")
	n.Write("resources.json", `{"pids":{"limit":45},"devices":[`+own+`]}`)
	limit(rig.Run(n.Wrapper("update", "c", "--resources="+file)), "45")
	limit(update(b, `{"pids":{"limit":46},"devices":[`+own+
		`,{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]}`), "46")
	limit(update(b, `{"pids":{"limit":47},"devices":null}`), "47")
	limit(rig.Run(n.Wrapper("update", "--resources", "", "--pids-limit", "48", "c")), "48")
	pipe := n.Wrapper("update", "--resources", "/dev/stdin", "c") // which can be read once
	pipe.Stdin = strings.NewReader(`{"pids":{"limit":49}}`)
	limit(rig.Run(pipe), "49")

	for _, c := range []struct{ resources, code string }{
		{`{"unified":{"dmem.max":"drm/0 1"}}`, "limit-unenforceable"},
		{`{"unified":{"pids.max":"3","dmem.low":"x"}}`, "limit-unenforceable"},
		{`{"devices":[` + own + `,{"allow":true,"type":"c","major":195,"minor":1,"access":"rw"}]}`, "gpu-device-rule"},
		{`{"devices":[{"allow":true,"access":"rwm"}]}`, "gpu-device-rule"},
		{`{"devices":[{"allow":true,"type":"c","major":195,"access":"r"}]}`, "gpu-device-rule"},
		{`{"devices":[{"allow":true,"type":"c","access":"rwm"}]}`, "gpu-device-rule"},
		{`{"Devices":[{"allow":true,"access":"rwm"}]}`, "spec-invalid"},
		{`{"devices":[],"devices":[{"allow":true,"access":"rwm"}]}`, "spec-invalid"},
		{`{`, "spec-invalid"},
		{``, "spec-invalid"},
		{`[]`, "spec-invalid"},
		{strings.Repeat(" ", 17<<20), "spec-invalid"},
	} {
		r := update(b, c.resources)
		wantRefused(t, r, c.code)
		if got := b.Cgroup("pids", "pids.max"); got != "49" {
			t.Errorf("%.80s: pids.max is %s", c.resources, got)
		}
	}
	// runc ignores device rules; crun would obey them
	reader := n.Write("reader", "#!/bin/sh\nprintf '%s ' \"$@\"; cat\n")
	must(t, os.Chmod(reader, 0o755))
	setRuntime(t, n, reader)
	want := "--root " + n.Root + " update --resources - c {\"a\":1,\"pids\":{\"limit\":49}}"
	if r := update(b, `{"a":1,"devices":[`+own+`],"pids":{"limit":49}}`); r.Stdout != want {
		t.Errorf("the real runtime got %+v, want %s", r, want)
	}
	if r := rig.Run(n.Wrapper("update", "-r", "/nowhere", "c")); r.Code != 1 ||
		!strings.HasPrefix(r.Stderr, "gpuledger: cannot read the resources of the update: ") {
		t.Errorf("%+v", r)
	}
}

// TestUpdateOfAContainerWithoutGPU may not open one either.
func TestUpdateOfAContainerWithoutGPU(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	b := n.Bundle("c")
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	wantRefused(t, update(b, `{"devices":[{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]}`),
		"gpu-device-rule")
	if r := update(b, `{"pids":{"limit":9},"devices":[{"allow":false,"access":"rwm"}]}`); r.Code != 0 ||
		b.Cgroup("pids", "pids.max") != "9" {
		t.Errorf("%+v", r)
	}
}

// TestDelete removes the binding, and gpuledger's own errors never make it fail.
func TestDelete(t *testing.T) {
	s := newScene(t)
	bindings := func() int {
		entries, err := os.ReadDir(s.path("run/bindings"))
		must(t, err)
		return len(entries)
	}
	gone := func() {
		s.train.Kill()
		rig.Eventually(t, "the container is dead", func() bool {
			return s.State(s.reference.ID) == grant.Free
		})
	}
	for _, c := range []struct {
		name    string
		breakIt func(t *testing.T)
		left    int
	}{
		{"ordinary", func(*testing.T) {}, 0},
		{"lock held for ever", func(t *testing.T) {
			lock, err := os.OpenFile(s.path("run/lock"), os.O_RDWR, 0)
			must(t, err)
			t.Cleanup(func() { lock.Close() })
			must(t, flock(lock))
		}, 1},
		{"run directory read-only", func(t *testing.T) { rig.ReadOnly(t, s.path("run")) }, 1},
		{"state directory read-only", func(t *testing.T) { rig.ReadOnly(t, s.path("state")) }, 0},
		{"binding is garbage", func(t *testing.T) {
			entries, _ := os.ReadDir(s.path("run/bindings"))
			s.Write("run/bindings/"+entries[0].Name(), "{{{")
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := s.train.Create(); r.Code != 0 {
				t.Fatal(r)
			}
			gone()
			c.breakIt(t)
			if r := rig.Run(s.Wrapper("delete", "train")); r.Code != 0 || r.Stderr != "" {
				t.Errorf("%+v", r)
			}
			if got := bindings(); got != c.left {
				t.Errorf("%d bindings are left, want %d", got, c.left)
			}
			if r := rig.Run(s.Real("state", "train")); r.Code == 0 {
				t.Error("the container is still there")
			}
		})
	}
}

// TestIDInUse: a second create of a running container's id changes nothing for the first.
func TestIDInUse(t *testing.T) {
	s := newScene(t)
	if r := s.train.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	before := s.Must("grants", "--json")
	if r := s.train.Create(); r.Code != 1 || !strings.Contains(r.Stderr, "already exists") {
		t.Errorf("with the same grant: %+v", r)
	}
	other := s.Grant("--memory", "1GiB")
	s.web.ID = s.train.ID
	if r := s.web.Create(); r.Code != 1 || !strings.Contains(r.Stderr, "already exists") ||
		strings.Contains(r.Stderr, "gpuledger") {
		t.Errorf("without a GPU the real runtime refuses: %+v", r)
	}
	second := s.Bundle("second", rig.Annotation("gpuledger.dev/grant", other.String()))
	second.ID = s.train.ID
	if r := second.Create(); r.Code != 1 || !strings.Contains(r.Stderr, "already exists") {
		t.Errorf("with another grant: %+v", r)
	}
	if got := s.State(other.ID); got != grant.Free {
		t.Errorf("the other grant is %q", got)
	}
	// the first may have ended before the real runtime reads its state: nothing is bound to this
	// one
	called := recorder(t, s.Node)
	wide := s.Bundle("wide", rig.Annotation("gpuledger.dev/grant", other.String()), rig.Privileged)
	wide.ID = s.train.ID
	spec := wide.Config()
	r := wide.Create()
	if _, was := called(); was || !strings.Contains(r.Stderr, "container with given ID already exists") ||
		!bytes.Equal(wide.Config(), spec) {
		t.Errorf("%+v: handed on %v:\n%s", r, was, wide.Config())
	}
	setRuntime(t, s.Node, "runc")
	s.Must("release", string(other.ID))
	if after := s.Must("grants", "--json"); after != before {
		t.Errorf("the grants were\n%sand are\n%s", before, after)
	}
}

// TestRealRuntime: the first of the list that exists, found as engines find it, and never the
// wrapper itself.
func TestRealRuntime(t *testing.T) {
	s := newScene(t)
	wrapper := rig.Binary(t, "gpuledger-runtime")
	must(t, os.Symlink(wrapper, s.path("runc")))
	setRuntime(t, s.Node, "/nowhere/runc", s.Dir, s.Config, wrapper, s.path("runc"),
		"no-such-runtime", "runc")
	// the link to the wrapper first, and relative ones
	s.Env = []string{"PATH=" + s.Dir + "::.:/usr/sbin:/usr/bin"}
	evil := filepath.Join(s.web.Dir, "runc")
	must(t, os.WriteFile(evil, []byte("#!/bin/sh\necho evil\n"), 0o755))
	cmd := s.Wrapper("--version")
	cmd.Dir = s.web.Dir
	if r := rig.Run(cmd); r.Code != 0 || !strings.HasPrefix(r.Stdout, "runc version") {
		t.Errorf("%+v", r)
	}
	s.Env = []string{"PATH="} // conmon may call the wrapper without one
	if r := rig.Run(s.Wrapper("--version")); r.Code != 0 || !strings.HasPrefix(r.Stdout, "runc version") {
		t.Errorf("%+v", r)
	}

	setRuntime(t, s.Node, "no-such-runtime", wrapper)
	for _, args := range [][]string{{"list"}, {"create", "--bundle", s.train.Dir, "train"}} {
		r := rig.Run(s.Wrapper(args...))
		if r.Code != 1 ||
			r.Stderr != "gpuledger: cannot find the real OCI runtime: none of no-such-runtime, "+wrapper+
				" is there; set runtime.path in "+s.Config+"\n" {
			t.Errorf("%+v", r)
		}
	}
	garbage := s.Write("garbage", "this is no program\n")
	must(t, os.Chmod(garbage, 0o755))
	setRuntime(t, s.Node, garbage)
	if r := s.train.Create(); r.Code != 1 || r.Stderr != "gpuledger: cannot run "+garbage+
		": exec format error\n" {
		t.Errorf("%+v", r)
	}
	setRuntime(t, s.Node, "runc")
	if got := s.State(s.reference.ID); got != grant.Free {
		t.Errorf("the grant is %q although nothing ran", got)
	}
	if r := s.train.Create(); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// crioIdentity are the keys of the other Kubernetes engine.
func crioIdentity(uid, container string) rig.Edit {
	return func(s *specs.Spec) {
		for key, value := range map[string]string{"cri-o.ContainerType": "container", "pod.uid": uid,
			"pod.namespace": "default", "pod.name": "p", "container.name": container} {
			rig.Annotation("io.kubernetes."+key, value)(s)
		}
	}
}

// TestIdentity: only the pod's container can use a pod's grant, with the identity from the calling
// engine.
func TestIdentity(t *testing.T) {
	containerd, crio := rig.Identity("u1", "default", "p", "train"), crioIdentity("u1", "train")
	sandbox := func(key string) rig.Edit { return rig.Annotation(key, "sandbox") }
	for _, c := range []struct {
		name, suffix, engine string
		edits                []rig.Edit
		admitted             bool
	}{
		{"containerd by its link", ".containerd", "none", []rig.Edit{containerd}, true},
		{"containerd by the configuration", "", "containerd", []rig.Edit{containerd}, true},
		{"CRI-O by its link", ".crio", "containerd", []rig.Edit{crio}, true},
		{"CRI-O by the configuration", "", "cri-o", []rig.Edit{crio}, true},
		{"CRI-O's keys under containerd", ".containerd", "cri-o", []rig.Edit{crio}, false},
		{"containerd's keys under CRI-O", ".crio", "containerd", []rig.Edit{containerd}, false},
		{"the other engine's keys name another pod", ".containerd", "none", []rig.Edit{containerd, crioIdentity("u2", "other")}, true},
		{"Docker proves nothing", ".docker", "containerd", []rig.Edit{containerd, crio}, false},
		{"Podman proves nothing", ".podman", "containerd", []rig.Edit{containerd, crio}, false},
		{"an unknown link", ".other", "containerd", []rig.Edit{containerd, crio}, false},
		{"no engine", "", "none", []rig.Edit{containerd, crio}, false},
		{"another container of the pod", ".containerd", "none", []rig.Edit{rig.Identity("u1", "default", "p", "sidecar")}, false},
		{"the same name in another pod", ".containerd", "none", []rig.Edit{rig.Identity("u2", "default", "p", "train")}, false},
		{"no UID, as before containerd 1.6.11", ".containerd", "none", []rig.Edit{rig.Identity("", "default", "p", "train")}, false},
		{"the sandbox", ".containerd", "none", []rig.Edit{containerd, sandbox("io.kubernetes.cri.container-type")}, false},
		{"CRI-O's sandbox", ".crio", "none", []rig.Edit{crio, sandbox("io.kubernetes.cri-o.ContainerType")}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: c.engine})
			n.Grant("--memory", "1GiB", "--gpu", "1", "--owner", "pod:u1/train")
			link := filepath.Join(n.Dir, "gpuledger-runtime"+c.suffix)
			must(t, os.Symlink(rig.Binary(t, "gpuledger-runtime"), link))
			b := n.Bundle("c", append(c.edits, rig.Shell("ls /dev"))...)
			before := b.Config()
			r := rig.Run(n.Command(link, "--root", n.Root, "run", "--bundle", b.Dir, "c"))
			if r.Code != 0 || strings.Contains(r.Stdout, "nvidia1\n") != c.admitted ||
				strings.Contains(r.Stdout, "nvidia0\n") {
				t.Errorf("admitted: want %v, got %+v", c.admitted, r)
			}
			if !c.admitted && !bytes.Equal(b.Config(), before) {
				t.Error("config.json was changed")
			}
		})
	}
}

// TestPodGrantByReference: an id without a secret is not enough. Only the pod's own container may
// name it.
func TestPodGrantByReference(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	reference := n.Grant("--memory", "1GiB", "--owner", "pod:u1/train").String()
	thief := n.Bundle("thief", rig.Identity("u2", "default", "q", "train"),
		rig.Annotation("gpuledger.dev/grant.train", reference))
	wantRefused(t, thief.Create(), "grant-owner-mismatch")
	sidecar := n.Bundle("sidecar", rig.Identity("u1", "default", "p", "sidecar"),
		rig.Annotation("gpuledger.dev/grant.train", reference), rig.Shell("exit 0"))
	if r := sidecar.Run(); r.Code != 0 {
		t.Errorf("an annotation that names another container of the pod: %+v", r)
	}
	owner := n.Bundle("owner", rig.Identity("u1", "default", "p", "train"),
		rig.Annotation("gpuledger.dev/grant.train", reference))
	if r := owner.Create(); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestReportMode: what would be refused starts as it is, and it is reported.
func TestReportMode(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: "[policy]\nmode = \"report\"\n"})
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo $NVIDIA_VISIBLE_DEVICES"))
	before := b.Config()
	r := b.Run()
	if r.Code != 0 || r.Stdout != "all\n" || !bytes.Equal(b.Config(), before) {
		t.Errorf("%+v", r)
	}
	if !strings.HasPrefix(r.Stderr, "gpuledger: would be refused (visible-devices-all): ") ||
		strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("%q", r.Stderr)
	}
	var line struct{ Verdict, Mode, Code, Container string }
	must(t, json.Unmarshal([]byte(read(t, n.Dir+"/audit.jsonl")), &line))
	if line.Verdict != "refuse" || line.Mode != "report" || line.Code != "visible-devices-all" ||
		line.Container != "c" {
		t.Errorf("%+v", line)
	}
	reference := n.Grant("--memory", "1GiB", "--gpu", "1")
	admitted := n.Bundle("d", rig.Annotation("gpuledger.dev/grant", reference.String()), rig.Shell("ls /dev"))
	if r := admitted.Run(); r.Code != 0 || r.Stderr != "" || !strings.Contains(r.Stdout, "nvidia1\n") {
		t.Errorf("%+v", r)
	}
	odd := n.Bundle("e")
	odd.WriteConfig([]byte(`{"process":{"ENV":[]}}`))
	if r := odd.Create(); r.Code != 1 || !strings.HasPrefix(r.Stderr,
		"gpuledger: would be refused (spec-invalid)") || !strings.Contains(r.Stderr, "level=error") {
		t.Errorf("the real runtime has the last word: %+v", r)
	}
	must(t, os.Remove(odd.Dir+"/config.json"))
	if r := odd.Create(); r.Code != 1 || !strings.HasPrefix(r.Stderr,
		"gpuledger: would be refused (spec-invalid)") || !strings.Contains(r.Stderr, "level=error") {
		t.Errorf("the real runtime has the last word: %+v", r)
	}
}

// TestReportModeWarnsInTheLog: why a container, an exec or an update would be refused is a warning
// in the runtime's log. Engines pass the container's own standard error to the runtime, so a line
// there would be in the tenant's log.
func TestReportModeWarnsInTheLog(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: "[policy]\nmode = \"report\"\n"})
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	log := filepath.Join(n.Dir, "log.json")
	for _, c := range []struct{ args, stdin, warning string }{
		{"create --bundle " + b.Dir + " c", "", "gpuledger: would be refused (visible-devices-all): "},
		{"start c", "", ""},
		{"exec --cgroup x/.. c /bin/busybox true", "",
			"gpuledger: would be refused (injection-impossible): "},
		{"update --resources - c", `{"devices":[{"allow":true,"access":"rwm"}]}`,
			"gpuledger: would be refused (gpu-device-rule): "},
	} {
		_ = os.Remove(log)
		cmd := n.Wrapper(append([]string{"--log", log, "--log-format", "json"}, strings.Fields(c.args)...)...)
		cmd.Stdin = strings.NewReader(c.stdin)
		if r := rig.Run(cmd); r.Code != 0 || r.Stderr != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
		var entry struct{ Level, Msg string }
		line, _, _ := strings.Cut(read(t, log), "\n")
		if c.warning == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Level != "warning" ||
			!strings.HasPrefix(entry.Msg, c.warning) {
			t.Errorf("%s: the log has %q (%v)", c.args, line, err)
		}
	}
}

// TestPodmansLogHasNoWarnings: Podman takes all that is in the log for the cause of a failure.
func TestPodmansLogHasNoWarnings(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "podman", Config: "[policy]\nmode = \"report\"\n"})
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	log := filepath.Join(n.Dir, "oci-log")
	r := rig.Run(n.Wrapper("--log", log, "--log-format", "json", "create", "--bundle", b.Dir, "c"))
	text, _ := os.ReadFile(log)
	if r.Code != 0 || r.Stderr != "" || len(text) > 0 {
		t.Errorf("%+v; the log has %q", r, text)
	}
	if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit, "visible-devices-all") {
		t.Errorf("audit: %s", audit)
	}
}

// TestUpdateInReportMode: it is done as requested, and reported.
func TestUpdateInReportMode(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: "[policy]\nmode = \"report\"\n"})
	b := n.Bundle("c")
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	r := update(b, `{"pids":{"limit":9},"devices":[{"allow":true,"access":"rwm"}]}`)
	if r.Code != 0 || b.Cgroup("pids", "pids.max") != "9" ||
		!strings.HasPrefix(r.Stderr, "gpuledger: would be refused (gpu-device-rule): ") {
		t.Errorf("%+v", r)
	}
}

// TestExempt: the policy lets named pods pass, if their names can be trusted.
func TestExempt(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd",
		Config: "[[policy.exempt]]\nnamespace = \"gpu-*\"\ncontainer = \"driver\"\n"})
	all := rig.Env("NVIDIA_VISIBLE_DEVICES=all")
	b := n.Bundle("c", rig.Identity("u1", "gpu-operator", "p", "driver"), all, rig.Shell("exit 0"))
	before := b.Config()
	if r := b.Run(); r.Code != 0 || r.Stderr != "" || !bytes.Equal(b.Config(), before) {
		t.Errorf("%+v", r)
	}
	if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit, "exempt from grants by policy") ||
		!strings.Contains(audit, `"namespace":"gpu-operator"`) {
		t.Errorf("audit: %s", audit)
	}
	for name, edits := range map[string][]rig.Edit{
		"another container": {rig.Identity("u1", "gpu-operator", "p", "other"), all},
		"another namespace": {rig.Identity("u1", "default", "p", "driver"), all},
		"forged keys":       {crioIdentity("u1", "driver"), rig.Annotation("io.kubernetes.pod.namespace", "gpu-operator"), all},
		"no identity":       {all},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, n.Bundle("d", edits...).Create(), "visible-devices-all")
		})
	}
}

// TestHide: the image's request is removed, and the container starts.
func TestHide(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: "[policy]\nungranted = \"hide\"\n"})
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES=all",
		"NVIDIA_MIG_CONFIG_DEVICES=all", "CUDA_VERSION=12"), rig.Shell("env | grep NVIDIA; ls /dev"))
	r := b.Run()
	if r.Code != 0 || !strings.HasPrefix(r.Stdout, "NVIDIA_VISIBLE_DEVICES=void\n") ||
		strings.Contains(r.Stdout, "nvidia") || strings.Contains(r.Stdout, "MIG") {
		t.Errorf("%+v", r)
	}
	wantSameAgain(t, b)
	wantRefused(t, n.Bundle("d", rig.Privileged).Create(), "privileged-gpu")
	forged := n.Bundle("e", rig.Env("NVIDIA_VISIBLE_DEVICES=all"),
		rig.Annotation("gpuledger.dev/grant", "g-aaaaaaaaaaaa.00000000000000000000000000000000"))
	wantRefused(t, forged.Create(), "grant-not-found")
}

// wantSameAgain wants a second run with the edited config.json to leave it as it is.
func wantSameAgain(t *testing.T, b *rig.Bundle) {
	t.Helper()
	once := b.Config()
	b.Delete()
	if r := b.Run(); r.Code != 0 {
		t.Errorf("again: %+v", r)
	}
	if twice := b.Config(); !bytes.Equal(once, twice) {
		t.Errorf("the edited config.json was edited again:\n%s\n%s", once, twice)
	}
}

// TestStrip: a privileged container without a grant keeps everything except the GPUs. No driver has
// major 60 (kept for experiments by Documentation/admin-guide/devices.txt), so an allowed open of
// it returns ENXIO.
func TestStrip(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			n := rig.NewNode(t, rig.Setup{Config: "[policy]\nprivileged = \"strip\"\n"})
			b := n.Bundle("c", rig.Privileged, device("/dev/nvidia0", 195, 0), device("/dev/fuse", 10, 229), rig.Shell(`exec 2>&1
open() { mknod /tmp/x c "$1" "$2"; cat /tmp/x | head -c 1 | wc -c; rm /tmp/x; }
open 195 0; open 195 255; ls /dev/nvidia0; open 1 5; open 60 0; cat /dev/null && echo null; ls /dev/fuse`))
			r := b.Run()
			want := "cat: can't open '/tmp/x': Operation not permitted\n0\ncat: can't open '/tmp/x': " +
				"Operation not permitted\n0\nls: /dev/nvidia0: No such file or directory\n1\n" +
				"cat: can't open '/tmp/x': No such device or address\n0\nnull\n/dev/fuse\n"
			if r.Stdout != want {
				t.Errorf("got\n%s%swant\n%s", r.Stdout, r.Stderr, want)
			}
			wantSameAgain(t, b)
		})
	}
}

func device(path string, major, minor int64) rig.Edit {
	return func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
			Path: path, Type: "c", Major: major, Minor: minor})
	}
}

// TestEditedTwice: what the wrapper wrote, given to it again under the same grant, stays as it is
// to the byte.
func TestEditedTwice(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "2GiB", "--gpus", "2")
	by := rig.Annotation("gpuledger.dev/grant", reference.String())
	for name, edits := range map[string][]rig.Edit{
		"plain":      {by},
		"env":        {by, rig.Env("NVIDIA_VISIBLE_DEVICES=0", "A=1", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0", "GPULEDGER_GRANT="+reference.String())},
		"devices":    {by, device("/dev/nvidia0", 195, 0), device("/dev/fuse", 10, 229)},
		"privileged": {by, rig.Privileged, rig.Env("NVIDIA_VISIBLE_DEVICES=all")},
	} {
		t.Run(name, func(t *testing.T) {
			n.T = t
			b := n.Bundle(name, append(slices.Clone(edits), rig.Shell("exit 0"))...)
			before := b.Config()
			if r := b.Run(); r.Code != 0 {
				t.Fatal(r)
			}
			if bytes.Equal(b.Config(), before) {
				t.Error("nothing was edited")
			}
			wantSameAgain(t, b)
		})
	}
}

// TestUpdateOfAConfinedContainer: containerd sends the rules of its own spec with every update.
// Those of a privileged container that a grant has confined are wider than what it runs with; they
// are dropped, and the update continues.
func TestUpdateOfAConfinedContainer(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB", "--gpu", "0")
	b := n.Bundle("c", rig.Privileged, rig.Annotation("gpuledger.dev/grant", reference.String()))
	if r := b.Create(); r.Code != 0 {
		t.Fatal(r)
	}
	r := update(b, `{"devices":[{"allow":true,"access":"rwm"}],"pids":{"limit":41}}`)
	if got := b.Cgroup("pids", "pids.max"); r.Code != 0 || got != "41" {
		t.Errorf("pids.max is %s, want 41: %+v", got, r)
	}
}
