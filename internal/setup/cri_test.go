package setup

import (
	"encoding/binary"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// TestContainerdWithoutItsPlugin: containerd runs without the service for the kubelet if its
// default handler is not defined, and the set-up sees that.
func TestContainerdWithoutItsPlugin(t *testing.T) {
	if _, err := exec.LookPath("containerd"); err != nil || os.Geteuid() != 0 {
		t.Skip("no containerd, or not root: that a real one without its plugin is seen is not shown")
	}
	for handler, want := range map[string]bool{"runc": true, "gone": false} {
		dir := short(t)
		config := filepath.Join(dir, "config.toml")
		text := `version = 2
root = "` + dir + `/root"
state = "` + dir + `/state"
[grpc]
address = "` + dir + `/s"
[plugins."io.containerd.internal.v1.opt"]
path = "` + dir + `/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "` + dir + `/cni"
conf_dir = "` + dir + `/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "` + handler + `"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
`
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("containerd", "--config", config)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var has, known bool
		for end := time.Now().Add(time.Minute); !known && time.Now().Before(end); {
			time.Sleep(time.Second / 10)
			has, known = serves(dir + "/s")
		}
		if !known || has != want {
			t.Errorf("default handler %s: it serves the kubelet: %v, known %v", handler, has, known)
		}
		if r, err := runsWith(dir + "/s"); (err == nil) != want || want && r.Containerd.Default != "runc" {
			t.Errorf("default handler %s: it runs with %+v, %v", handler, r, err)
		} else if _, has := r.Containerd.Handlers["runc"]; has != want {
			t.Errorf("default handler %s: it runs with %+v", handler, r)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// short is a directory whose path leaves room for a socket's name.
func short(t *testing.T) string {
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestEngineThatLosesItsService: after the restart containerd's unit is active, and it serves the
// kubelet no more with gpuledger's edits in its files. They are taken back, also by the run after
// one that was killed there. An older set-up wrote nothing into its mark.
func TestEngineThatLosesItsService(t *testing.T) {
	const socket, due = "/run/containerd/containerd.sock", restartDue + "containerd"
	for name, row := range map[string]struct {
		mark         string // "-": none
		edited       bool   // by a run that was killed
		breaks, lost bool   // the engine, by a restart with the edits; before this run
	}{
		"it goes on":                          {"-", false, false, false},
		"it is lost":                          {"-", false, true, false},
		"a run was killed after its restart":  {socket, true, true, true},
		"a run was killed before its restart": {socket, true, true, false},
		"an older run was":                    {"", true, true, false},
		"it goes on after one was killed":     {socket, true, false, false},
	} {
		s := newMachine(t)
		s.write("node/usr/bin/systemctl", showsEngine)
		if row.mark != "-" {
			s.write("node"+due, row.mark)
		}
		edited := s.dir + "/node/etc/engine.conf"
		if row.edited {
			s.write("node/etc/engine.conf", "ours\n")
		}
		serveCRI(t, s.dir+"/node"+socket, withUs, func() string {
			if row.breaks && exists(edited) && (row.lost || len(restarts(s.calls())) > 0) {
				return grpcUnimplemented
			}
			return grpcOK
		})
		status, out := s.run("install", "--engine=containerd")
		const prints = "cannot restart containerd: engine.service runs, and serves the kubelet no more; " +
			"its files are as before, and it runs again"
		if (status == 0) == row.breaks || strings.Contains(out, prints) != row.breaks ||
			exists(edited) == row.breaks {
			t.Errorf("%s: status %d, the edits stay: %v\n%s", name, status, exists(edited), out)
		}
		if exists(s.dir + "/node" + due) {
			t.Errorf("%s: a restart is due", name)
		}
	}
}

// withUs is a part of what containerd runs with, where gpuledger is its default handler.
const withUs = `{"containerd": {"defaultRuntimeName": "gpuledger",
	"runtimes": {"runc": {}, "gpuledger": {}}}}`

// TestRunsWithOtherFiles: the node is not set up, whatever the files say that
// configure edited. An engine that does not say what it runs with passes.
func TestRunsWithOtherFiles(t *testing.T) {
	const without = `{"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {}}}}`
	const notDefault = `{"containerd": {"defaultRuntimeName": "runc",
		"runtimes": {"runc": {}, "gpuledger": {}}}}`
	for name, row := range map[string]struct {
		configs   []string // one a socket
		asDefault bool
		prints    string // "": it is set up
	}{
		"with us":                       {[]string{withUs}, true, ""},
		"with us, and not as default":   {[]string{notDefault}, false, ""},
		"without us":                    {[]string{without}, true, "without the handler gpuledger: its containers"},
		"without us, and not asked":     {[]string{without}, false, "runs without the handler gpuledger"},
		"with another default":          {[]string{notDefault}, true, `runs with the default handler "runc"`},
		"it does not say":               {[]string{""}, true, ""},
		"it says something else":        {[]string{`{"sandboxImage": "pause"}`}, true, ""},
		"it says nothing of that":       {[]string{"not JSON"}, true, ""},
		"another one is there, too":     {[]string{without, withUs}, true, ""},
		"neither has us":                {[]string{notDefault, without}, true, "runs without the handler gpuledger"},
		"one has us, and one is silent": {[]string{"", withUs}, true, ""},
	} {
		s := newMachine(t)
		for i, config := range row.configs {
			serveCRI(t, s.dir+"/node"+sockets[i].path, config, func() string { return grpcOK })
		}
		args := []string{"install", "--engine=containerd"}
		if row.asDefault {
			args = append(args, "--as-default")
		}
		status, out := s.run(args...)
		if (status == 0) != (row.prints == "") || !strings.Contains(out, row.prints) {
			t.Errorf("%s: status %d\n%s", name, status, out)
		}
		if started := slices.Contains(s.calls(), "systemctl start gpuledgerd.service"); !started {
			t.Errorf("%s: gpuledgerd is not started: %q", name, s.calls())
		}
	}
}

// FuzzInfo: no answer makes the reader of answers panic.
func FuzzInfo(f *testing.F) {
	f.Add(status(withUs))
	f.Add([]byte{0x12, 0x80})
	f.Fuzz(func(t *testing.T, answer []byte) {
		if value, err := infoOf(answer, "config"); err == nil && len(value) > len(answer) {
			t.Errorf("%q of %q", value, answer)
		}
	})
}

// status is a StatusResponse with a configuration.
func status(config string) []byte {
	text := func(b []byte, n protowire.Number, text string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), text)
	}
	all := text(nil, 1, "\x0a\x00") // RuntimeStatus
	for _, entry := range [][2]string{{"golang", "go"}, {"config", config}} {
		all = text(all, 2, string(text(text(nil, 1, entry[0]), 2, entry[1])))
	}
	return all
}

// serveCRI answers at a socket with the code that of gives, and says that it runs with config; if
// that is "", it says nothing.
func serveCRI(t *testing.T, socket, config string, of func() string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			var answer []byte
			code := of()
			switch r.URL.Path {
			case "/runtime.v1.RuntimeService/Version":
			case "/runtime.v1.RuntimeService/Status":
				if answer = status(config); config == "" {
					code = grpcUnimplemented
				}
			default:
				t.Errorf("it asks for %s", r.URL.Path)
			}
			w.Header().Set("Trailer", grpcStatus)
			_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(answer))), answer...))
			w.Header().Set(grpcStatus, code)
		})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}
