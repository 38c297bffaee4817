package containers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// A container's state is read as its runtime left it, and what cannot be understood is never taken
// for "gone".
func TestLifeByState(t *testing.T) {
	self, err := host.Default().Self()
	if err != nil {
		t.Fatal(err)
	}
	runs, gone := fmt.Sprintf("%d, %%q: %d", self.PID, self.Start),
		fmt.Sprintf("%d, %%q: %d", self.PID, self.Start+1)
	runc := func(init, cgroups string) string {
		return `{"init_process_pid": ` + fmt.Sprintf(init, "init_process_start") + `, "cgroup_paths": ` +
			cgroups + `, "config": {"a": 1, "a": 2}}`
	}
	crun := func(init, cgroup string) string {
		return `{"pid": ` + fmt.Sprintf(init, "process-start-time") + `, "cgroup-path": "` + cgroup +
			`", "bundle": "` + "\xff" + `"}`
	}
	for name, row := range map[string]struct {
		file, text string
		want       grant.Life
		pid        int
	}{
		"no directory":                {"", "", grant.Dead, 0},
		"a directory alone":           {"exec.fifo", "", grant.Dead, 0},
		"runc, init runs":             {"state.json", runc(runs, `{}`), grant.Alive, self.PID},
		"crun, init runs":             {"status", crun(runs, ""), grant.Alive, self.PID},
		"runc, cut off":               {"state.json", `{"init_process_pid": 7`, grant.LifeUnknown, 0},
		"runc, empty":                 {"state.json", ``, grant.LifeUnknown, 0},
		"runc, no init":               {"state.json", `{}`, grant.LifeUnknown, 0},
		"crun, no init":               {"status", `{"pid": 0}`, grant.LifeUnknown, 0},
		"crun, garbage":               {"status", `pid 7`, grant.LifeUnknown, 0},
		"runc, no cgroup":             {"state.json", runc(gone, `{}`), grant.LifeUnknown, 0},
		"crun, no cgroup":             {"status", crun(gone, ""), grant.LifeUnknown, 0},
		"crun, everybody's cgroup":    {"status", crun(gone, "/"), grant.LifeUnknown, 0},
		"runc, cgroup not to be seen": {"state.json", runc(gone, `{"devices": "/nowhere/x"}`), grant.LifeUnknown, 0},
		"runc, cgroup is no cgroup":   {"state.json", runc(gone, `{"": "/etc"}`), grant.LifeUnknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound(t, t.TempDir())
			if row.file != "" {
				path := filepath.Join(got.RuntimeRoot, "c", row.file)
				if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700),
					os.WriteFile(path, []byte(row.text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			New(host.Default()).Examine(&got)
			if got.Life != row.want || got.PID != row.pid {
				t.Errorf("life %d, pid %d; want %d, %d", got.Life, got.PID, row.want, row.pid)
			}
		})
	}
}

func TestAStateThatIsADirectoryIsUnknown(t *testing.T) {
	got := bound(t, t.TempDir())
	if err := os.MkdirAll(filepath.Join(got.RuntimeRoot, "c", "state.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if New(host.Default()).Examine(&got); got.Life != grant.LifeUnknown {
		t.Errorf("life %d, want unknown", got.Life)
	}
}

// TestLifeByWhatTheKernelReports: a binding is dead only where its creator is gone and the kernel
// reports nobody in the container's cgroup. What cannot be read is never taken for "gone".
func TestLifeByWhatTheKernelReports(t *testing.T) {
	const empty, populated = "populated 0\nfrozen 0\n", "populated 1\nfrozen 0\n"
	crun := func(cgroup string) files {
		return files{"root/c/status": fmt.Sprintf(`{"pid":%d,"process-start-time":555,"cgroup-path":%q}`,
			initPID, cgroup)}
	}
	runc := func(controllers ...string) files {
		var paths []string
		for _, controller := range controllers {
			paths = append(paths, fmt.Sprintf(`%q:"DIR/sys/fs/cgroup/%s"`, controller, "runc"+controller))
		}
		return files{"root/c/state.json": fmt.Sprintf(
			`{"init_process_pid":%d,"init_process_start":555,"cgroup_paths":{%s}}`, initPID,
			strings.Join(paths, ","))}
	}
	for name, row := range map[string]struct {
		creator, init string // their stat; "" has no such process
		state         files
		cgroups       files    // below /sys/fs/cgroup
		recorded      []string // cgroups, in the binding
		want          grant.Life
		pid           int
		left          bool
	}{
		"the creator runs":                             {creator: runningStat, want: grant.Alive},
		"the creator runs, and left a cgroup":          {creator: runningStat, cgroups: files{"c/cgroup.events": empty}, recorded: []string{"/c"}, want: grant.Alive},
		"the creator runs, others are in the cgroup":   {creator: runningStat, cgroups: files{"c/cgroup.events": populated}, recorded: []string{"/c"}, want: grant.Alive},
		"the creator and the init run":                 {creator: runningStat, init: runningStat, state: crun("/c"), want: grant.Alive, pid: initPID},
		"the creator runs, the init ended":             {creator: runningStat, state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.Alive},
		"the creator runs, the state is spoilt":        {creator: runningStat, state: files{"root/c/status": "{"}, want: grant.Alive},
		"the creator cannot be read":                   {creator: spoiltStat, want: grant.LifeUnknown},
		"the creator cannot be read, the init ended":   {creator: spoiltStat, state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.LifeUnknown},
		"the creator cannot be read, the cgroup empty": {creator: spoiltStat, cgroups: files{"c/cgroup.events": empty}, recorded: []string{"/c"}, want: grant.LifeUnknown},
		"another has the creator's pid":                {creator: laterStat, state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.Dead},

		"the init runs":                     {init: runningStat, state: crun("/c"), want: grant.Alive, pid: initPID},
		"the init of runc runs":             {init: runningStat, state: runc(), want: grant.Alive, pid: initPID},
		"the init ended":                    {state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.Dead},
		"the init is a zombie":              {init: zombieStat, state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.Dead},
		"another has the init's pid":        {init: laterStat, state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.Dead},
		"the init cannot be read":           {init: spoiltStat, state: crun("/c"), cgroups: files{"c/cgroup.events": empty}, want: grant.LifeUnknown},
		"the init ended, its child did not": {state: crun("/c"), cgroups: files{"c/cgroup.events": populated}, want: grant.Alive},
		"its cgroup cannot be read":         {state: crun("/c"), cgroups: files{"c/cgroup.events/x": "", "c/cgroup.procs": "7\n"}, want: grant.LifeUnknown},
		"its cgroup is not to be seen":      {state: crun("/c"), want: grant.LifeUnknown},
		"its cgroup is everybody's":         {state: crun("/c/.."), cgroups: files{"cgroup.events": empty}, want: grant.LifeUnknown},
		"its relative cgroup":               {state: crun("a/../c"), cgroups: files{"c/cgroup.events": populated}, want: grant.Alive},
		"its state has no pid":              {state: files{"root/c/status": `{"pid":0,"process-start-time":555,"cgroup-path":"/c"}`}, cgroups: files{"c/cgroup.events": empty}, want: grant.LifeUnknown},
		"its state has no start":            {state: files{"root/c/status": `{"pid":60,"process-start-time":0,"cgroup-path":"/c"}`}, cgroups: files{"c/cgroup.events": empty}, want: grant.LifeUnknown},
		"its state is spoilt":               {state: files{"root/c/status": "{"}, cgroups: files{"c/cgroup.events": empty}, recorded: []string{"/c"}, want: grant.LifeUnknown},

		"on v1":                 {state: crun("/c"), cgroups: files{"devices/cgroup.procs": "1\n", "devices/c/cgroup.procs": "7\n", "c/cgroup.events": empty}, want: grant.Alive},
		"on v1, below":          {state: crun("/c"), cgroups: files{"devices/cgroup.procs": "1\n", "devices/c/cgroup.procs": "", "devices/c/d/cgroup.procs": "7\n"}, want: grant.Alive},
		"on v1, not to be seen": {state: crun("/c"), cgroups: files{"devices/cgroup.procs": "1\n", "devices/c/cgroup.procs": ""}, want: grant.LifeUnknown},
		"on the mixed one":      {state: crun("/c"), cgroups: files{"unified/cgroup.procs": "1\n", "unified/c/cgroup.events": empty, "c/cgroup.events": populated}, want: grant.Dead},

		"runc's cgroups, the devices'": {state: runc("", "devices", "cpu"), cgroups: files{"runc/cgroup.events": empty, "runcdevices/cgroup.procs": "7\n", "runccpu/cgroup.events": empty}, want: grant.Alive},
		"runc's cgroups, v2's":         {state: runc("", "cpu"), cgroups: files{"runc/cgroup.events": populated, "runccpu/cgroup.events": empty}, want: grant.Alive},
		"runc's cgroups, the first":    {state: runc("pids", "cpu"), cgroups: files{"runcpids/cgroup.events": populated, "runccpu/cgroup.events": empty}, want: grant.Dead},

		"forgotten, its cgroup is empty":        {recorded: []string{"/c"}, cgroups: files{"c/cgroup.events": empty}, want: grant.Dead},
		"forgotten, somebody is in its cgroup":  {recorded: []string{"/c"}, cgroups: files{"c/cgroup.events": populated}, want: grant.Alive, left: true},
		"forgotten, its cgroup is not seen":     {recorded: []string{"/c"}, want: grant.LifeUnknown, left: true},
		"forgotten, its cgroup cannot be read":  {recorded: []string{"/c"}, cgroups: files{"c/cgroup.events/x": ""}, want: grant.LifeUnknown, left: true},
		"forgotten, both cgroups are empty":     {recorded: []string{"/c", "/d"}, cgroups: files{"c/cgroup.events": empty, "d/cgroup.events": empty}, want: grant.Dead},
		"forgotten, the second has somebody":    {recorded: []string{"/c", "/d"}, cgroups: files{"c/cgroup.events": empty, "d/cgroup.events": populated}, want: grant.Alive, left: true},
		"forgotten, the first is not seen":      {recorded: []string{"/c", "/d"}, cgroups: files{"d/cgroup.events": empty}, want: grant.LifeUnknown, left: true},
		"forgotten, the second is not seen":     {recorded: []string{"/c", "/d"}, cgroups: files{"c/cgroup.events": empty}, want: grant.LifeUnknown, left: true},
		"forgotten, one not seen, one occupied": {recorded: []string{"/c", "/d"}, cgroups: files{"d/cgroup.events": populated}, want: grant.Alive, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, r := t.TempDir(), New(host.Default())
			got := bound(t, dir+"/root")
			got.Creator, got.Cgroups = grant.Process{PID: creatorPID, Start: 555}, row.recorded
			r.Host.Proc, r.Host.Sys = dir+"/proc", dir+"/sys"
			files{"root/x": "", "proc/x": "", "sys/x": ""}.write(t, dir)
			for pid, stat := range map[int]string{creatorPID: row.creator, initPID: row.init} {
				if stat != "" {
					files{fmt.Sprintf("proc/%d/stat", pid): stat}.write(t, dir)
				}
			}
			for path, text := range row.state {
				files{path: strings.ReplaceAll(text, "DIR", dir)}.write(t, dir)
			}
			row.cgroups.write(t, dir+"/sys/fs/cgroup")
			if r.Examine(&got); got.Life != row.want || got.PID != row.pid || got.Left != row.left {
				t.Errorf("life %d, pid %d, left %v; want %d, %d, %v", got.Life, got.PID, got.Left, row.want,
					row.pid, row.left)
			}
		})
	}
}
