package configure

import (
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestCallersAreTheDaemonsThatHaveReadOurFiles(t *testing.T) {
	a, b, c := grant.Process{PID: 1, Start: 10}, grant.Process{PID: 2, Start: 20},
		grant.Process{PID: 3, Start: 30}
	aAgain := grant.Process{PID: 1, Start: 99} // another process with the same id as a
	ours := []fileRecord{{Path: "/etc/gpuledger/config.toml", Shared: true}}
	type list = []grant.Process
	for name, row := range map[string]struct {
		record    engineRecord
		running   list
		restarted bool
		callers   list
	}{
		"nothing is kept":              {engineRecord{}, list{a}, false, nil},
		"a record of an older version": {engineRecord{Files: ours}, list{a}, false, list{a}},
		"it has run since before configure": {engineRecord{Files: ours, Unread: list{a}}, list{a}, false,
			nil},
		"it was restarted after configure": {engineRecord{Files: ours, Unread: list{a}}, list{b}, false,
			list{b}},
		"its process id was used again": {engineRecord{Files: ours, Unread: list{a}}, list{aAgain}, false,
			list{aAgain}},
		"undone, not restarted": {engineRecord{Files: ours, Undone: list{b}}, list{b}, false,
			list{b}},
		"undone, restarted": {engineRecord{Files: ours, Undone: list{b}}, list{c}, false,
			nil},
		"undone and restarted by configure": {engineRecord{Files: ours, Undone: list{b}}, list{b}, true, nil},
		"it does not run":                   {engineRecord{Files: ours}, nil, false, nil},
		"one of two was restarted since undone": {engineRecord{Files: ours, Undone: list{a, b}}, list{b, c},
			false, list{b}},
	} {
		if got := callers(row.record, row.running, row.restarted); !slices.Equal(got, row.callers) {
			t.Errorf("%s: callers are %v, want %v", name, got, row.callers)
		}
	}
	for name, row := range map[string]struct {
		engine  grant.Engine
		old     engineRecord
		running list
		unread  list
	}{
		"configured for the first time": {grant.Containerd, engineRecord{}, list{a}, list{a}},
		"again, not restarted": {grant.Containerd, engineRecord{Files: ours, Unread: list{a}},
			list{a}, list{a}},
		"again, restarted": {grant.Containerd, engineRecord{Files: ours, Unread: list{a}},
			list{b}, nil},
		"again, of an older version": {grant.Containerd, engineRecord{Files: ours}, list{b}, nil},
		"again, undone and not restarted": {grant.Containerd, engineRecord{Files: ours, Undone: list{b}},
			list{b}, nil},
		"again, undone and restarted": {grant.Containerd, engineRecord{Files: ours, Undone: list{b}},
			list{c}, list{c}},
		"dockerd may have read it at any signal":  {grant.Docker, engineRecord{}, list{a}, nil},
		"a daemon of CRI-O that does not run yet": {grant.CRIO, engineRecord{}, nil, nil},
	} {
		if got := unread(row.engine, row.old, row.running); !slices.Equal(got, row.unread) {
			t.Errorf("%s: unread by %v, want %v", name, got, row.unread)
		}
	}
}

func TestWhatARecordNamesAfterAnUndo(t *testing.T) {
	a, b := grant.Process{PID: 1, Start: 10}, grant.Process{PID: 2, Start: 20}
	type list = []grant.Process
	before := engineRecord{Unread: list{a}}
	for name, row := range map[string]struct {
		undone         Undone
		unread, called list
	}{
		"all is undone":                      {Undone{Callers: list{b}}, nil, list{b}},
		"all is undone, and nobody calls us": {Undone{}, nil, list{}},
		"a file stays":                       {Undone{Kept: 1, Callers: list{b}}, list{a}, nil},
		"a file still names gpuledger": {Undone{Named: []string{"x:1"}, Callers: list{b}},
			list{a}, nil},
		"one that a distribution writes anew names": {Undone{
			Named: []string{"x:1"}, rewrote: true, Callers: list{b}}, nil, list{b}},
	} {
		unread, called := row.undone.recordedDaemons(before)
		if !slices.Equal(unread, row.unread) || !slices.Equal(called, row.called) ||
			(called == nil) != (row.called == nil) {
			t.Errorf("%s: unread by %v, called by %v; want %v, %v", name, unread, called,
				row.unread, row.called)
		}
	}
	for name, row := range map[string]struct {
		record engineRecord
		over   bool
	}{
		"nothing":      {engineRecord{Undone: list{}}, true},
		"a file":       {engineRecord{Files: []fileRecord{{}}}, false},
		"who calls us": {engineRecord{Undone: list{b}}, false},
	} {
		if row.record.isOver() != row.over {
			t.Errorf("%s: over %v", name, !row.over)
		}
	}
}

// TestTheNextConfigureKnowsWhichDaemonsAreOlder: the call that changed the files may have been
// killed before it restarted the engine, and the next one has nothing to change.
func TestTheNextConfigureKnowsWhichDaemonsAreOlder(t *testing.T) {
	real := daemonsOf
	defer func() { daemonsOf = real }()
	first, second := grant.Process{PID: 7, Start: 70}, grant.Process{PID: 7, Start: 90}
	runs := func(p grant.Process) {
		daemonsOf = func(engines.Installation) []grant.Process { return []grant.Process{p} }
	}
	for _, engine := range []grant.Engine{grant.Containerd, grant.CRIO, grant.Docker} {
		o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), engine)
		wants := func(what string, want ...grant.Process) {
			t.Helper()
			if engine == grant.Docker { // it may have been reloaded
				want = nil
			}
			if p, err := New(o); err != nil || len(p.Changes) > 0 || !slices.Equal(p.Older, want) {
				t.Errorf("%s, %s: got %+v, %v, want %v", engine, what, p, err, want)
			}
		}
		o.AsDefault = false
		runs(first)
		applied(t, o)
		wants("configured", first)
		runs(second)
		wants("restarted")
		o.Mode = grant.Report
		applied(t, o)
		wants("only gpuledger's own file has changed since")
		o.AsDefault = true
		applied(t, o)
		wants("changed again", second)
	}
}
