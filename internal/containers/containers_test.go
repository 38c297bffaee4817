package containers

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestWhatTheRuntimeRecordedOfAContainer: of one that it has not, nothing.
func TestWhatTheRuntimeRecordedOfAContainer(t *testing.T) {
	r := New(host.Default())
	root := t.TempDir()
	files{
		"crun/status":     `{"pid":60,"process-start-time":555,"cgroup-path":"/c","bundle":"/b"}`,
		"runc/state.json": `{"init_process_pid":61,"init_process_start":556,"cgroup_paths":{"":"/cgroup/d"},"config":{"labels":["x=/y","bundle=/e","bundle=/d"]}}`,
		"bare/state.json": `{"init_process_pid":61,"init_process_start":556}`,
		"spoilt/status":   `{"pid":60,"process-start-time":0,"cgroup-path":"/c"}`,
	}.write(t, root)
	r.Host.Sys = root + "/sys"
	type recorded struct {
		init           grant.Process
		known          bool
		bundle, cgroup string
	}
	for container, want := range map[string]recorded{
		"crun": {grant.Process{PID: 60, Start: 555}, true, "/b", root + "/sys/fs/cgroup/c"},
		"runc": {grant.Process{PID: 61, Start: 556}, true, "/d", "/cgroup/d"},
		"bare": {grant.Process{PID: 61, Start: 556}, true, "", ""},
		"none": {}, "": {}, ".": {}, "..": {}, "../" + filepath.Base(root) + "/crun": {},
	} {
		var got recorded
		got.init, got.known = r.Init(root, container)
		got.bundle, got.cgroup = Bundle(root, container), r.Cgroup(root, container)
		if got != want {
			t.Errorf("%q: %+v, want %+v", container, got, want)
		}
	}
	if _, known := r.Init(root, "spoilt"); known || r.Cgroup(root, "spoilt") != "" {
		t.Error("a state without the start of its init is believed")
	}
	for container, want := range map[string]grant.Life{
		"none": grant.Dead, "../" + filepath.Base(root) + "/spoilt": grant.Dead,
		"spoilt": grant.LifeUnknown} {
		if got := r.Life(root, container); got != want {
			t.Errorf("%q: life %d, want %d", container, got, want)
		}
	}
}

// TestAFailedReadIsNotKept: gpuledgerd lives for months.
func TestAFailedReadIsNotKept(t *testing.T) {
	reads := 0
	read := kept(func() (int, error) {
		if reads++; reads == 1 {
			return 0, errors.New("too many open files")
		}
		return reads, nil
	})
	if _, err := read(); err == nil {
		t.Error("no error")
	}
	for range 2 {
		if got, err := read(); got != 2 || err != nil {
			t.Errorf("%d, %v", got, err)
		}
	}
}
