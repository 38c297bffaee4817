package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestPackagedConfigurationDecidesNothing: `gpuledger configure` must find every choice open, and an administrator who
// uncomments a line must find its default.
func TestPackagedConfigurationDecidesNothing(t *testing.T) {
	rig.Need(t, "sed")
	packaged, err := exec.Command("sed", "-Ef", "../packaging/config.sed", "../configs/config.toml").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(packaged)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '[' {
			t.Errorf("it sets %s", line)
		}
	}
	if p, err := policy.Parse(packaged); err != nil || !reflect.DeepEqual(p, policy.Default()) {
		t.Errorf("it is not the default policy: %+v (%v)", p, err)
	}
}

// TestUnitsAreUnderstood: systemd's own parser has nothing to say of the units.
func TestUnitsAreUnderstood(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze: the units are read by nobody here; `make test-packages` does it")
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
		installed := strings.NewReplacer("/usr/bin/gpuledgerd ", "/bin/true ", "/usr/bin/gpuledger ", "/bin/true ").Replace(string(text))
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
