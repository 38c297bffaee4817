package setup

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// showsEngine is a systemctl that shows the engine's state: the text of /broken if that exists, the
// text of /breaks if gpuledger's edits are there, else that it runs. With /slow the engine starts
// until the third look.
const showsEngine = recordsCall + `
case "$*" in *ActiveState*) ;; *) exit 0 ;; esac
if [ -e /slow ]; then
  echo look >>/looks
  [ "$(/bin/busybox wc -l </looks)" -ge 3 ] || { echo ActiveState=activating; echo SubState=start; exit 0; }
  /bin/busybox rm /slow
fi
for state in /broken /breaks; do
  [ -e $state ] || continue
  [ $state = /broken ] || [ -e /etc/engine.conf ] || continue
  /bin/busybox cat $state
  exit 0
done
echo ActiveState=active
`

// TestEngineThatDoesNotComeBack: after the restart that an installation needs, the engine's unit
// fails. Its files go back, because without it the kubelet starts no container that could do that.
func TestEngineThatDoesNotComeBack(t *testing.T) {
	const failed = "ActiveState=failed\nSubState=failed\nResult=exit-code\nNRestarts=5\n"
	const again = "ActiveState=activating\nSubState=auto-restart\nResult=exit-code\nNRestarts=1\n"
	const back = "; its files are as before, and it runs again"
	for name, row := range map[string]struct {
		files  map[string]string
		prints string // "": it is installed
		stays  bool   // the edits are in the engine's files in the end
	}{
		"our edits break it": {map[string]string{"breaks": failed, "refuses": ""},
			"cannot restart crio: engine.service has failed (exit-code)" + back, false},
		"it ends again and again": {map[string]string{"breaks": again, "refuses": ""},
			"cannot restart crio: engine.service has failed (exit-code)" + back, false},
		"it ends later, as systemctl waits for no unit of this type": {map[string]string{"breaks": failed},
			"cannot restart crio: engine.service has failed (exit-code)" + back, false},
		"its files were broken before": {map[string]string{"broken": failed, "refuses": "always"},
			"; its files are as before, and with them: engine.service has failed",
			false},
		"it starts slowly": {map[string]string{"slow": ""}, "", true},
		"it runs, and the call has failed": {map[string]string{"refuses": "always"},
			"cannot run gpuledger [configure crio --restart]", true},
		"it runs after a slow start, and the call has failed": {map[string]string{"slow": "",
			"refuses": "always"}, "cannot run gpuledger [configure crio --restart]", true},
	} {
		s := newMachine(t)
		s.write("node/usr/bin/systemctl", showsEngine)
		for file, text := range row.files {
			s.write("node/"+file, text)
		}
		status, out := s.run("install", "--engine=crio")
		if (status == 0) != (row.prints == "") || !strings.Contains(out, row.prints) {
			t.Errorf("%s: status %d\n%s", name, status, out)
		}
		if exists(s.dir+"/node/etc/engine.conf") != row.stays {
			t.Errorf("%s: the edits stay: %v", name, !row.stays)
		}
		calls := s.calls()
		if !row.stays && !slices.Contains(calls, "systemctl reset-failed engine.service") {
			t.Errorf("%s: called %q", name, calls)
		}
		want := 1
		if !row.stays {
			want = 2
		}
		if len(restarts(calls)) != want {
			t.Errorf("%s: it restarts %q", name, restarts(calls))
		}
		if due := exists(s.dir + "/node" + restartDue + "crio"); due == (row.prints == "" ||
			strings.HasSuffix(row.prints, back)) {
			t.Errorf("%s: a restart is due: %v", name, due)
		}
	}
}

// TestEditsThatTheEngineDoesNotStartWith are not tried again by the kubelet's next attempt, which
// would end the engine each time. They are once something has changed.
func TestEditsThatTheEngineDoesNotStartWith(t *testing.T) {
	const why = "cannot restart crio: engine.service has failed (exit-code); its files are as before, and " +
		"it runs again"
	s := newMachine(t)
	s.write("node/usr/bin/systemctl", showsEngine)
	s.write("node/breaks", "ActiveState=failed\nSubState=failed\nResult=exit-code\nNRestarts=5\n")
	s.write("node/refuses", "")
	for _, row := range []struct {
		change   func()
		restarts int
	}{
		{func() {}, 2},
		{func() {}, 0},
		{func() { s.write("node/pid", "7") }, 2}, // of the engine
		{func() {}, 0},
		{func() { s.write("node/containers", "32") }, 0}, // other pods come and go
		{func() { s.write("node/etc/crio/crio.conf.d/theirs.conf", "mended\n") }, 2},
		{func() {}, 0},
		{func() { s.write("tree/usr/bin/gpuledger", gpuledger+"# the next version\n") }, 2},
		{func() {}, 0},
		{func() { s.run("remove", "--engine=crio") }, 2},
	} {
		row.change()
		s.calls()
		status, out := s.run("install", "--engine=crio", "--as-default")
		if status == 0 || !strings.Contains(out, why) {
			t.Errorf("status %d\n%s", status, out)
		}
		if got := restarts(s.calls()); len(got) != row.restarts {
			t.Errorf("it restarts %q, want %d\n%s", got, row.restarts, out)
		}
		if exists(s.dir + "/node/etc/engine.conf") {
			t.Error("the edits stay")
		}
	}
	s.write("node/pid", "8")
	if err := os.Remove(s.dir + "/node/breaks"); err != nil {
		t.Fatal(err)
	}
	s.write("node/refuses", "")
	if err := os.Remove(s.dir + "/node/refuses"); err != nil {
		t.Fatal(err)
	}
	if status, out := s.run("install", "--engine=crio", "--as-default"); status != 0 {
		t.Errorf("it starts with them now: status %d\n%s", status, out)
	}
}

// TestUnitsThatHaveFailed: a unit that is slow, or ended once, has not.
func TestUnitsThatHaveFailed(t *testing.T) {
	for shown, failed := range map[string]bool{
		"failed failed exit-code 5": true, "failed failed timeout 0": true,
		"activating auto-restart exit-code 1": true, "activating auto-restart-queued signal 4": true,
		"activating auto-restart exit-code 0": false, "activating auto-restart timeout 3": false,
		"activating start success 2": false, "active running success 2": false,
		"inactive dead success 0": false,
	} {
		v := strings.Fields(shown)
		if got := hasFailed(map[string]string{"ActiveState": v[0], "SubState": v[1], "Result": v[2],
			"NRestarts": v[3]}); got != failed {
			t.Errorf("%s: %v", shown, got)
		}
	}
}
