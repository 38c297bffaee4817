package watch

import (
	"os/exec"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestSaveTakesNamesOfAnyBytes: processes name themselves and users make cgroups, so no name keeps
// the report of the whole node from being written.
func TestSaveTakesNamesOfAnyBytes(t *testing.T) {
	for name, u := range map[string]grant.User{
		"a process":   {Command: "a\xff", Processes: []grant.Process{{PID: 7, Start: 8}}},
		"a cgroup":    {Container: "c", Cgroup: "/user.slice/a\xff/c"},
		"a container": {Container: "a\xff", Cgroup: "/user.slice/a\xff"},
	} {
		run := t.TempDir()
		finding := grant.Finding{Kind: grant.OutsideLedger, GPU: "GPU-0", User: u}
		if err := Save(run, "boot", Comparison{Findings: []grant.Finding{finding}}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := Load(run, "boot")
		if err != nil || len(got.Findings) != 1 || got.Findings[0].GPU != "GPU-0" {
			t.Errorf("%s: %+v, %v", name, got.Findings, err)
		}
	}
}

// TestCommandIsUTF8: a process whose name is not has U+FFFD in it.
func TestCommandIsUTF8(t *testing.T) {
	cmd := exec.Command("sh", "-c", `printf 'a\377b' > /proc/$$/comm; echo; read line`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	_, _ = out.Read(make([]byte, 1)) // it has its name
	if p, err := readProcess(host.Default(), cmd.Process.Pid); err != nil || p.Command != "a\uFFFDb" {
		t.Errorf("%q, %v", p.Command, err)
	}
}
