package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/inject"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/internal/tokens"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// The states are as runc 1.1.5, runc 1.5 and crun 1.8.1 wrote them.
func TestParseState(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       State
		fails      bool
	}{
		{"runc", `{"ociVersion":"1.0.2-dev","id":"c","status":"creating","pid":4334,"bundle":"/b"}`, State{"c", 4334, "/b"}, false},
		{"newer runc", `{"ociVersion":"1.3.0","id":"c","status":"creating","pid":7,"bundle":"/b","annotations":{"a":"b"}}`, State{"c", 7, "/b"}, false},
		{"crun", `{"ociVersion":"1.0","id":"c","pid":4441,"root":"rootfs","bundle":"/b","status":"created"}`, State{"c", 4441, "/b"}, false},
		{"runc at poststop", `{"ociVersion":"1.0.2-dev","id":"c","status":"stopped","bundle":"/b"}`, State{"c", 0, "/b"}, false},
		{"annotations that are no UTF-8", "{\"id\":\"c\",\"bundle\":\"/b\",\"annotations\":{\"a\":\"\xff\"}}", State{"c", 0, "/b"}, false},
		{"nothing", ``, State{}, true},
		{"a list", `[]`, State{}, true},
		{"an id that is a path", `{"id":"../c","bundle":"/b"}`, State{}, true},
		{"an id that is a directory", `{"id":"..","bundle":"/b"}`, State{}, true},
		{"no id", `{"bundle":"/b"}`, State{}, true},
		{"a relative bundle", `{"id":"c","bundle":"b"}`, State{}, true},
		{"a bundle with a zero", `{"id":"c","bundle":"/b\u0000"}`, State{}, true},
		{"a pid below zero", `{"id":"c","bundle":"/b","pid":-1}`, State{}, true},
		{"a pid that is none", `{"id":"c","bundle":"/b","pid":1.5}`, State{}, true},
		{"two ids", `{"id":"c","id":"d","bundle":"/b"}`, State{}, true},
		{"something behind it", `{"id":"c","bundle":"/b"}{}`, State{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseState([]byte(c.data))
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestStatesAreReadAsTheLibraryReadsThem(t *testing.T) {
	parse := func(data []byte) (s State, err error) {
		err = tokens.AnyUTF8(data, s.read)
		return s, err
	}
	tokenstest.Reads(t, parse, []json.Options{jsontext.AllowInvalidUTF8(true)}, tokenstest.Filled[State](nil))
}

// FuzzParseState: no state makes the hook panic or read outside the runtime's root.
func FuzzParseState(f *testing.F) {
	for _, seed := range []string{`{"ociVersion":"1.0","id":"c","pid":1,"root":"rootfs","bundle":"/b",` +
		`"status":"created","annotations":{}}`, `{"id":"/","bundle":"/"}`, `[[[[`, `{"id":"\u0000"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseState(data)
		if err == nil && (s.ID == "" || strings.ContainsAny(s.ID, "/\x00") || s.ID == "." || s.ID == ".." ||
			s.PID < 0 || !strings.HasPrefix(s.Bundle, "/")) {
			t.Errorf("%q is read as %+v", data, s)
		}
		if err != nil && !utf8.ValidString(errorLine(err)) {
			t.Errorf("%q: %q", data, errorLine(err))
		}
	})
}

func number(n int64) *int64 { return &n }

// given returns an unedited spec, with the devices and rules of the arguments.
func given(devices []specs.LinuxDevice, rules ...specs.LinuxDeviceCgroup) request.Spec {
	return request.Spec{Process: &request.Process{Env: []string{"A=1", "A=2"}},
		Linux: &request.Linux{Devices: devices,
			Resources: &request.Resources{Devices: append([]specs.LinuxDeviceCgroup{{Access: "rwm"}},
				rules...)}}}
}

func edits(e cdispec.ContainerEdits) node.Decision {
	return node.Decision{Verdict: grant.Verdict{Kind: grant.Admit, Edits: e}}
}

func TestChanges(t *testing.T) {
	gpu := &cdispec.DeviceNode{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, Permissions: "rw"}
	control := &cdispec.DeviceNode{Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255,
		Permissions: "rw"}
	file := &cdispec.Mount{HostPath: "/lib/libcuda.so.1", ContainerPath: "/usr/lib/libcuda.so.1",
		Options: []string{"ro", "bind"}}
	allow := grant.DeviceRule{Allow: true, Type: 'c', Major: 195, Minor: 0, Access: "rw"}
	device := specs.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0}
	rule := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: number(195),
		Minor: number(0), Access: "rwm"}
	removes := func(kind grant.RemovalKind, name string) node.Decision {
		return node.Decision{Verdict: grant.Verdict{Kind: grant.Admit,
			Removed: []grant.Removal{{Kind: kind, Name: name}}}}
	}
	granted := edits(cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{gpu},
		Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-0"}})
	narrow := granted
	narrow.Narrow, narrow.Others = true, []grant.DeviceRule{{Allow: true, Type: 'c', Major: 1,
		Minor: -1, Access: "rwm"}}
	narrow.Close = []grant.DeviceRule{{Type: 'c', Major: 195, Minor: -1, Access: "rw"}}
	wide := removes(grant.RemoveRule, "c *:*")
	wide.Close, wide.Others = narrow.Close, narrow.Others
	limit := &cdispec.Hook{HookName: "createRuntime", Path: "/limit", Args: []string{"limit", "set"}}
	hooked := func(arg string) request.Spec {
		s := given(nil)
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/limit", Args: []string{"limit", arg}}}}
		return s
	}
	mounted := given(nil)
	mounted.Mounts = []specs.Mount{{Destination: "/usr/lib/libcuda.so.1", Source: "/lib/libcuda.so.1"}}
	for _, c := range []struct {
		name  string
		spec  request.Spec
		d     node.Decision
		want  inject.Change
		fails string
	}{
		{"a grant that nothing was done about", given(nil), granted,
			inject.Change{Nodes: []*cdispec.DeviceNode{gpu}, Allow: []grant.DeviceRule{allow}}, ""},
		{"a spec without anything", request.Spec{}, granted,
			inject.Change{Nodes: []*cdispec.DeviceNode{gpu}, Allow: []grant.DeviceRule{allow}}, ""},
		{"CDI has put in all of it", given([]specs.LinuxDevice{device}, rule), granted, inject.Change{}, ""},
		{"the node alone is there", given([]specs.LinuxDevice{device}), granted,
			inject.Change{Allow: []grant.DeviceRule{allow}}, ""},
		{"the rule alone is there", given(nil, rule), granted,
			inject.Change{Nodes: []*cdispec.DeviceNode{gpu}}, ""},
		{"the rule is denied again", given([]specs.LinuxDevice{device}, rule,
			specs.LinuxDeviceCgroup{Type: "c", Major: number(195), Minor: number(0), Access: "rwm"}), granted,
			inject.Change{Allow: []grant.DeviceRule{allow}}, ""},
		{"the rule lacks an access", given([]specs.LinuxDevice{device},
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: number(195), Minor: number(0),
				Access: "r"}), granted, inject.Change{Allow: []grant.DeviceRule{allow}}, ""},
		{"one of two rules is there", given([]specs.LinuxDevice{device}, rule),
			edits(cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{gpu, control}}),
			inject.Change{Nodes: []*cdispec.DeviceNode{control}, Allow: []grant.DeviceRule{allow,
				{Allow: true, Type: 'c', Major: 195, Minor: 255, Access: "rw"}}}, ""},
		{"the path is another node", given([]specs.LinuxDevice{
			{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 1}}, rule), granted,
			inject.Change{Nodes: []*cdispec.DeviceNode{gpu}}, ""},
		{"a mount", given(nil), edits(cdispec.ContainerEdits{Mounts: []*cdispec.Mount{file}}),
			inject.Change{Mounts: []*cdispec.Mount{file}}, ""},
		{"a mount that is there", mounted, edits(cdispec.ContainerEdits{Mounts: []*cdispec.Mount{file}}),
			inject.Change{}, ""},
		{"rules too wide", given([]specs.LinuxDevice{device}, rule), narrow,
			inject.Change{Allow: []grant.DeviceRule{allow}, Others: narrow.Others,
				Close: narrow.Close}, ""},
		{"GPUs hidden", given(nil), edits(cdispec.ContainerEdits{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}), inject.Change{}, ""},
		{"a variable that is there", given(nil), edits(cdispec.ContainerEdits{Env: []string{"A=2"}}),
			inject.Change{}, ""},
		{"a variable that another hides", given(nil), edits(cdispec.ContainerEdits{Env: []string{"A=1"}}),
			inject.Change{}, "A"},
		{"a variable that is not", given(nil), edits(cdispec.ContainerEdits{
			Env: []string{"CUDA_MPS_PIPE_DIRECTORY=/p"}}), inject.Change{}, "CUDA_MPS_PIPE_DIRECTORY"},
		{"a hook", given(nil), edits(cdispec.ContainerEdits{Hooks: []*cdispec.Hook{limit}}),
			inject.Change{}, "/limit"},
		{"a hook that is there", hooked("set"), edits(cdispec.ContainerEdits{Hooks: []*cdispec.Hook{limit}}),
			inject.Change{}, ""},
		{"a hook that is there for something else", hooked("clear"),
			edits(cdispec.ContainerEdits{Hooks: []*cdispec.Hook{limit}}), inject.Change{}, "/limit"},
		{"a group", given(nil), edits(cdispec.ContainerEdits{AdditionalGIDs: []uint32{44}}),
			inject.Change{}, "44"},
		{"an injector's variable", given(nil), removes(grant.RemoveEnv, "NVIDIA_IMEX_CHANNELS"),
			inject.Change{}, ""},
		{"a variable that the driver obeys", given(nil), removes(grant.RemoveEnv, "CUDA_MPS_CLIENT_PRIORITY"),
			inject.Change{}, "CUDA_MPS_CLIENT_PRIORITY"},
		{"a node too many", given(nil), removes(grant.RemoveDevice, "/dev/x"),
			inject.Change{Remove: []string{"/dev/x"}}, ""},
		{"a rule too many", given(nil), removes(grant.RemoveRule, "c 195:254"),
			inject.Change{Close: []grant.DeviceRule{{Type: 'c', Major: 195, Minor: 254, Access: "rw"}}}, ""},
		{"a rule for all of a major", given(nil), removes(grant.RemoveRule, "c 195:*"),
			inject.Change{Close: []grant.DeviceRule{{Type: 'c', Major: 195, Minor: -1, Access: "rw"}}}, ""},
		{"a rule for more than GPUs", given(nil), wide, inject.Change{Close: narrow.Close,
			Others: narrow.Others}, ""},
		{"a rule that is odd", given(nil), removes(grant.RemoveRule, "a *:*"),
			inject.Change{}, "internal error"},
		{"an injector's hook", given(nil), removes(grant.RemoveHook, "/nvidia-ctk"),
			inject.Change{}, "/nvidia-ctk"},
		{"a mount too many", given(nil), removes(grant.RemoveMount, "/m"), inject.Change{}, "/m"},
		{"an injector's annotation", given(nil), removes(grant.RemoveAnnotation, "cdi.k8s.io/x"),
			inject.Change{}, ""},
		{"an annotation", given(nil), removes(grant.RemoveAnnotation, "a"), inject.Change{}, "annotation"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := changes(c.spec, c.d, nil, node.ServerLimits{})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("got %v, want an error about %s", err, c.fails)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%v, got\n%+v\nwant\n%+v", err, got, c.want)
			}
		})
	}
}

// TestBesideNVIDIAsHook: the hook that NVIDIA's toolkit puts into every container of a node keeps
// no container from its grant that it does nothing for. What it does was read in the toolkit's
// source.
func TestBesideNVIDIAsHook(t *testing.T) {
	const theirs = "/usr/bin/nvidia-container-runtime-hook"
	d := node.Decision{Verdict: grant.Verdict{Kind: grant.Admit,
		Edits:   cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-0"}},
		Removed: []grant.Removal{{Kind: grant.RemoveHook, Name: theirs}}}}
	for _, c := range []struct {
		env     []string
		mounted string
		acts    bool
	}{
		{env: []string{"PATH=/bin"}},
		{env: []string{"NVIDIA_VISIBLE_DEVICES="}},
		{env: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		{env: []string{"NVIDIA_VISIBLE_DEVICES=void", "CUDA_VERSION=11.0"}},
		{env: []string{"CUDA_VERSION=11.0", "NVIDIA_REQUIRE_CUDA=cuda>=11.0"}},
		{env: []string{"NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_GDS=enabled"}},
		{env: []string{"SWARM_GPU=void"}},
		{env: []string{"NVIDIA_VISIBLE_DEVICES=none"}, acts: true}, // it gives the driver's files
		{env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-0"}, acts: true},
		{env: []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"}, acts: true},
		{env: []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0"}, acts: true},
		{env: []string{"NVIDIA_VISIBLE_DEVICES=void,0"}, acts: true},
		{env: []string{"SWARM_GPU=0"}, acts: true},
		{env: []string{"CUDA_VERSION=9.0"}, acts: true},
		{env: []string{"CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA="}, acts: true},
		{env: []string{"CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9.0", "NVIDIA_REQUIRE_CUDA="}, acts: true},
		{env: []string{"no variable"}, acts: true},
		{mounted: "/var/run/nvidia-container-devices/0", acts: true},
	} {
		s := given(nil)
		s.Process.Env = c.env
		//lint:ignore SA1019 what NVIDIA's toolkit writes
		s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: theirs, Args: []string{theirs, "prestart"}}}}
		if c.mounted != "" {
			s.Mounts = []specs.Mount{{Destination: c.mounted, Source: "/dev/null"}}
		}
		_, err := changes(s, d, []string{"SWARM_GPU"}, node.ServerLimits{})
		if (err != nil) != c.acts || err != nil && !strings.Contains(err.Error(), theirs) {
			t.Errorf("%v %s: %v", c.env, c.mounted, err)
		}
	}
	d.Removed[0].Name = "/usr/bin/nvidia-ctk"
	if _, err := changes(given(nil), d, nil, node.ServerLimits{}); err == nil {
		t.Error("a hook that injects what it was made for may stay")
	}
}

// TestMPSWithoutVariables: a client needs no variable that says what its daemon does without it.
func TestMPSWithoutVariables(t *testing.T) {
	pipe := &cdispec.Mount{HostPath: "/run/gpuledger/mps/x/pipe", ContainerPath: grant.PipeInContainer}
	d := edits(cdispec.ContainerEdits{Mounts: []*cdispec.Mount{pipe}, Env: []string{
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M",
		"CUDA_MPS_PIPE_DIRECTORY=" + grant.PipeInContainer, "NVIDIA_VISIBLE_DEVICES=GPU-0"}})
	all := node.ServerLimits{Known: true, Threads: true, Memory: true}
	for _, c := range []struct {
		name    string
		servers node.ServerLimits
		shim    bool
		env, at string
		fails   string
	}{
		{name: "the largest grant", servers: all},
		{name: "a smaller share of compute", servers: node.ServerLimits{Known: true, Memory: true},
			fails: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"},
		{name: "less memory", servers: node.ServerLimits{Known: true, Threads: true},
			fails: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"},
		{name: "less memory, which the shim limits", servers: node.ServerLimits{Known: true, Threads: true},
			shim: true},
		{name: "no daemon", fails: "CUDA_MPS_"},
		{name: "what the grant says", servers: all, env: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"},
		{name: "a variable of its own", servers: all, env: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
			fails: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"},
		{name: "a directory of its own", servers: all, env: "CUDA_MPS_PIPE_DIRECTORY=/tmp/mine",
			fails: "CUDA_MPS_PIPE_DIRECTORY"},
		{name: "a volume there", servers: all, at: "/tmp/nvidia-mps/", fails: "/tmp/nvidia-mps"},
		{name: "a volume below", servers: all, at: "/tmp/nvidia-mps/x", fails: "/tmp/nvidia-mps/x"},
		{name: "a volume beside", servers: all, at: "/tmp/nvidia-mps2"},
		{name: "a volume above", servers: all, at: "/tmp"},
	} {
		s := given(nil)
		if c.env != "" {
			s.Process.Env = append(s.Process.Env, c.env)
		}
		if c.at != "" {
			s.Mounts = []specs.Mount{{Destination: c.at, Source: "/srv"}}
		}
		d.Limited = c.shim
		_, err := changes(s, d, nil, c.servers)
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestPossible(t *testing.T) {
	spec := func(edit func(*request.Spec)) request.Spec {
		s := given(nil)
		s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}}
		s.Mounts = []specs.Mount{{Destination: "/dev", Type: "tmpfs"}}
		edit(&s)
		return s
	}
	nodes, rules := inject.Change{Remove: []string{"/dev/x"}}, inject.Change{Close: []grant.DeviceRule{{}}}
	create := oci.Command{Name: "create"}
	for _, c := range []struct {
		name    string
		spec    request.Spec
		change  inject.Change
		command oci.Command
		ok      bool
	}{
		{"nodes", spec(func(*request.Spec) {}), nodes, create, true},
		{"rules", spec(func(*request.Spec) {}), rules, create, true},
		{"nodes under systemd", spec(func(*request.Spec) {}), nodes,
			oci.Command{Name: "create", Systemd: true}, true},
		{"rules under systemd", spec(func(*request.Spec) {}), rules,
			oci.Command{Name: "create", Systemd: true}, true},
		{"restore", spec(func(*request.Spec) {}), rules, oci.Command{Name: "restore"}, false},
		{"a user namespace", spec(func(s *request.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		}), rules, create, false},
		{"another's mount namespace", spec(func(s *request.Spec) {
			s.Linux.Namespaces[0].Path = "/proc/1/ns/mnt"
		}), rules, create, false},
		{"the host's mount namespace", spec(func(s *request.Spec) { s.Linux.Namespaces = nil }),
			rules, create, false},
		{"the host's /dev", spec(func(s *request.Spec) {
			s.Mounts[0] = specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev"}
		}), nodes, create, false},
		{"a tmpfs that is a bind", spec(func(s *request.Spec) { s.Mounts[0].Options = []string{"rbind"} }),
			nodes, create, false},
		{"a bind over the tmpfs", spec(func(s *request.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/", Type: "bind", Source: "/x"})
		}), nodes, create, false},
		{"the host's /dev, where only rules change", spec(func(s *request.Spec) { s.Mounts = nil }),
			rules, create, true},
	} {
		if err := possible(c.spec, c.change, caller{Command: c.command}); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestComplaintIsOneShortLine(t *testing.T) {
	for _, err := range []error{
		errors.New("a\nb\x1b[2J"),
		&grant.Refusal{Code: grant.GPUEnv, Message: strings.Repeat("ä", 2000), Hint: "h"},
		&grant.Refusal{Code: grant.GPUEnv, Message: strings.Repeat("x", 300), Hint: strings.Repeat("y", 300)},
	} {
		if got := errorLine(err); strings.ContainsAny(got, "\n\x1b") ||
			utf8.RuneCountInString(got) > maxErrorLine+3 || strings.Contains(got, "y") {
			t.Errorf("%q", got)
		}
	}
	if got, want := errorLine(&grant.Refusal{Code: grant.GPUEnv, Message: "m", Hint: "h"}),
		"gpuledger: refused (gpu-env): m; hint: h"; got != want {
		t.Errorf("%q", got)
	}
}

// TestIsNameless: the hook writes only to what the runtime made for it, not to a file that a tenant
// had opened by a path.
func TestIsNameless(t *testing.T) {
	open := func(path string, flags int) int {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sockets[0])
	defer unix.Close(sockets[1])
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		fd   int
		want bool
	}{
		{"a pipe, as runc's", int(w.Fd()), true},
		{"a socket", sockets[0], true},
		{"the null device, as crun's", open("/dev/null", unix.O_RDWR), false},
		{"a file", open(filepath.Join(t.TempDir(), "file"), unix.O_CREAT|unix.O_WRONLY), false},
		{"a FIFO", open(fifo, unix.O_RDWR), false},
		{"another's pipe, by its name in /proc", open(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND), false},
		{"nothing", -1, false},
	} {
		if got := isNameless(c.fd); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A runtime that cannot be identified has no ancestors that are known.
func TestInjectingForAnUnknownRuntime(t *testing.T) {
	config := []byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}`)
	asked := node.Create{Config: config, Live: &node.Live{Unknown: errors.New("called through a script")}}
	c := &call{node: &node.Node{}}
	if changed, refusal := c.inject(asked, node.Decision{Config: config}, 1, caller{}); changed ||
		refusal != nil {
		t.Errorf("changed: %v, %v", changed, refusal)
	}
}
