package simulated_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// machine is a host whose drivers have registered the majors of these lines.
func machine(t testing.TB, lines string) host.Host {
	t.Helper()
	h := host.Host{Proc: t.TempDir(),
		Now: func() time.Time { return time.Date(2026, 11, 20, 8, 0, 0, 5, time.UTC) }}
	put(t, filepath.Join(h.Proc, "sys/kernel/random/boot_id"), "boot-a\n")
	put(t, filepath.Join(h.Proc, "devices"), "Character devices:\n  1 mem\n"+lines+
		"\nBlock devices:\n384 loop\n")
	return h
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func describe(t testing.TB, n int, memory grant.Bytes, name string, mig ...string) simulated.Description {
	t.Helper()
	d, err := simulated.Describe(n, memory, name, mig)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestScan(t *testing.T) {
	inv, err := simulated.Scan(describe(t, 2, 80*grant.GiB, "Sim H100", "3g.40gb", "1g.10gb",
		"1g.10gb"), machine(t, ""), "/drv")
	if err != nil {
		t.Fatal(err)
	}
	uuid := regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for i := range inv.GPUs {
		ids := []*string{&inv.GPUs[i].UUID}
		for j := range inv.GPUs[i].MIG {
			ids = append(ids, &inv.GPUs[i].MIG[j].UUID)
		}
		for _, id := range ids {
			if !uuid.MatchString(*id) || seen[*id] {
				t.Errorf("UUID %q is malformed or stands twice", *id)
			}
			seen[*id], *id = true, ""
		}
	}
	partitions := func(first, second, third int) []grant.MIGDevice { // minors as the driver numbers them
		return []grant.MIGDevice{
			{Profile: "3g.40gb", Memory: 40 * grant.GiB, GI: 1, Caps: [2]int{first, first + 1}},
			{Profile: "1g.10gb", Memory: 10 * grant.GiB, GI: 7, Caps: [2]int{second, second + 1}},
			{Profile: "1g.10gb", Memory: 10 * grant.GiB, GI: 8, Caps: [2]int{third, third + 1}},
		}
	}
	want := grant.Inventory{
		Version: 1, Taken: time.Date(2026, 11, 20, 8, 0, 0, 0,
			time.UTC), BootID: "boot-a", Source: "simulated",
		Driver: grant.Driver{Root: "/drv"}, Majors: map[string]int{"nvidia": 195,
			"nvidia-uvm": 384, "nvidia-caps": 385},
		GPUs: []grant.GPU{
			{Index: 0, Minor: 0, Name: "Sim H100", Memory: 80 * grant.GiB, PCI: "0000:01:00.0", Render: []string{"/dev/dri/renderD128"}, MIG: partitions(12, 66, 75), Health: "ok"},
			{Index: 1, Minor: 1, Name: "Sim H100", Memory: 80 * grant.GiB, PCI: "0000:02:00.0", Render: []string{"/dev/dri/renderD129"}, MIG: partitions(147, 201, 210), Health: "ok"},
		},
	}
	if !reflect.DeepEqual(inv, want) {
		t.Errorf("got  %+v\nwant %+v", inv, want)
	}
}

func TestUUIDsFollowTheNodesName(t *testing.T) {
	scan := func(n int, name string) []grant.GPU {
		inv, err := simulated.Scan(describe(t, n, grant.GiB, name), machine(t, ""), "/")
		if err != nil {
			t.Fatal(err)
		}
		return inv.GPUs
	}
	two, four, other := scan(2, "A"), scan(4, "A"), scan(2, "B")
	if two[1].UUID != four[1].UUID {
		t.Error("GPU 1 became another when the node got more GPUs")
	}
	if two[1].UUID == other[1].UUID {
		t.Error("GPUs of two names have one UUID")
	}
	// Grants outlive upgrades of gpuledger, so a new release may not rename the GPUs.
	if want := "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"; scan(1, "A")[0].UUID != want {
		t.Errorf("got %s, want %s as before", scan(1, "A")[0].UUID, want)
	}
}

// TestTheSnapshotTakesEveryDescription: whatever can be described can be written, read and used.
func TestTheSnapshotTakesEveryDescription(t *testing.T) {
	for _, d := range []simulated.Description{
		describe(t, 1, grant.MiB, ""),
		describe(t, 64, 16*grant.GiB, "T4"),
		describe(t, 64, 80*grant.GiB, "A100", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb",
			"1g.10gb", "1g.10gb"),
		describe(t, 8, 143771*grant.MiB, "H200", "3g.71gb", "4g.71gb"),
	} {
		h, path := machine(t, ""), gpu.Path(t.TempDir())
		inv, err := simulated.Scan(d, h, "/")
		if err != nil {
			t.Fatal(err)
		}
		if err := gpu.Write(path, inv); err != nil {
			t.Errorf("%d x %s: %v", len(d.GPUs), d.GPUs[0].Name, err)
		}
		if _, problem := gpu.Load(path, h, grant.Simulated); problem != nil {
			t.Errorf("%d x %s: %s", len(d.GPUs), d.GPUs[0].Name, problem.Message)
		}
	}
}

func TestMajors(t *testing.T) {
	var all strings.Builder
	for major := 384; major < 512; major++ {
		all.WriteString(strconv.Itoa(major) + " x\n")
	}
	for _, tt := range []struct {
		name string
		host string
		want map[string]int // nil is an error
	}{
		{"no major is used", "", map[string]int{"nvidia": 195, "nvidia-uvm": 384, "nvidia-caps": 385}},
		{"the first is used", "384 x\n386 y\n", map[string]int{
			"nvidia": 195, "nvidia-uvm": 385, "nvidia-caps": 387}},
		{"a real driver keeps its majors", "195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n",
			map[string]int{"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511, "nvidia-caps": 384}},
		{"none is left", all.String(), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inv, err := simulated.Scan(describe(t, 1, grant.GiB, ""), machine(t, tt.host), "/")
			if (err != nil) != (tt.want == nil) || !reflect.DeepEqual(inv.Majors, tt.want) {
				t.Errorf("got %v and error %v, want %v", inv.Majors, err, tt.want)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	for _, tt := range []struct {
		name   string
		n      int
		memory grant.Bytes
		gpu    string
		mig    []string
		want   string // in the error; "" is none
	}{
		{"one GPU", 1, grant.GiB, "", nil, ""},
		{"no GPU", 0, grant.GiB, "", nil, "cannot simulate 0 GPUs: want 1 to 64"},
		{"too many", 65, grant.GiB, "", nil, "cannot simulate 65 GPUs"},
		{"no memory", 1, 0, "", nil, "no memory"},
		{"more memory than there is", 1, 65 * grant.TiB, "", nil, "more than 64TiB"},
		{"a name of two lines", 1, grant.GiB, "a\nb", nil, "printable"},
		{"a name that NVML could not return", 1, grant.GiB, strings.Repeat("x", 96), nil, "printable"},
		{"seven partitions", 1, 80 * grant.GiB, "", []string{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"}, ""},
		{"partitions with marks", 1, 80 * grant.GiB, "", []string{"1g.10gb+me", "2g.20gb"}, ""},
		{"names that round up", 1, 143771 * grant.MiB, "", []string{"3g.71gb", "3g.71gb"}, ""},
		{"no profile at all", 1, grant.GiB, "", []string{""}, `unknown MIG profile ""`},
		{"a profile of five slices", 1, 80 * grant.GiB, "", []string{"5g.50gb"}, `unknown MIG profile "5g.50gb"`},
		{"a profile without memory", 1, 80 * grant.GiB, "", []string{"1g"}, `unknown MIG profile "1g"`},
		{"too many slices", 1, 80 * grant.GiB, "", []string{"4g.40gb", "4g.20gb"}, "take 8 slices and a GPU has 7"},
		{"too much memory", 1, 40 * grant.GiB, "", []string{"3g.40gb", "1g.10gb"}, "take 50 GiB and the GPU has 40GiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := simulated.Describe(tt.n, tt.memory, tt.gpu, tt.mig)
			var usage *grant.UsageError
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want a usage error with %q", err, tt.want)
			}
		})
	}
}

// TestPartitionsFitTheirGPU: profile names round up, but the granted memory must fit into the card.
func TestPartitionsFitTheirGPU(t *testing.T) {
	inv, err := simulated.Scan(describe(t, 1, 143771*grant.MiB, "H200", "3g.71gb", "3g.71gb"), machine(t, ""),
		"/")
	if err != nil {
		t.Fatal(err)
	}
	var sum grant.Bytes
	for _, m := range inv.GPUs[0].MIG {
		sum += m.Memory
	}
	if total := inv.GPUs[0].Memory; sum > total || sum < total-2*grant.MiB {
		t.Errorf("the partitions have %v of %v", sum, total)
	}
}

func TestWriteFileThenRead(t *testing.T) {
	t.Chdir(t.TempDir())
	want := describe(t, 2, 80*grant.GiB, "Sim", "1g.10gb")
	if err := simulated.WriteFile("gpus.json", want); err != nil {
		t.Fatal(err)
	}
	got, err := simulated.Read("gpus.json")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	text, _ := os.ReadFile("gpus.json")
	if !strings.Contains(string(text), `"memory": 85899345920`) {
		t.Errorf("no plain bytes in %s", text)
	}
}

func TestWriteFileLeavesDevicesInPlace(t *testing.T) {
	link := filepath.Join(t.TempDir(), "out")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	if err := simulated.WriteFile(link, describe(t, 1, grant.GiB, "")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link was replaced: %v (%v)", info.Mode(), err)
	}
}

func TestAnEditedDescription(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.json")
	put(t, path, `{"version":1,"gpus":[
		{"name":"Big","memory":"80GiB","minor":3,"numa":-1},
		{"memory":17179869184,"mig":["1g.5gb"],"health":"fell off the bus"}]}`)
	d, err := simulated.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := simulated.Scan(d, machine(t, ""), "/")
	if err != nil {
		t.Fatal(err)
	}
	big, small := inv.GPUs[0], inv.GPUs[1]
	if big.Memory != 80*grant.GiB || big.Minor != 3 || big.NUMA != -1 || big.Health != grant.Healthy {
		t.Errorf("got %+v", big)
	}
	if small.Name != simulated.DefaultName || small.Memory != 16*grant.GiB ||
		small.Health != "fell off the bus" || len(small.MIG) != 1 {
		t.Errorf("got %+v", small)
	}
}

var mistakes = []struct{ name, text, want string }{
	{"empty", "", "it is empty"},
	{"no JSON", "gpus = 2", "it is no JSON after byte 0: invalid character"},
	{"no version", `{"gpus":[]}`, "its version is 0 and this gpuledger knows 1"},
	{"a newer version", `{"version":2,"gpus":[]}`, "its version is 2"},
	{"a key that is misspelt", `{"version":1,"gpus":[{"memory":1,"helth":"ok"}]}`, "there is no key /gpus/0/helth; a GPU has the keys name"},
	{"a key twice", `{"version":1,"gpus":[{"memory":1,"memory":2}]}`, "/gpus/0/memory is there twice"},
	{"no memory", `{"version":1,"gpus":[{"memory":1},{"name":"x"}]}`, "GPU 1: it has no memory"},
	{"memory without a unit", `{"version":1,"gpus":[{"memory":"80"}]}`, `cannot read size "80"`},
	{"memory that is no size", `{"version":1,"gpus":[{"memory":{}}]}`, `/gpus/0/memory is an object; want a size, as "80GiB"`},
	{"memory below 0", `{"version":1,"gpus":[{"memory":-5}]}`, `/gpus/0/memory is -5; want a size`},
	{"a profile that is a number", `{"version":1,"gpus":[{"memory":1,"mig":[1]}]}`, `/gpus/0/mig/0 is a number; want a profile, as "1g.10gb"`},
	{"a GPU that is a text", `{"version":1,"gpus":["H100"]}`, `/gpus/0 is a text; want an object as {"memory": "80GiB"}`},
	{"a list", `[]`, `the whole is a list; want an object`},
	{"an escape sequence", `{"version":1,"\u001b[2J":1}`, `there is no key /\x1b[2J`},
	{"an unknown profile", `{"version":1,"gpus":[{"memory":"8GiB","mig":["big"]}]}`, `GPU 0: unknown MIG profile "big"`},
	{"a control node's minor", `{"version":1,"gpus":[{"memory":1,"minor":255}]}`, "GPU 0: minor 255"},
	{"a minor twice", `{"version":1,"gpus":[{"memory":1,"minor":1},{"memory":1}]}`, "GPU 1: minor 1 is GPU 0's"},
	{"a NUMA node below none", `{"version":1,"gpus":[{"memory":1,"numa":-2}]}`, "GPU 0: numa -2"},
	{"a health of two lines", `{"version":1,"gpus":[{"memory":1,"health":"a\nb"}]}`, "GPU 0: health"},
	{"too many GPUs", `{"version":1,"gpus":[` + strings.Repeat(`{"memory":1},`, 64) + `{"memory":1}]}`, "it has 65 GPUs"},
}

func TestMistakesInADescription(t *testing.T) {
	for _, tt := range mistakes {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "gpus.json")
			put(t, path, tt.text)
			_, err := simulated.Read(path)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot read the description "+path+": ") ||
				!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), " Go ") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestADescriptionThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{dir: "not a file", filepath.Join(dir, "none"): "no such file"} {
		if _, err := simulated.Read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// FuzzRead: no description makes reading it panic, and every accepted one makes a valid inventory.
func FuzzRead(f *testing.F) {
	for _, tt := range mistakes {
		f.Add([]byte(tt.text))
	}
	f.Add(
		[]byte(`{"version":1,"gpus":[{"memory":"80GiB","mig":["3g.40gb","1g.10gb+me"],"minor":3,"numa":1}]}`))
	h, path := machine(f, ""), filepath.Join(f.TempDir(), "gpus.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		put(t, path, string(text))
		d, err := simulated.Read(path)
		if err != nil {
			return
		}
		inv, err := simulated.Scan(d, h, "/")
		if err != nil {
			t.Fatalf("what was read can't be scanned: %v", err)
		}
		if err := gpu.Check(inv); err != nil {
			t.Fatalf("the inventory is not sound: %v", err)
		}
	})
}
