package daemon

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/metrics"
	"github.com/gpuledger/gpuledger/internal/page"
)

// reset is how to reset a GPU. gpuledgerd's own child process has the GPU open.
const reset = "`systemctl stop gpuledgerd`, `nvidia-smi --gpu-reset -i GPU`, `systemctl start gpuledgerd`"

// advice says what to do about each kind of finding.
var advice = map[grant.FindingKind]string{
	grant.OverGrant: "give the grant more (`gpuledger grant --update ID --memory SIZE`) or end the " +
		"container; " +
		"with policy.on_over_grant = \"stop\" gpuledgerd ends it",
	grant.OutsideLedger: "end it, start its container with a grant, or exempt it ([[policy.exempt]]) " +
		"if it is an " +
		"agent of the node; until then the memory counts as taken",
	grant.Unexplained: "compare with `nvidia-smi`; memory that a crashed program has left behind is " +
		"free after a reset of the GPU: " + reset,
	grant.ModeChanged: "set the compute mode back with the command above; root of the node has changed it",
	grant.LayoutChanged: "nothing, if the change was intended: the inventory is taken again; release " +
		"grants of MIG " +
		"devices that are gone (`gpuledger release ID`)",
	grant.GPULost: "look at `dmesg` and `nvidia-smi`; a GPU that does not come back gets no new " +
		"grants, and needs a reboot or a reset: " + reset + "; when it answers again, the inventory is " +
		"taken again",
	grant.GPUError: "look up the number in NVIDIA's list of XID errors; `dmesg` has the driver's " +
		"whole message",
	grant.LimitChanged: "find the program that changes the driver's limits: only root of the node can; " +
		"the log of " +
		"gpuledgerd says what was done about it",
	grant.HandlerChanged: "run `gpuledger configure ENGINE --as-default --restart` to take the " +
		"default back, or " +
		"`gpuledger configure ENGINE --undo` if the change was intended",
}

// maxAlarms is how many findings of the watch the page lists.
const maxAlarms = 20

// alarms are what an administrator should look at, in sentences.
func alarms(s metrics.Snapshot) []page.Alarm {
	all := nodeAlarms(s)
	for i, f := range s.Watch.Findings {
		if i == maxAlarms {
			all = append(all, page.Alarm{
				Message: fmt.Sprintf("there are %d more findings", len(s.Watch.Findings)-i),
				Advice:  "`gpuledger audit` shows all of them"})
			break
		}
		all = append(all, page.Alarm{Message: f.Message, Advice: advice[f.Kind]})
	}
	for _, m := range s.Managers {
		if m.Error != "" {
			all = append(all, page.Alarm{Message: "gpuledgerd's manager " + m.Name + " fails: " + m.Error,
				Advice: "`journalctl -u gpuledgerd` shows since when; it tries again by itself"})
		}
	}
	return all
}

// nodeAlarms are about the policy, the ledger and the inventory.
func nodeAlarms(s metrics.Snapshot) (all []page.Alarm) {
	const enable = "`gpuledger enable` ends that"
	switch p := s.Node.Pause; {
	case s.Node.Mode == grant.Disabled && p.Until.IsZero():
		all = append(all, page.Alarm{
			Message: "gpuledger is disabled without an end: containers start without grants", Advice: enable})
	case s.Node.Mode == grant.Disabled:
		all = append(all, page.Alarm{Message: "gpuledger is disabled until " +
			p.Until.UTC().Format(time.RFC3339) + ": containers start without grants", Advice: enable})
	}
	if s.Err != nil {
		all = append(all, page.Alarm{Message: s.Err.Error(), Advice: "`gpuledger check` says what is wrong"})
	}
	if p := s.Node.Problem; p != nil {
		all = append(all, page.Alarm{Message: p.Message, Advice: p.Hint})
	}
	for _, d := range s.Node.Damaged {
		all = append(all, page.Alarm{
			Message: "the ledger's entry " + string(d.ID) +
				" is damaged or missing; its GPUs take no new grants",
			Advice: "`gpuledger check` says what is wrong with it"})
	}
	return all
}
