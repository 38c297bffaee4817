package node

import (
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
)

func TestTextIsCutBetweenCharacters(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{strings.Repeat("x", maxText), strings.Repeat("x", maxText)},
		{strings.Repeat("x", maxText+1), strings.Repeat("x", maxText-3) + "..."},
		{strings.Repeat("ü", maxText), strings.Repeat("ü", (maxText-3)/2) + "..."},
		{"a\xff", "a?"},
	} {
		if got := cut(c.text, maxText); got != c.want {
			t.Errorf("%.20q of %d bytes: %d bytes, want %d", c.text, len(c.text), len(got), len(c.want))
		}
	}
}

func TestADirectoryByTwoSpellings(t *testing.T) {
	for _, c := range []struct {
		path, clean string
		want        bool
	}{{"/usr/lib64/", "/usr/lib64", true}, {"/usr//lib64/", "/usr/lib64", true}, {"/usr/lib64x/", "/usr/lib64", false}, {"/usr/lib64/", "", false}, {"/", "", false}} {
		if got := isDirectory(c.path, c.clean); got != c.want {
			t.Errorf("%s is %s: %v", c.path, c.clean, got)
		}
	}
}

// TestWhatLiesOverTheRecords: the last mount over the place, by /run or /var/run.
func TestWhatLiesOverTheRecords(t *testing.T) {
	mount := func(destination, kind string, options ...string) specs.Mount {
		return specs.Mount{Destination: destination, Type: kind, Options: options}
	}
	for name, c := range map[string]struct {
		mounts []specs.Mount
		want   cover
	}{
		"nothing":                  {[]specs.Mount{mount("/data", "bind", "rbind"), mount(grant.ShimPlace+"x", "bind", "bind")}, cover{}},
		"its root":                 {[]specs.Mount{mount("/", "bind", "bind")}, cover{true, "/", false}},
		"the place":                {[]specs.Mount{mount(grant.ShimPlace, "bind", "rbind")}, cover{true, grant.ShimPlace, false}},
		"a parent":                 {[]specs.Mount{mount("/run", "bind", "rbind")}, cover{true, "/run", false}},
		"a parent by its old path": {[]specs.Mount{mount("/var/run", "bind", "rbind")}, cover{true, "/var/run", false}},
		"a file system of its own": {[]specs.Mount{mount("/run", "bind", "rbind"), mount("run", "tmpfs", "mode=755")}, cover{true, "run", true}},
		"a bind mount of the type": {[]specs.Mount{mount("/run", "tmpfs", "bind")}, cover{true, "/run", false}},
		"a recursive one":          {[]specs.Mount{mount("/run", "tmpfs", "rbind")}, cover{true, "/run", false}},
		"below it":                 {[]specs.Mount{mount(grant.ShimPlace+"/driver", "bind", "bind")}, cover{}},
	} {
		if got := coverOf(c.mounts); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	limited := Decision{Verdict: grant.Verdict{Kind: grant.Admit, Limited: true}}
	free, pass := limited, limited
	free.Limited, pass.Kind = false, grant.Pass
	for name, c := range map[string]struct {
		d    Decision
		over cover
		want bool
	}{
		"covered": {limited, cover{true, "/run", false}, true}, "not covered": {limited, cover{}, false}, "by its own": {limited, cover{true, "/run", true}, false},
		"without a limit": {free, cover{true, "/run", false}, false}, "without a grant": {pass, cover{true, "/run", false}, false},
	} {
		if refused := (visit{cover: c.over}).hidden(c.d); (refused != nil) != c.want || c.want && refused.Code != grant.InjectionImpossible {
			t.Errorf("%s: %+v", name, refused)
		}
	}
}

// TestRulesOfOurs are told from an engine's by the one for all block devices.
func TestRulesOfOurs(t *testing.T) {
	n := int64(8)
	for name, c := range map[string]struct {
		rule request.DeviceRule
		want bool
	}{
		"all disks": {request.DeviceRule{Allow: true, Type: "b"}, true}, "denied": {request.DeviceRule{Type: "b"}, false}, "all others": {request.DeviceRule{Allow: true, Type: "c"}, false},
		"everything": {request.DeviceRule{Allow: true}, false}, "of a major": {request.DeviceRule{Allow: true, Type: "b", Major: &n}, false}, "of a minor": {request.DeviceRule{Allow: true, Type: "b", Minor: &n}, false},
	} {
		spec := request.Spec{Linux: &request.Linux{Resources: &request.Resources{Devices: []request.DeviceRule{{}, c.rule}}}}
		if confined(spec) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
	if confined(request.Spec{}) || confined(request.Spec{Linux: &request.Linux{}}) {
		t.Error("a spec without rules has ours")
	}
}

func TestAPodsSumBesideItsEnvironment(t *testing.T) {
	for units, want := range map[string]int{"": 0, "x": 0, "0": 0, "-1": 0, "1": 1, "1073741824": 1 << 30, "1073741825": 0} {
		r := grant.Request{Allocations: []grant.Allocation{{Source: gpushareSource}, {Source: "annotation:other"}}}
		bound(&r, map[string]string{gpusharePod: units})
		if a := r.Allocations; !a[0].InEnv || a[0].PodUnits != want || a[1].InEnv || a[1].PodUnits != 0 {
			t.Errorf("%q: %+v", units, a)
		}
	}
}

func TestCgroupsThatBearAContainersId(t *testing.T) {
	for _, c := range []struct {
		path, id string
		want     bool
	}{{"", "c", true}, {"/pods/c", "c", true}, {"/pods/cri-containerd-c", "c", true}, {"a.slice:docker-c", "c", true}, {"/pods/x", "c", false}, {"/pods/c/x", "c", false}, {"/pods/xc", "c", false}} {
		v := visit{request: grant.Request{Cgroup: c.path}}
		v.Container.ID = c.id
		if v.namesItself() != c.want {
			t.Errorf("%s of %s: %v", c.path, c.id, !c.want)
		}
	}
}
