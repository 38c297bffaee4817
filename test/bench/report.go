package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// A Row is one figure: a comparison with the bare runtime, a time, or a size.
type Row struct {
	What   string `json:"what"`
	Who    string `json:"who"`
	Base   Spread `json:"base_ms,omitzero"`  // the bare runtime, true(1), or the smaller ledger
	Took   Spread `json:"took_ms,omitzero"`  // Who
	Ratio  Spread `json:"ratio,omitzero"`    // of each pair
	Added  Spread `json:"added_ms,omitzero"` // of each pair
	Bytes  int64  `json:"bytes,omitempty"`
	Goal   string `json:"goal,omitempty"`
	Budget string `json:"budget,omitempty"`
	Mark   string `json:"mark,omitempty"` // ok, within budget but above the goal, over
}

// A Machine describes where the figures were measured.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Kernel     string `json:"kernel"`
	Cgroups    string `json:"cgroups"`
	FileSystem string `json:"file_system"` // of the ledger and the root file systems
	Run        string `json:"run"`         // of bindings, the runtimes' state and the bundles
	Runtime    string `json:"runtime"`
	Ours       string `json:"gpuledger"`
	Peer       string `json:"peer"`
	Installed  string `json:"installed"`
	RCU        string `json:"rcu"`
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
	Engines    string `json:"engines,omitempty"` // of -peers
}

// A Report is one run.
type Report struct {
	Machine Machine `json:"machine"`
	Pairs   int     `json:"pairs"`
	Rows    []Row   `json:"rows"`
	Calls   []Call  `json:"calls,omitempty"` // of -peers
}

func comparison(what, who string, base, times []time.Duration) Row {
	row := Row{What: what, Who: who, Base: spread(inMilliseconds(base)), Took: spread(inMilliseconds(times))}
	row.Ratio, row.Added = pairwise(base, times)
	return row
}

// within marks the row against its budget and its goal.
func (row *Row) within(budget, goal bool) {
	switch {
	case !budget:
		row.Mark = "over"
	case !goal:
		row.Mark = "ok, above the goal"
	default:
		row.Mark = "ok"
	}
}

var header = []string{"what", "who", "base ms", "took ms", "ratio", "added ms (95 %)", "goal", "budget", ""}

func (row Row) cells() []string {
	cells := []string{row.What, row.Who, "", "", "", "", row.Goal, row.Budget, row.Mark}
	if row.Base.Median > 0 {
		cells[2] = fmt.Sprintf("%.2f", row.Base.Median)
		cells[4] = fmt.Sprintf("%.3f", row.Ratio.Median)
		cells[5] = fmt.Sprintf("%+.2f (%+.2f..%+.2f)", row.Added.Median, row.Added.Low, row.Added.High)
	}
	if row.Took.Median > 0 {
		cells[3] = fmt.Sprintf("%.2f", row.Took.Median)
	}
	if row.Bytes > 0 {
		cells[3] = fmt.Sprintf("%.2f MiB", float64(row.Bytes)/(1<<20))
	}
	return cells
}

func (r Report) notes() []string {
	m := r.Machine
	notes := []string{
		fmt.Sprintf("Machine: %s, %d cores, Linux %s, %s; the ledger on %s, run_dir, bundles, root file "+
			"systems and runtime state on %s.",
			m.CPU, m.Cores, m.Kernel, m.Cgroups, m.FileSystem, m.Run),
		fmt.Sprintf("Load average before: %s; after: %s.", m.LoadBefore, m.LoadAfter),
		fmt.Sprintf("RCU grace periods: %s.", m.RCU),
		fmt.Sprintf("Bare runtime: %s. Ours: %s. Peer: %s; %s.", m.Runtime, m.Ours, m.Peer, m.Installed),
		fmt.Sprintf("Medians of %d rounds, contestants in a new random order in each; ratio and added are "+
			"medians of what each round gives, in parentheses the 95 %% confidence interval of that median.",
			r.Pairs),
		"Simulated GPUs: the grant's edits are device nodes and rules; a driver's files only where a row " +
			"says so.",
	}
	if m.Engines != "" {
		notes = append(notes, m.Engines)
	}
	return notes
}

func (r Report) writeText(w io.Writer) {
	for _, note := range r.notes() {
		fmt.Fprintln(w, note)
	}
	for _, t := range r.tables() {
		fmt.Fprintln(w)
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, cells := range t {
			fmt.Fprintln(table, strings.Join(cells, "\t"))
		}
		_ = table.Flush()
	}
}

func (r Report) writeMarkdown(w io.Writer) {
	for _, note := range r.notes() {
		fmt.Fprintf(w, "* %s\n", note)
	}
	for _, t := range r.tables() {
		fmt.Fprintf(w, "\n| %s |\n|%s\n", strings.Join(t[0], " | "), strings.Repeat("---|", len(t[0])))
		for _, cells := range t[1:] {
			fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
		}
	}
}

// tables are the rows and the calls, if there are some, each with its header.
func (r Report) tables() [][][]string {
	rows, calls := [][]string{header}, [][]string{callHeader}
	for _, row := range r.Rows {
		rows = append(rows, row.cells())
	}
	for _, call := range r.Calls {
		calls = append(calls, call.cells())
	}
	empty := func(table [][]string) bool { return len(table) == 1 }
	return slices.DeleteFunc([][][]string{rows, calls}, empty)
}

func readFile(path string) string {
	data, _ := os.ReadFile(path)
	return string(data)
}

func loadAverage() string {
	return strings.Join(strings.Fields(readFile("/proc/loadavg"))[:3], " ")
}

func cpuModel() string {
	for line := range strings.Lines(readFile("/proc/cpuinfo")) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

func cgroupLayout() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "cgroup v2"
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		return "cgroup v1 (hybrid)"
	}
	return "cgroup v1"
}

// fileSystem names the type of the file system that holds path.
func fileSystem(path string) string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		return "an unknown file system"
	}
	names := map[int64]string{0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs",
		0x794C7630: "overlayfs"}
	if name, ok := names[int64(fs.Type)]; ok {
		return name
	}
	return fmt.Sprintf("file system type %#x", fs.Type)
}

func firstLine(argv ...string) string {
	output, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return argv[0]
	}
	line, _, _ := strings.Cut(string(output), "\n")
	return line
}

// peerVersion is the version that the peer's module pins.
func peerVersion() string {
	for line := range strings.Lines(readFile("test/tools/nvidia-container-toolkit/go.mod")) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[len(fields)-1] != "tool" {
			for i, field := range fields {
				if field == "github.com/NVIDIA/nvidia-container-toolkit" && i+1 < len(fields) {
					return fields[i+1]
				}
			}
		}
	}
	return "of unknown version"
}
