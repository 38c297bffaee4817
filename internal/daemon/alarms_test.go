package daemon

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/metrics"
)

// TestEveryAlarmSaysWhatToDo: only some findings are alarms.
func TestEveryAlarmSaysWhatToDo(t *testing.T) {
	s := metrics.Snapshot{Managers: []metrics.ManagerStatus{{Name: "watch", Error: "no"}, {Name: "cdi"}}}
	s.Node.Mode = grant.Disabled
	s.Node.Problem = &grant.Problem{Message: "the inventory is missing",
		Hint: "run `gpuledger inventory refresh`"}
	for _, kind := range grant.FindingKinds {
		s.Watch.Findings = append(s.Watch.Findings, grant.Finding{Kind: kind, Message: string(kind)})
	}
	all := alarms(s)
	if want := 3 + len(grant.FindingKinds); len(all) != want {
		t.Errorf("%d alarms, want %d: %+v", len(all), want, all)
	}
	for _, a := range all {
		if a.Message == "" || a.Advice == "" {
			t.Errorf("%+v does not say what to do", a)
		}
		if strings.Contains(a.Advice, " reset") &&
			!strings.Contains(a.Advice, "`systemctl stop gpuledgerd`") {
			t.Errorf("%+v leaves out that gpuledgerd has the GPU open", a)
		}
	}
	for range maxAlarms {
		s.Watch.Findings = append(s.Watch.Findings, grant.Finding{Kind: grant.GPUError, Message: "XID"})
	}
	all = alarms(s)
	if len(all) != 4+maxAlarms || !strings.Contains(all[len(all)-2].Message, "there are 9 more findings") {
		t.Errorf("%d alarms: %+v", len(all), all[len(all)-2])
	}
}
