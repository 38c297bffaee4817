package gpu_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// node returns an inventory of two GPUs, unsorted, one of them partitioned.
func node() grant.Inventory {
	return grant.Inventory{
		Version: 1,
		Taken:   time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC),
		BootID:  "boot-a",
		Source:  "nvml",
		Driver:  grant.Driver{Version: "580.142", CUDA: "13.0", Root: "/"},
		Majors:  map[string]int{"nvidia-uvm": 510, "nvidia": 195},
		GPUs: []grant.GPU{
			{UUID: "GPU-b", Index: 1, Minor: 0, Name: "B", Memory: 80 * grant.GiB, NUMA: -1, Health: "ok",
				MIG: []grant.MIGDevice{
					{UUID: "MIG-b", Profile: "1g.10gb", Memory: 10 * grant.GiB, GI: 7},
				}},
			{UUID: "GPU-a", Index: 0, Minor: 1, Name: "A", Memory: 16 * grant.GiB, PCI: "0000:3b:00.0",
				Render: []string{"/dev/dri/renderD128"}, Health: "ok"},
		},
	}
}

func TestWriteThenRead(t *testing.T) {
	path := gpu.Path(filepath.Join(t.TempDir(), "state"))
	inv := node()
	if err := gpu.Write(path, inv); err != nil {
		t.Fatal(err)
	}
	if inv.GPUs[0].UUID != "GPU-b" {
		t.Error("Write sorted its caller's GPUs")
	}
	got, err := gpu.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := node()
	want.GPUs[0], want.GPUs[1] = want.GPUs[1], want.GPUs[0]
	want.GPUs[0].MIG, want.GPUs[1].Render = []grant.MIGDevice{}, []string{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for path, mode := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v (%v)", path, info.Mode(), mode, err)
		}
	}
}

// TestFormat compares the file with its documented format.
func TestFormat(t *testing.T) {
	path := gpu.Path(t.TempDir())
	if err := gpu.Write(path, node()); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := json.Compact(&got, written); err != nil {
		t.Fatal(err)
	}
	const want = `{"version":1,"taken":"2026-11-20T08:00:00Z","boot_id":"boot-a","source":"nvml",` +
		`"driver":{"version":"580.142","cuda":"13.0","root":"/"},"majors":{"nvidia":195,` +
		`"nvidia-uvm":510},"gpus":[` +
		`{"uuid":"GPU-a","index":0,"minor":1,"name":"A","memory":17179869184,"pci":"0000:3b:00.0","numa":0,` +
		`"render":["/dev/dri/renderD128"],"mig":[],"health":"ok"},` +
		`{"uuid":"GPU-b","index":1,"minor":0,"name":"B","memory":85899345920,"pci":"","numa":-1,` +
		`"render":[],` +
		`"mig":[{"uuid":"MIG-b","profile":"1g.10gb","memory":10737418240,"gi":7,"ci":0}],"health":"ok"}]}`
	if got.String() != want {
		t.Errorf("got  %s\nwant %s", &got, want)
	}
	if !bytes.HasSuffix(written, []byte("}\n")) {
		t.Error("the file does not end with a line end")
	}
}

func TestANodeWithoutGPUsHasAnInventory(t *testing.T) {
	path := gpu.Path(t.TempDir())
	if err := gpu.Write(path, grant.Inventory{BootID: "b", Source: "nvml"}); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); !bytes.Contains(text, []byte(`"gpus": []`)) {
		t.Errorf("no list is not an empty one in %s", text)
	}
	if _, err := gpu.Read(path); err != nil {
		t.Error(err)
	}
}

func TestABadInventoryLeavesTheOldOne(t *testing.T) {
	path := gpu.Path(t.TempDir())
	if err := gpu.Write(path, node()); err != nil {
		t.Fatal(err)
	}
	bad := node()
	bad.GPUs[1].UUID = "GPU-b"
	if err := gpu.Write(path, bad); err == nil ||
		!strings.Contains(err.Error(), `UUID "GPU-b" is another GPU's`) {
		t.Errorf("got %v", err)
	}
	if _, err := gpu.Read(path); err != nil {
		t.Errorf("the old inventory was removed: %v", err)
	}
}

// good is a valid snapshot; each row of readings makes one part of it invalid.
const good = `{"version":1,"taken":"2026-11-20T08:00:00Z","boot_id":"b","source":"nvml",` +
	`"driver":{"version":"","cuda":"","root":"/"},"majors":{"nvidia":195},"gpus":[` +
	`{"uuid":"GPU-a","index":0,"minor":0,"name":"A","memory":4096,"pci":"","numa":0,` +
	`"render":["/dev/dri/card0"],` +
	`"mig":[{"uuid":"MIG-a","profile":"p","memory":1,"gi":1,"ci":0}],"health":"ok"},` +
	`{"uuid":"GPU-b","index":1,"minor":1,"name":"B","memory":4096,"pci":"","numa":0,"render":[],"mig":[],` +
	`"health":"ok"}]}`

// with returns the good snapshot with one text replaced.
func with(t testing.TB, old, new string) string {
	t.Helper()
	if !strings.Contains(good, old) {
		t.Fatalf("the snapshot has no %s to replace", old)
	}
	return strings.Replace(good, old, new, 1)
}

var readings = []struct {
	name string
	old  string
	new  string
	want string // part of the error; "": none
}{
	{"as it should be", "", "", ""},
	{"an unknown field", `"version"`, `"sockets":2,"version"`, ""},
	{"an unknown field of a GPU", `"index":0`, `"vbios":"x","index":0`, ""},
	{"an unhealthy GPU without memory", `"memory":4096,"pci":"","numa":0,"render":[],"mig":[],"health":"ok"`, `"memory":0,"health":"lost"`, ""},
	{"an empty file", good, "", "EOF"},
	{"half a file", `"health":"ok"}]}`, "", "EOF"},
	{"something after the end", `"health":"ok"}]}`, `"health":"ok"}]} {}`, "after top-level value"},
	{"no version", `"version":1,`, "", "no version"},
	{"a newer version", `"version":1`, `"version":2`, "its version is 2 and this gpuledger knows 1"},
	{"a newer version with other types", `"version":1,"taken":"2026-11-20T08:00:00Z"`, `"version":3,"taken":{}`, "its version is 3"},
	{"a key twice", `"boot_id":"b"`, `"boot_id":"b","boot_id":"c"`, "duplicate"},
	{"no boot id", `"boot_id":"b"`, `"boot_id":""`, "no boot id"},
	{"a boot id spelt otherwise", `"boot_id"`, `"Boot_ID"`, "no boot id"},
	{"no source", `"source":"nvml"`, `"source":""`, "no source"},
	{"a major of 13 bits", `"nvidia":195`, `"nvidia":4096`, `major 4096 of "nvidia"`},
	{"a major below 0", `"nvidia":195`, `"nvidia":-1`, `major -1 of "nvidia"`},
	{"a driver file", `"root":"/"`, `"root":"/","files":[{"path":"/l/libcuda.so.1","kind":"library","target":"/l","names":["libcuda.so.1","vdpau/x.so"]}]`, ""},
	{"a driver file at no absolute path", `"root":"/"`, `"root":"/","files":[{"path":"l/libcuda.so.1","kind":"binary","target":"/l"}]`, `driver file "l/libcuda.so.1": its path is not absolute`},
	{"a driver file that leads up", `"root":"/"`, `"root":"/","files":[{"path":"/l/../../x","kind":"binary","target":"/l"}]`, "its path is not absolute and plain"},
	{"a driver file for a place that is none", `"root":"/"`, `"root":"/","files":[{"path":"/l","kind":"binary","target":"/l/"}]`, `its target "/l/" is not absolute and plain`},
	{"a library without a name", `"root":"/"`, `"root":"/","files":[{"path":"/l","kind":"library","target":"/l"}]`, "it has no name"},
	{"a library whose name leads up", `"root":"/"`, `"root":"/","files":[{"path":"/l","kind":"library","target":"/l","names":["../x.so"]}]`, `its name "../x.so" is not below a directory`},
	{"no UUID", `"GPU-a"`, `""`, `UUID ""`},
	{"a UUID that is a path", `"GPU-a"`, `"GPU/../a"`, `UUID "GPU/../a"`},
	{"a UUID that is an index", `"GPU-a"`, `"1"`, `UUID "1"`},
	{"a UUID with a comma", `"GPU-a"`, `"GPU-a,all"`, `UUID "GPU-a,all"`},
	{"a UUID that is hidden", `"GPU-a"`, `".a"`, `UUID ".a"`},
	{"a UUID that is too long", `"GPU-a"`, `"` + strings.Repeat("G", 97) + `"`, "UUID"},
	{"a UUID twice", `"GPU-b"`, `"GPU-a"`, `GPU 2 of the list: UUID "GPU-a" is another GPU's`},
	{"a MIG device with a GPU's UUID", `"MIG-a"`, `"GPU-a"`, `MIG device "p": UUID "GPU-a" is another GPU's`},
	{"an index twice", `"index":1`, `"index":0`, "index 0 is another GPU's"},
	{"an index below 0", `"index":1`, `"index":-1`, "index -1"},
	{"a minor twice", `"minor":1`, `"minor":0`, "minor 0 is another GPU's"},
	{"the minor of a control node", `"minor":1`, `"minor":255`, "minor 255"},
	{"no memory", `"memory":4096`, `"memory":0`, "no memory"},
	{"memory below 0", `"memory":4096`, `"memory":-1`, "/gpus/0/memory"},
	{"no health", `"health":"ok"`, `"health":""`, "no health"},
	{"a DRM node that is elsewhere", `/dev/dri/card0`, `/dev/sda`, `"/dev/sda" is no DRM node`},
	{"a DRM node that is a path", `/dev/dri/card0`, `/dev/dri/../sda`, "no DRM node"},
	{"a MIG device without memory", `"memory":1,`, "", `MIG device "p": it has no memory`},
	{"a MIG instance below 0", `"gi":1`, `"gi":-1`, `MIG device "p": instance -1/0`},
	{"a capability with minor 0", `"ci":0}`, `"ci":0,"caps":[66,0]}`, `MIG device "p": capability minors [66 0] are not 1 to 1048575`},
	{"a capability beyond a minor", `"ci":0}`, `"ci":0,"caps":[66,1048576]}`, `MIG device "p": capability minors [66 1048576] are not`},
	{"a link elsewhere", `"mig":[`, `"links":["/dev/dri/by-path/pci-../../sda"],"mig":[`, `is no link to a DRM node`},
}

func TestRead(t *testing.T) {
	for _, tt := range readings {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "inventory.json")
			if err := os.WriteFile(path, []byte(with(t, tt.old, tt.new)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := gpu.Read(path)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			case tt.want != "" && !strings.HasPrefix(err.Error(), "cannot read the inventory "+path+": "):
				t.Errorf("%q does not begin with what can't be done", err)
			}
		})
	}
}

func TestReadTooMuch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inventory.json")
	if err := os.WriteFile(path, bytes.Repeat([]byte(" "), 4<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gpu.Read(path); err == nil || !strings.Contains(err.Error(), "larger than 4194304 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestReadNothing(t *testing.T) {
	if _, err := gpu.Read(filepath.Join(t.TempDir(), "inventory.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want an error that the file does not exist", err)
	}
}

// FuzzRead: no file makes Read panic, and what Read accepts can be written and read again.
func FuzzRead(f *testing.F) {
	for _, tt := range readings {
		f.Add([]byte(with(f, tt.old, tt.new)))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "inventory.json")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		inv, err := gpu.Read(path)
		if err != nil {
			return
		}
		again := filepath.Join(dir, "again.json")
		if err := gpu.Write(again, inv); err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		if _, err := gpu.Read(again); err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
	})
}

// TestKept: a cached snapshot follows every change of the file. A caller's changes of a returned
// value do not reach other callers.
func TestKept(t *testing.T) {
	path := gpu.Path(filepath.Join(t.TempDir(), "state"))
	h := host.Default()
	boot, err := h.BootID()
	if err != nil {
		t.Fatal(err)
	}
	inv := node()
	inv.Source, inv.BootID = "simulated", boot
	var k gpu.Kept
	if _, problem := k.Load(path, h, grant.Simulated); problem == nil ||
		problem.Code != grant.InventoryMissing {
		t.Errorf("without a file: %+v", problem)
	}
	for i := range 20 { // several writes within one tick have the same time stamp
		inv.GPUs[0].Memory = grant.Bytes(i+1) * grant.GiB
		if err := gpu.Write(path, inv); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			got, problem := k.Load(path, h, grant.Simulated)
			if problem != nil || len(got.GPUs) != 2 || got.GPUs[1].Memory != inv.GPUs[0].Memory {
				t.Fatalf("%d: %+v (%+v)", i, got.GPUs, problem)
			}
			got.GPUs[1].Memory = 0
		}
	}
	if _, problem := k.Load(path, h, grant.NVML); problem == nil || problem.Code != grant.InventoryStale {
		t.Errorf("of another source: %+v", problem)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, problem := k.Load(path, h, grant.Simulated); problem == nil {
		t.Error("a file that is broken by now is not read")
	}
}
