// Command mutants changes the code that decides about containers, one condition, comparison or
// result at a time, and runs its tests. A mutant that no test notices is a survivor: a line that
// could be wrong unnoticed. It exits with 1 where one survives that survivors.txt
// does not explain.
//
// Without arguments it changes the packages whose survivors are all explained, so that 1 means a
// new survivor. Arguments name other packages: of internal/node, internal/ledger,
// internal/containers and internal/inject many survive that were not examined yet.
//
// All mutants are compiled into the test programs at once, and a variable of the environment
// chooses one: compiling each of them on its own, as the libraries for this do, takes seconds a
// mutant. A mutant meets only the tests that reach it.
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const module = "github.com/gpuledger/gpuledger"

//go:embed overlay/mutating.go
var mutating []byte

//go:embed survivors.txt
var survivorsFile string

// complete are the packages whose survivors survivors.txt explains, all of them. They are mutated
// by default.
var complete = []string{"internal/admission", "internal/hostpath", "internal/request", "internal/edit"}

// tested are the packages whose tests meet the mutants, the quick ones first; a package's own tests
// come before them.
var tested = []string{"internal/admission", "internal/edit", "internal/nri", "hook", "runtime", "cdi",
	"internal/inject", "test/oracle", "internal/hostpath", "internal/request", "internal/node",
	"internal/containers", "internal/ledger"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants: "+err.Error())
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintf(flag.CommandLine.Output(), `usage: mutants [FLAG...] [PACKAGE...]

Changes the code of packages, one condition, comparison or result at a time, and runs the tests. It exits
with 1 where a change survives that test/mutants/survivors.txt does not explain.

Without a PACKAGE: %s. All their survivors are
explained. Of internal/node, internal/ledger, internal/containers and internal/inject they are not: name
these to see them.

`, strings.Join(complete, ", "))
	flag.PrintDefaults()
}

func run() error {
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "choose the mutants by this `number`")
	limit := flag.Duration("time", 10*time.Minute, "stop after this `duration`; 0 runs all mutants")
	only := flag.String("only", "", "run the mutants whose name has this `text` in it")
	again := flag.String("again", "", "run the mutants that survived by what an earlier run has printed "+
		"into this `file`")
	known := flag.Bool("explained", false, "run the mutants that survivors.txt explains, too; else they "+
		"count as survivors")
	jobs := flag.Int("jobs", 2, "mutants at once")
	with := flag.String("tests", strings.Join(tested, ","), "run the tests of these `packages`")
	flag.Usage = usage
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = complete
	}
	work, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	defer forgetFailures()()
	mutants, overlay, err := instrumented(packages, work)
	if err != nil {
		return err
	}
	fmt.Printf("%d mutants of %s; seed %d\n", len(mutants), strings.Join(packages, ", "), *seed)
	testing := strings.Split(*with, ",")
	programs, err := compile(testing, overlay, work)
	if err != nil {
		return err
	}
	// A test that is killed leaves its files behind.
	scratch := filepath.Join(work, "t")
	if err := errors.Join(os.Mkdir(scratch, 0o700), os.Setenv("TMPDIR", scratch)); err != nil {
		return err
	}
	// A mutant may take all memory there is. Go programs read this limit as any other.
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: 4 << 30, Max: 4 << 30})
	tests, err := trace(testing, programs, len(mutants), work)
	if err != nil {
		return err
	}
	printed, err := os.ReadFile(*again)
	if err != nil && *again != "" {
		return err
	}
	before := survivors(string(printed))
	chosen := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool {
		return !strings.Contains(m.key, *only) || *again != "" && !before[m.key]
	})
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(chosen), func(i, j int) {
		chosen[i], chosen[j] = chosen[j], chosen[i]
	})
	explained := explanations(survivorsFile)
	run := func(m mutant) outcome {
		if explained[m.key] && !*known { // each would meet all the tests that reach it
			return outcome{m, ""}
		}
		return outcomeOf(m, tests)
	}
	return report(runAll(chosen, run, explained, *jobs, *limit), explained, len(chosen), packages)
}

// forgetFailures removes what rapid keeps of tests that have failed since it was called: it would
// run that again, without a mutant.
func forgetFailures() func() {
	var absent []string
	for _, pkg := range tested {
		dir := filepath.Join(pkg, "testdata/rapid")
		if _, err := os.Stat(dir); err != nil {
			absent = append(absent, dir)
		}
	}
	return func() {
		for _, dir := range absent {
			_ = os.RemoveAll(dir)
			_ = os.Remove(filepath.Dir(dir)) // where nothing else is in it
		}
	}
}

// instrumented writes the packages with all their mutants below a directory, and the overlay that
// has them compiled.
func instrumented(packages []string, work string) (found []mutant, overlay string, err error) {
	replace := map[string]string{}
	put := func(path string, text []byte) error {
		copied := filepath.Join(work, "src", path)
		replace[path] = copied
		return errors.Join(os.MkdirAll(filepath.Dir(copied), 0o700), os.WriteFile(copied, text, 0o600))
	}
	seen := map[string]int{}
	for _, pkg := range packages {
		names, err := files(pkg)
		if err != nil {
			return nil, "", err
		}
		for _, name := range names {
			text, err := instrument(pkg, filepath.Join(pkg, name), &found, seen)
			if err == nil {
				err = put(filepath.Join(pkg, name), text)
			}
			if err != nil {
				return nil, "", err
			}
		}
	}
	if err := put("internal/mutating/mutating.go", mutating); err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(work, "overlay.json")
	return found, overlay, os.WriteFile(overlay, text, 0o600)
}

// compile builds a test program a package.
func compile(tested []string, overlay, work string) (programs map[string]string, err error) {
	programs = map[string]string{}
	for _, pkg := range tested {
		path := filepath.Join(work, strings.ReplaceAll(pkg, "/", "_")+".test")
		build := exec.Command("go", "test", "-p", "2", "-vet=off", "-overlay", overlay, "-c",
			"-o", path, "./"+pkg)
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("cannot compile the tests of %s with the mutants: %w", pkg, err)
		}
		programs[pkg] = path
	}
	return programs, nil
}

// runAll runs mutants until the time is over, and prints those that survive as it finds them.
func runAll(mutants []mutant, run func(mutant) outcome, explained map[string]bool, jobs int,
	limit time.Duration) []outcome {
	var (
		outcomes []outcome
		lock     sync.Mutex
		workers  sync.WaitGroup
	)
	began := time.Now()
	queue := make(chan mutant)
	for range jobs {
		workers.Go(func() {
			for m := range queue {
				o := run(m)
				lock.Lock()
				outcomes = append(outcomes, o)
				if o.by == "" && !explained[o.key] {
					fmt.Printf("survives: %s (%s)\n", o.key, o.at)
				}
				if len(outcomes)%250 == 0 {
					fmt.Printf("%4.0f s: %d of %d\n", time.Since(began).Seconds(),
						len(outcomes), len(mutants))
				}
				lock.Unlock()
			}
		})
	}
	for _, m := range mutants {
		if limit > 0 && time.Since(began) > limit {
			break
		}
		queue <- m
	}
	close(queue)
	workers.Wait()
	return outcomes
}

// report prints how many died and how many survived, by package.
func report(outcomes []outcome, explained map[string]bool, chosen int, packages []string) error {
	unexplained := 0
	for _, pkg := range packages {
		run, killed, known := 0, 0, 0
		for _, o := range outcomes {
			switch {
			case o.pkg != pkg:
				continue
			case o.by != "":
				killed++
			case explained[o.key]:
				known++
			default:
				unexplained++
			}
			run++
		}
		if run > 0 {
			fmt.Printf("%-20s %4d run, %4d killed (%.1f %%), %d survive and are explained, %d survive\n",
				pkg, run, killed,
				100*float64(killed)/float64(run), known, run-killed-known)
		}
	}
	if len(outcomes) < chosen {
		fmt.Printf("the time was over after %d of %d\n", len(outcomes), chosen)
	}
	if unexplained > 0 {
		return fmt.Errorf("%d mutants survive: write the test that fails, or say in "+
			"test/mutants/survivors.txt why none can", unexplained)
	}
	return nil
}

// survivors are the keys of the mutants that a run has printed.
func survivors(printed string) map[string]bool {
	keys := map[string]bool{}
	for line := range strings.Lines(printed) {
		if key, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "survives: "); is {
			keys[key[:max(0, strings.LastIndex(key, " ("))]] = true
		}
	}
	return keys
}

// explanations are the keys of survivors.txt. A line that begins with a blank says why the one
// before survives.
func explanations(text string) map[string]bool {
	keys := map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line != "" && line[0] != ' ' && line[0] != '#' {
			keys[line] = true
		}
	}
	return keys
}
