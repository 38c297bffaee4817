//go:build e2e

// Package e2e runs the story through real container engines. A container reaches exactly what it
// was granted, or it does not start, and the engine's own error says why.
//
// Each engine gets a machine of its own (see rig.InMachine) for each of gpuledger's entry points
// that it has. In it the engine runs at its standard paths. test/e2e/run.sh builds what Debian does
// not have and runs the tests.
package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/gpuledger/gpuledger/test/rig"
)

// entriesVar has the names of the entry points to test; empty: all. engineVar names the engine of a
// machine and gpuledger's entry point there, resultsVar the file in which its machine notes
// results.
const (
	entriesVar = "E2E_ENTRIES"
	engineVar  = "GPULEDGER_E2E_ENGINE"
	resultsVar = "GPULEDGER_E2E_RESULTS"
)

func TestMain(m *testing.M) {
	if rig.EnterMachine() {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		const why = "these tests need root: they start container engines"
		if asked(strings.Split(os.Getenv(entriesVar), ",")) {
			fmt.Println("cannot run:", why)
			os.Exit(1)
		}
		fmt.Println("SKIP:", why)
		os.Exit(0)
	}
	os.Exit(everyEngine(strings.Split(os.Getenv("E2E"), ","),
		strings.Split(cmp.Or(os.Getenv(entriesVar), allEntries()), ",")))
}

// everyEngine runs the tests once for each engine and prints what came out. The names are those of
// the engines, or of several at once: "podman" is podman-crun and podman-runc.
func everyEngine(names, at []string) int {
	file, err := os.CreateTemp("", "results-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.Remove(file.Name())
	module, _ := filepath.Abs("../..")
	status, ran := 0, 0
	for _, e := range engines {
		if !slices.ContainsFunc(names, func(name string) bool {
			return name == e.name || name != "" && strings.HasPrefix(e.name, name+"-")
		}) {
			continue
		}
		for _, i := range entries {
			if i.on != nil && !i.on(e) || !slices.Contains(at, i.name) || e.cluster != i.cluster {
				continue
			}
			ran++
			fmt.Printf("=== %s, %s\n", e.name, i.name)
			status = max(status, rig.InMachine(module, e.layout, os.Args[1:], engineVar+"="+e.name+" "+i.name,
				resultsVar+"="+file.Name()))
			if status == rig.Stopped {
				return status
			}
		}
	}
	if ran == 0 {
		fmt.Printf("cannot run: no engine is named in E2E=%q and %s=%q; there are %s, and %s\n",
			os.Getenv("E2E"), entriesVar, os.Getenv(entriesVar), known(), allEntries())
		return 2
	}
	printTable(file.Name())
	return status
}

func known() string {
	var names []string
	for _, e := range engines {
		names = append(names, e.name)
	}
	return strings.Join(names, ", ")
}

// allEntries are the entry points that are tested unless some are named.
func allEntries() string {
	var names []string
	for _, i := range entries {
		if i.asked {
			continue
		}
		names = append(names, i.name)
	}
	return strings.Join(names, ",")
}

// asked reports whether an entry point is among the names that is tested only where it is named.
func asked(names []string) bool {
	return slices.ContainsFunc(entries, func(i entry) bool {
		return i.asked && slices.Contains(names, i.name)
	})
}

// outcome is one cell of the table.
type outcome struct {
	Engine, Client, Entry, Case, Result, Why string
}

// note records an outcome for the table.
func note(t testing.TB, o outcome) {
	t.Helper()
	line, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(os.Getenv(resultsVar), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}

// printTable prints a row for each case and a column for each engine, client and entry point. A
// case that an engine cannot express is "-", with the reason below.
func printTable(file string) {
	data, _ := os.ReadFile(file)
	results, reasons := map[string]string{}, map[string][]string{}
	var columns, rows, whys []string
	for _, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		var o outcome
		if json.Unmarshal(line, &o) != nil {
			continue
		}
		column := strings.Join([]string{o.Engine, o.Client, o.Entry}, "\t")
		columns, rows = appendOnce(columns, column), appendOnce(rows, o.Case)
		results[column+o.Case] = o.Result
		if o.Why != "" {
			whys = appendOnce(whys, o.Why)
			reasons[o.Why] = appendOnce(reasons[o.Why], o.Engine+" "+o.Client)
		}
	}
	if len(rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w)
	for i, head := range []string{"engine", "client", "entry point"} {
		fmt.Fprint(w, head)
		for _, column := range columns {
			fmt.Fprint(w, "\t", strings.Split(column, "\t")[i])
		}
		fmt.Fprintln(w)
	}
	for _, row := range rows {
		fmt.Fprint(w, row)
		for _, column := range columns {
			fmt.Fprint(w, "\t", results[column+row])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	for _, why := range whys {
		fmt.Printf("- %s: %s\n", strings.Join(reasons[why], ", "), why)
	}
	fmt.Println()
}

func appendOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
