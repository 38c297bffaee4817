// Package doctor tells an administrator what works on this node, what does not, and what to do.
// Gather reads the facts; each check is a function of them.
package doctor

import "slices"

// Result is the result of a line.
type Result string

// The statuses. A problem keeps gpuledger from doing what it is configured to do. A warning is for
// the administrator to judge.
const (
	OK      Result = "ok"
	Warning Result = "warning"
	Problem Result = "problem"
)

// Line is one result of a check.
type Line struct {
	Check   string `json:"check"` // the name of a row of Checks
	Status  Result `json:"status"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do
}

// Check examines one concern. It uses facts only, and returns at least one line.
type Check struct {
	Name string
	look func(Facts) []Line
}

// Checks are all checks, in the order of the output: those that others depend on come first.
var Checks = []Check{
	{"configuration", configuration},
	{"policy", rules},
	{"directories", directories},
	{"programs", programs},
	{"runtimes", runtimes},
	{"kernel", kernel},
	{"cgroup", cgroups},
	{"driver", driver},
	{"inventory", inventory},
	{"devices", devices},
	{"strength", strengths},
	{"ledger", book},
	{"audit", audit},
	{"engines", engineLines},
	{"hooks", hooks},
	{"cdi", cdi},
	{"toolkit", toolkit},
	{"plugins", plugins},
	{"daemon", daemon},
}

// Examine runs all checks.
func Examine(f Facts) []Line {
	var all []Line
	for _, c := range Checks {
		for _, l := range c.look(f) {
			l.Check = c.Name
			all = append(all, l)
		}
	}
	return all
}

// Healthy reports whether no line is a problem.
func Healthy(lines []Line) bool {
	return !slices.ContainsFunc(lines, func(l Line) bool { return l.Status == Problem })
}
