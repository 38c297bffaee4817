package doctor

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func configuration(f Facts) []Line {
	switch {
	case f.Broken != nil:
		return []Line{{Status: Problem, Message: f.Broken.Error(),
			Hint: "correct it: until then the defaults are in force and no pod's identity is believed"}}
	case f.Config.Missing:
		return []Line{{Status: OK, Message: "there is no " + f.Config.Path + ": the defaults are in force"}}
	case f.Config.loose() || len(f.Config.Above) > 0:
		return []Line{open(f.Config)}
	}
	lines := pools(f)
	for _, why := range f.Quotas {
		lines = append(lines, Line{Status: Warning, Message: why,
			Hint: "correct [[quota]] in the configuration, or take it out"})
	}
	return orOK(lines, "%s is in force", f.Config.Path)
}

// rules reports what happens to a refusal now.
func rules(f Facts) []Line {
	switch f.Mode {
	case grant.Disabled:
		until := "until `gpuledger enable`"
		if !f.Until.IsZero() {
			until = "until " + f.Until.Local().Format(time.RFC3339)
		}
		return []Line{{Status: Warning, Message: "gpuledger is disabled " + until + ": nothing is refused",
			Hint: "run `gpuledger enable` when the emergency is over"}}
	case grant.Report:
		return []Line{{Status: Warning,
			Message: `policy.mode is "report": containers that would be refused start, and are recorded`,
			Hint:    "read the audit log, then set policy.mode = \"enforce\""}}
	}
	return []Line{{Status: OK, Message: "refusals are enforced"}}
}

// room is the free space that a directory of gpuledger's should have, in bytes. It suffices for
// some thousand grants, so an operator learns of a full disk before grants fail.
const room = 16 << 20

// directories checks that only root can write to gpuledger's directories, because a process that
// writes there can make grants.
func directories(f Facts) []Line {
	var lines []Line
	for i, p := range []PathFacts{f.State, f.Run} {
		free := []uint64{f.StateFree, f.RunFree}[i]
		switch {
		case p.Error != nil:
			lines = append(lines, Line{Status: Problem,
				Message: fmt.Sprintf("cannot look at %s: %v", p.Path, p.Error),
				Hint:    "look at the disk and its mounts"})
		case len(p.Above) > 0:
			lines = append(lines, open(p.Above[0]))
		case p.Missing && p.Writable:
		case p.Missing:
			lines = append(lines, Line{Status: Problem,
				Message: p.Path + " does not exist and cannot be made",
				Hint:    "is the file system mounted read-only?"})
		case !p.Mode.IsDir():
			lines = append(lines, Line{Status: Problem, Message: p.Path + " is no directory",
				Hint: "move it away; gpuledger makes a directory there"})
		case p.UID != 0 || p.Mode.Perm()&0o077 != 0:
			lines = append(lines, Line{Status: Problem,
				Message: fmt.Sprintf(
					"%s has mode %04o and owner %d: grants and their secrets are for root alone", p.Path,
					p.Mode.Perm(), p.UID),
				Hint: fmt.Sprintf("chown root %s && chmod 0700 %s", p.Path, p.Path)})
		case !p.Writable:
			lines = append(lines, Line{Status: Problem, Message: p.Path + " cannot be written to",
				Hint: "is its file system mounted read-only?"})
		}
		if p.Error == nil && free < room {
			lines = append(lines, Line{Status: Warning,
				Message: fmt.Sprintf(
					"the file system of %s has %s free: without room no grant can be made or released",
					p.Path, grant.Bytes(free)),
				Hint: "make room; gpuledger itself keeps a few kilobytes a grant there"})
		}
	}
	return orOK(lines, "%s and %s are root's alone", f.State.Path, f.Run.Path)
}

func inventory(f Facts) []Line {
	if p := f.InventoryProblem; p != nil {
		return []Line{{Status: Problem, Message: p.Message, Hint: p.Hint}}
	}
	var lines []Line
	if len(f.Gone) > 0 {
		lines = append(lines, Line{Status: Problem,
			Message: fmt.Sprintf("%d of the driver's %d files are gone, the first is %s: containers that "+
				"get them do not start", len(f.Gone), len(f.Inventory.Driver.Files), f.Gone[0]),
			Hint: "if the driver was upgraded, reboot the node or load its new modules; then run " +
				"`gpuledger inventory refresh`"})
	}
	if _, loaded := f.Majors["nvidia"]; loaded && f.Policy.Inventory.Source == grant.Simulated {
		lines = append(lines, Line{Status: Warning,
			Message: "the inventory is simulated, but an NVIDIA driver is loaded",
			Hint:    "set inventory.source = \"nvml\" and run `gpuledger inventory refresh`"})
	}
	for _, g := range f.Inventory.GPUs {
		if g.Health != grant.Healthy {
			lines = append(lines, Line{Status: Warning,
				Message: fmt.Sprintf("GPU %d (%s) takes no grants: %s", g.Index, g.UUID, g.Health),
				Hint:    "when it is well again run `gpuledger inventory refresh`"})
		}
	}
	if len(f.Inventory.GPUs) == 0 {
		lines = append(lines, Line{Status: Warning, Message: "the inventory is of this boot and has no GPU",
			Hint: "after a GPU was added run `gpuledger inventory refresh`"})
	}
	return orOK(lines, "%d GPUs from source %s, of this boot and driver", len(f.Inventory.GPUs),
		f.Inventory.Source)
}

// strength reports what holds a container to its memory in mode limit, and why nothing stronger
// does.
func strength(f Facts) []Line {
	has, why := grant.StrengthNone, f.WhyNoShimLimit
	switch {
	case f.WhyNoDriverLimit == "":
		has, why = grant.StrengthDriver, "by driver "+f.Inventory.Driver.Version+
			" on cgroup v2, with gpuledgerd"
	case f.WhyNoShimLimit == "":
		has, why = grant.StrengthLibrary, "by the shim in "+f.Inventory.Shim.Dir
	}
	message := fmt.Sprintf("mode limit has strength %s on this node (%s)", has, why)
	switch {
	case has == grant.StrengthNone && f.Policy.Enforcement.Limit == grant.DriverBackend:
		message = "in mode limit memory is only counted here: " + f.WhyNoDriverLimit
	case has == grant.StrengthNone:
		message = "in mode limit memory is only counted here: " + why + ", and " + f.WhyNoDriverLimit
	case has != grant.StrengthDriver:
		message += "; not by the driver: " + f.WhyNoDriverLimit
	}
	return []Line{judged(f, has, message)}
}

// throttle reports what becomes of shares of compute in mode limit, if the policy throttles
// launches.
func throttle(f Facts) []Line {
	const hint = "set enforcement.compute = \"count\", or use mode mps where a share has to be kept"
	switch {
	case f.Policy.Enforcement.Compute != grant.ThrottleShare:
		return nil
	case f.WhyNoComputeShare != "":
		return []Line{{Status: Warning,
			Message: "a share of compute in mode limit is refused (limit-unenforceable): " +
				f.WhyNoComputeShare, Hint: hint}}
	case f.Daemon == 0:
		return []Line{{Status: Warning,
			Message: "a share of compute in mode limit has strength library, experimental, and gpuledgerd " +
				"does not run: launches pass for that part of the time, whatever they cost the GPU",
			Hint: "start gpuledgerd"}}
	}
	return []Line{
		{Status: OK,
			Message: "a share of compute in mode limit has strength library, experimental: the shim " +
				"throttles launches (docs/strength.md)"}}
}

// judged is a line that compares a strength with the one that the policy wants.
func judged(f Facts, has grant.Strength, message string) Line {
	backend := f.Policy.Enforcement.Limit
	switch minimum := f.Policy.Rules.MinimumStrength; {
	case !has.AtLeast(minimum):
		return Line{Status: Warning,
			Message: fmt.Sprintf("%s; policy.minimum_strength is %q, so grants of mode limit are refused "+
				"(limit-unenforceable)", message, minimum),
			Hint: "lower policy.minimum_strength, or use mode mig where it is needed"}
	case has == grant.StrengthNone && (backend == grant.LibraryBackend || backend == grant.DriverBackend):
		return Line{Status: Warning,
			Message: fmt.Sprintf(
				"%s; enforcement.limit is %q, so grants of mode limit are refused (limit-unenforceable)",
				message, backend),
			Hint: "set enforcement.limit = \"auto\", or give the node what it lacks"}
	}
	return Line{Status: OK, Message: message}
}

// unlooked is the line of a check that needs the configuration, while that is broken.
func unlooked(what string) Line {
	return Line{Status: Warning, Message: what + ", because the configuration is broken",
		Hint: "correct the configuration"}
}

func book(f Facts) []Line {
	switch {
	case f.LedgerError != nil:
		return []Line{{Status: Problem, Message: f.LedgerError.Error(), Hint: "run `gpuledger check`"}}
	case !f.LedgerLooked && f.Broken != nil:
		return []Line{unlooked("the ledger was not looked at")}
	case !f.LedgerLooked:
		return []Line{{Status: OK, Message: "the ledger is empty"}}
	}
	var lines []Line
	for _, finding := range f.Ledger.Findings {
		if !finding.Repaired {
			lines = append(lines, Line{Status: Problem, Message: finding.Subject + ": " + finding.Problem,
				Hint: finding.Hint})
		}
	}
	return orOK(lines, "the ledger is sound: %d grants, %d in use%s", f.Ledger.Grants, f.Ledger.Bindings,
		f.Ledger.Remains())
}

func audit(f Facts) []Line {
	file, p := f.Policy.Audit.File, f.Audit
	full := uint64(f.Policy.Audit.MaxSize) * uint64(f.Policy.Audit.Keep+1)
	switch {
	case file == "":
		return []Line{{Status: Warning,
			Message: "audit.file is off: refusals and admissions are not recorded", Hint: "set audit.file"}}
	case p.Error != nil || !p.Writable:
		return []Line{{Status: Problem, Message: file + " cannot be written: decisions are not recorded",
			Hint: "look at its directory, the disk and its mounts"}}
	case !p.Missing && !p.Mode.IsRegular():
		return []Line{{Status: Problem, Message: file + " is no regular file: nothing is written to it",
			Hint: "move it away, or set audit.file"}}
	case p.loose():
		return []Line{open(p)}
	case f.Free < full:
		return []Line{{Status: Warning,
			Message: fmt.Sprintf("%s may grow to %s, and its file system has %s free", file,
				grant.Bytes(full), grant.Bytes(f.Free)),
			Hint: "make room, or lower audit.max_size or audit.keep"}}
	}
	return []Line{{Status: OK, Message: "decisions are recorded in " + file}}
}

// daemon checks gpuledgerd. Most containers behind the wrapper do not need it.
func daemon(f Facts) []Line {
	line := Line{Status: OK,
		Message: "gpuledgerd does not run; grants of users, the queue (--wait), access lists, mode mps, " +
			"the driver's memory limits, the throttle, guarding by NRI, the watch and metrics need it; " +
			"other containers behind gpuledger-runtime are guarded without it"}
	users, acl := len(f.Policy.Quotas) > 0, f.Policy.Enforcement.UserNodes == grant.UserNodesACL
	switch {
	case f.Broken != nil && f.Daemon == 0:
		return []Line{unlooked("gpuledgerd was not looked for")}
	case f.Broken != nil:
		return []Line{unlooked(fmt.Sprintf("gpuledgerd runs (process %d); its address was not looked at",
			f.Daemon))}
	case f.Daemon != 0:
		line.Message = fmt.Sprintf("gpuledgerd runs (process %d)", f.Daemon)
	case users || acl:
		line.Status, line.Hint = Warning, "`systemctl enable --now gpuledgerd`"
		line.Message = "gpuledgerd does not run, so no user without root gets a grant, though the " +
			"configuration has [[quota]]"
		if !users {
			line.Message = "gpuledgerd does not run, so no access list follows the grants, though " +
				"enforcement.user_nodes says so"
		}
	}
	return append([]Line{line}, listener(f)...)
}
