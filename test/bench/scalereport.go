package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// A CallRow is what one kind of calls took at one size.
type CallRow struct {
	What string      `json:"what"`
	CPU  Percentiles `json:"cpu_ms"`
	Wall Percentiles `json:"wall_ms"`
}

func rowOf(what string, costs []callCost) CallRow {
	var cpu, wall []time.Duration
	for _, c := range costs {
		cpu, wall = append(cpu, c.cpu), append(wall, c.wall)
	}
	return CallRow{what, percentiles(cpu), percentiles(wall)}
}

// A DaemonRow is what gpuledgerd and its child that samples NVML took at one size. Sizes are KiB.
type DaemonRow struct {
	CPU              float64     `json:"cpu_percent"` // of a core
	ChildCPU         float64     `json:"child_cpu_percent"`
	Resident         int         `json:"resident_kib"`
	Peak             int         `json:"peak_kib"`
	ChildResident    int         `json:"child_resident_kib"`
	Descriptors      int         `json:"descriptors"`
	ChildDescriptors int         `json:"child_descriptors"`
	Threads          int         `json:"threads"`
	Watch            Percentiles `json:"watch_ms"`
	Reconcile        Percentiles `json:"reconcile_ms"`
	Scrape           Percentiles `json:"scrape_ms"`
	ScrapeBytes      int         `json:"scrape_bytes"`
}

// ScaleAt is all of one size.
type ScaleAt struct {
	Size   scaleSize `json:"size"`
	Calls  []CallRow `json:"calls"`
	Daemon DaemonRow `json:"gpuledgerd"`
}

// A ScaleReport is one run of the node at scale.
type ScaleReport struct {
	Machine Machine   `json:"machine"`
	Sizes   []ScaleAt `json:"sizes"`
}

func (r ScaleReport) write(w io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	m := r.Machine
	fmt.Fprintf(w, "* Machine: %s, %d cores, Linux %s, %s. Load average before: %s; after: %s.\n",
		m.CPU, m.Cores, m.Kernel, m.Cgroups, m.LoadBefore, m.LoadAfter)
	fmt.Fprintf(w, "* %s; %s; the ledger on %s, the run directory on %s. RCU grace periods: %s.\n",
		m.Ours, m.Runtime, m.FileSystem, m.Run, m.RCU)
	fmt.Fprintf(w, "* %d GPUs, %d processes of each container on a GPU.\n", scaleGPUs, perContainer)
	for _, at := range r.Sizes {
		fmt.Fprintf(w, "* %s\n", at.Size)
	}
	fmt.Fprintln(w, "* Cells: p50, p90, p99. Time on a core, and in brackets until the end, in ms.")
	first, last := r.Sizes[0], r.Sizes[len(r.Sizes)-1]
	fmt.Fprintf(w, "\n| call |%s grows with the size's power of |\n|---|%s\n", r.heads(),
		strings.Repeat("---|", len(r.Sizes)+1))
	for i, call := range first.Calls {
		fmt.Fprintf(w, "| %s |", call.What)
		to := CallRow{}
		for _, at := range r.Sizes {
			to = CallRow{}
			if i < len(at.Calls) { // else the run was interrupted
				to = at.Calls[i]
			}
			fmt.Fprintf(w, " %s (%s) |", to.CPU, to.Wall)
		}
		fmt.Fprintf(w, " %s |\n", r.power(call.CPU.P50, to.CPU.P50))
	}
	fmt.Fprintf(w, "\n| gpuledgerd |%s grows with the size's power of |\n|---|%s\n", r.heads(),
		strings.Repeat("---|", len(r.Sizes)+1))
	for _, row := range daemonRows {
		fmt.Fprintf(w, "| %s |", row.what)
		for _, at := range r.Sizes {
			text, _ := row.of(at.Daemon)
			fmt.Fprintf(w, " %s |", text)
		}
		_, from := row.of(first.Daemon)
		_, to := row.of(last.Daemon)
		fmt.Fprintf(w, " %s |\n", r.power(from, to))
	}
	return nil
}

func (r ScaleReport) heads() string {
	var heads strings.Builder
	for _, at := range r.Sizes {
		fmt.Fprintf(&heads, " %d grants |", at.Size.Grants)
	}
	return heads.String()
}

// power is the exponent of the size with which a figure grows from the first size to the last: 1 is
// proportional, above 1 is a curve to explain.
func (r ScaleReport) power(from, to float64) string {
	sizes := float64(r.Sizes[len(r.Sizes)-1].Size.Grants) / float64(r.Sizes[0].Size.Grants)
	if sizes == 1 || from <= 0 || to <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", math.Log(to/from)/math.Log(sizes))
}

var daemonRows = []struct {
	what string
	of   func(DaemonRow) (text string, grows float64)
}{
	{"CPU, daemon", func(d DaemonRow) (string, float64) { return percent(d.CPU) }},
	{"CPU, child", func(d DaemonRow) (string, float64) { return percent(d.ChildCPU) }},
	{"memory now, daemon", func(d DaemonRow) (string, float64) { return mebibytes(d.Resident) }},
	{"memory at most, daemon", func(d DaemonRow) (string, float64) { return mebibytes(d.Peak) }},
	{"memory now, child", func(d DaemonRow) (string, float64) { return mebibytes(d.ChildResident) }},
	{"descriptors, daemon", func(d DaemonRow) (string, float64) { return number(d.Descriptors) }},
	{"descriptors, child", func(d DaemonRow) (string, float64) { return number(d.ChildDescriptors) }},
	{"threads, daemon", func(d DaemonRow) (string, float64) { return number(d.Threads) }},
	{"a pass of the watch, ms", func(d DaemonRow) (string, float64) { return d.Watch.String(), d.Watch.P50 }},
	{"a pass of reconcile, ms", func(d DaemonRow) (string, float64) { return d.Reconcile.String(), 0 }},
	{"a scrape, ms", func(d DaemonRow) (string, float64) { return d.Scrape.String(), d.Scrape.P50 }},
	{"a scrape, size", func(d DaemonRow) (string, float64) { return mebibytes(d.ScrapeBytes >> 10) }},
}

func percent(share float64) (string, float64) { return fmt.Sprintf("%.2f %%", share), share }

func number(n int) (string, float64) { return fmt.Sprint(n), float64(n) }

func mebibytes(kib int) (string, float64) {
	return fmt.Sprintf("%.1f MiB", float64(kib)/1024), float64(kib)
}
