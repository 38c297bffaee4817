package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// nvidiaCTK is NVIDIA's own tool for engines' configurations, at the version of its module here.
func nvidiaCTK(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../bin/peers/nvidia-ctk")
	must(t, err)
	build := exec.Command("go", "build", "-C", "tools/nvidia-container-toolkit", "-p", "2", "-trimpath",
		"-ldflags", "-s -w", "-o", filepath.Dir(path)+"/", "tool")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build nvidia-ctk: %v\n%s", err, out)
	}
	return path
}

// TestDaemonReportsAForeignDefaultHandler: `nvidia-ctk runtime configure` runs before and after
// `gpuledger configure`, on each engine that it knows.
func TestDaemonReportsAForeignDefaultHandler(t *testing.T) {
	ctk := nvidiaCTK(t)
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: shows("127.0.0.1:0")})
	wrapper := program(t, n)
	d := n.Daemon("--nri", "off")
	s := siteOf(t, d)
	for _, e := range []struct {
		name, file, text string
		first, later     string // the file that nvidia-ctk writes into; the second is read after gpuledger's
		handler          string // what is the default then
	}{
		{"containerd", "config.toml", "version = 2\n", "conf.d/99-nvidia.toml", "conf.d/zzz-nvidia.toml", "nvidia"}, // read before gpuledger's
		{"crio", "crio.conf", "", "crio.conf.d/99-nvidia.conf", "crio.conf.d/zzz-nvidia.conf", "nvidia"},            // as above
		{"docker", "daemon.json", "{}\n", "", "", "nvidia"},
	} {
		must(t, os.Mkdir(filepath.Join(n.Dir, e.name), 0o755))
		file := n.Write(e.name+"/"+e.file, e.text)
		dir := filepath.Dir(file)
		// nvidia runs nvidia-ctk as an administrator or NVIDIA's GPU operator would.
		nvidia := func(into string) {
			t.Helper()
			args := []string{"runtime", "configure", "--runtime=" + e.name, "--config=" + file,
				"--set-as-default"}
			if into != "" {
				args = append(args, "--drop-in-config="+filepath.Join(dir, into))
			}
			if r := rig.Run(exec.Command(ctk, args...)); r.Code != 0 {
				t.Fatalf("nvidia-ctk %s: %+v", strings.Join(args, " "), r)
			}
		}
		ours := func() {
			t.Helper()
			n.Must("configure", e.name, "--file", file, "--runtime", wrapper, "--as-default")
		}
		gauge := func(value string) string {
			return `gpuledger_engine_default{engine="` + e.name + `"} ` + value
		}
		count := func(action string) int { return len(findings(t, n, action, "handler-changed")) }
		doctor := func() string { return n.CLI("doctor").Stdout }
		message := e.name
		if e.name == "crio" {
			message = "cri-o"
		}
		message += ": " + file + " names "

		nvidia(e.first)
		ours()
		s.eventually("/metrics", gauge("1"))
		if text := doctor(); strings.Contains(text, message) {
			t.Errorf("%s is configured, and doctor prints\n%s", e.name, text)
		}
		found, over := count("found"), count("over")

		nvidia(e.later)
		s.eventually("/metrics", gauge("0"), `gpuledger_findings{gpu="",kind="handler-changed"} 1`)
		s.eventually("/", file+` names &#34;`+e.handler)
		if text := doctor(); !strings.Contains(text, message+`"`+e.handler+`" as its default handler`) ||
			!strings.Contains(text, "gpuledger configure "+e.name+" --as-default --restart") {
			t.Errorf("nvidia-ctk has made its handler the default of %s, and doctor prints\n%s", e.name, text)
		}
		if e.later != e.first {
			// configure demands this, because the file is read after its own
			must(t, os.Remove(filepath.Join(dir, e.later)))
		}
		ours()
		s.eventually("/metrics", gauge("1"))
		nvidia(e.first)
		if e.first == e.later {
			s.eventually("/metrics", gauge("0"))
			ours()
		}
		s.eventually("/metrics", gauge("1"))
		times := 1
		if e.first == e.later {
			times = 2
		}
		if f, o := count("found")-found, count("over")-over; f != times || o != times {
			t.Errorf("%s: it is reported %d times, and its end %d times, want %d", e.name, f, o, times)
		}
	}
}
