package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// hamiVar names HAMi-core's library. It is not built here: its source is no Go module.
const (
	hamiVar  = "HAMI_CORE"
	hamiName = "HAMi-core"
	hamiNot  = "not measured: " + hamiVar + " is not set"
	hamiHow  = hamiVar + " is build/libvgpu.so of https://github.com/Project-HAMi/HAMi-core " +
		"(8f3a89c was tried), which its build.sh builds with cmake and cuda.h"
	shimName   = "gpuledger's proxy of libcuda"
	standInGPU = "GPU-01000000-0000-0000-0000-000000000000" // the UUID of shim/test/bench_driver.c
)

// A Call is what a library adds to calls of a program, against the driver alone, in nanoseconds.
type Call struct {
	What  string `json:"what"`
	Who   string `json:"who"`
	Base  Spread `json:"base_ns,omitzero"`
	Took  Spread `json:"took_ns,omitzero"`
	Added Spread `json:"added_ns,omitzero"`
	// Best is the best round less the driver's best: a busy machine disturbs these least.
	Best float64 `json:"best_added_ns,omitempty"`
	Note string  `json:"note,omitempty"` // a result that is no time, or why there is none
}

var callHeader = []string{"what", "who", "base ns", "took ns", "added ns (95 %)", "best rounds"}

func (c Call) cells() []string {
	if c.Note != "" {
		return []string{c.What, c.Who, "", "", c.Note, ""}
	}
	return []string{c.What, c.Who, fmt.Sprintf("%.1f", c.Base.Median), fmt.Sprintf("%.1f", c.Took.Median),
		fmt.Sprintf("%+.1f (%+.1f..%+.1f)", c.Added.Median, c.Added.Low, c.Added.High),
		fmt.Sprintf("%+.1f", c.Best)}
}

// A library is what stands between programs and the stand-in driver, as its users load it.
type library struct {
	name string
	file string // that must have cuMemAlloc_v2
	env  func(driver, dir string, limit grant.Bytes) []string
	lay  func(driver string, limit grant.Bytes) error // what it finds at fixed paths; may be nil
}

// libraries are the driver alone, ours, and HAMi-core if there is one.
func (r *rig) libraries() []library {
	built := r.built("proxy")
	all := []library{
		{name: "no library", file: "/libcuda.so", env: func(driver, _ string, _ grant.Bytes) []string {
			return []string{"LD_LIBRARY_PATH=" + driver}
		}},
		{name: shimName, file: built, lay: layGrant, env: func(string, string, grant.Bytes) []string {
			return []string{"LD_LIBRARY_PATH=" + built}
		}},
	}
	hami := os.Getenv(hamiVar)
	if hami == "" {
		return all
	}
	return append(all, library{name: hamiName, file: hami,
		env: func(driver, dir string, limit grant.Bytes) []string {
			return []string{"LD_LIBRARY_PATH=" + driver, "LD_PRELOAD=" + hami, "CUDA_REDIRECT=" + hami,
				"LIBCUDA_LOG_LEVEL=0", fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_0=%dm", limit/grant.MiB),
				"CUDA_DEVICE_MEMORY_SHARED_CACHE=" + filepath.Join(dir, "hami.cache")}
		}})
}

func (r *rig) built(name string) string {
	path, _ := filepath.Abs(filepath.Join(r.options.bin, "peers/library", name))
	return path
}

// layGrant lays a grant's files where they are in a container: below /run, which is the machine's.
func layGrant(driver string, limit grant.Bytes) error {
	const place = "/run/gpuledger"
	if err := errors.Join(os.RemoveAll(place), os.MkdirAll(place+"/driver", 0o755)); err != nil {
		return err
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if err := os.Symlink(filepath.Join(driver, name), filepath.Join(place, "driver", name)); err != nil {
			return err
		}
	}
	return limits.Ensure(place, []grant.Share{{UUID: standInGPU, Memory: limit}}, 0, nil)
}

// newBook makes a directory in which the stand-in driver counts, anew for each use.
func (r *rig) newBook() (string, error) {
	if err := os.MkdirAll(r.path("run/books"), 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(r.path("run/books"), "")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "devices"),
		[]byte(standInGPU+" 1048576 Stand-in GPU\ncontext 64\n"), 0o644)
}

// using is a program of shim/test/peers.c under the library.
func (r *rig) using(l library, driver, dir string, limit grant.Bytes, args ...string) *exec.Cmd {
	cmd := r.command(append(l.env(driver, dir, limit), "FAKEDRIVER_DIR="+dir),
		append([]string{r.built("peers")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// A caller is a program of shim/test/peers.c that answers commands.
type caller struct {
	cmd      *exec.Cmd
	commands io.WriteCloser
	answers  *bufio.Scanner
	said     *strings.Builder
}

func startCaller(cmd *exec.Cmd) (*caller, error) {
	c := &caller{cmd: cmd, said: &strings.Builder{}}
	cmd.Stderr = c.said
	commands, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.commands, c.answers = commands, bufio.NewScanner(answers)
	return c, cmd.Start()
}

func (c *caller) end() {
	_ = c.commands.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *caller) ask(command string) (string, error) {
	if _, err := fmt.Fprintln(c.commands, command); err != nil || !c.answers.Scan() {
		return "", fmt.Errorf("no answer to %q: %w\n%s", command, cmp.Or(err, io.EOF), c.said)
	}
	return c.answers.Text(), nil
}

func (c *caller) number(command string) (float64, error) {
	answer, err := c.ask(command)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(answer, 64)
}

// loaded starts a program under each library, beside others of the same grant. It checks that the
// library is in the program's way, and that it limits.
func (r *rig) loaded(libraries []library, processes int) (callers []*caller, end func(), err error) {
	const limit = 64 * grant.GiB
	var all []*caller
	end = func() {
		for _, c := range all {
			c.end()
		}
	}
	for i, l := range libraries {
		dir, err := r.newBook()
		if err == nil && l.lay != nil {
			err = l.lay(r.built("quick"), limit)
		}
		for p := range processes {
			if err != nil {
				return nil, end, fmt.Errorf("%s: %w", l.name, err)
			}
			var c *caller
			if c, err = startCaller(r.using(l, r.built("quick"), dir, limit)); err != nil {
				continue
			}
			all = append(all, c)
			if p < processes-1 {
				_, err = c.ask("keep 1")
				continue
			}
			callers = append(callers, c)
			err = c.standsBehind(l, limit, i > 0)
		}
		if err != nil {
			return nil, end, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return callers, end, nil
}

// standsBehind checks that cuMemAlloc_v2 is the library's own, and that it refuses what is beyond
// the limit.
func (c *caller) standsBehind(l library, limit grant.Bytes, limited bool) error {
	who, err := c.ask("library")
	if err != nil {
		return err
	}
	if !strings.Contains(who, l.file) {
		return fmt.Errorf("cuMemAlloc_v2 is in %s, not in %s", who, l.file)
	}
	if !limited {
		return nil
	}
	const outOfMemory = "2" // CUDA_ERROR_OUT_OF_MEMORY
	answer, err := c.ask(fmt.Sprintf("take %d", limit+grant.MiB))
	if err == nil && answer != outOfMemory {
		err = fmt.Errorf("an allocation beyond the limit returns %s", answer)
	}
	return err
}

// callCosts is what the libraries add to an allocation and its free, and to a launch.
func callCosts(r *rig) ([]Call, error) {
	var calls []Call
	libraries := r.libraries()
	for _, c := range []struct {
		what      string
		processes int
		earlier   int
		command   string
	}{
		{"cuMemAlloc and cuMemFree, 1 process", 1, 0, "pairs 2000"},
		{"the same, 8 processes with memory of the grant", 8, 0, "pairs 2000"},
		{"the same, 64 processes", 64, 0, "pairs 2000"},
		{"the same, 1 process, after 100,000 allocations that are kept", 1, 100000, "pairs 2000"},
		{"cuLaunchKernel, no share of compute", 1, 0, "launches 2000"},
	} {
		times, err := r.callTimes(libraries, c.processes, c.earlier, c.command)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.what, err)
		}
		for i, l := range libraries[1:] {
			calls = append(calls, callRow(c.what, l.name, times[0], times[i+1]))
		}
		if len(libraries) < 3 {
			calls = append(calls, Call{What: c.what, Who: hamiName, Note: hamiNot})
		}
	}
	return calls, nil
}

func (r *rig) callTimes(libraries []library, processes, earlier int, command string) ([][]float64, error) {
	callers, end, err := r.loaded(libraries, processes)
	defer end()
	if err != nil {
		return nil, err
	}
	for _, c := range callers {
		if answer, err := c.ask(fmt.Sprintf("keep %d", earlier)); err != nil || answer != "0" {
			return nil, fmt.Errorf("cannot keep %d allocations: %s %w", earlier, answer, err)
		}
	}
	return inTurns(r, 2*r.options.pairs, len(callers), func(i int) (float64, error) {
		return callers[i].number(command)
	})
}

func callRow(what, who string, base, took []float64) Call {
	added := make([]float64, len(took))
	for i := range took {
		added[i] = took[i] - base[i]
	}
	return Call{What: what, Who: who, Base: spread(base), Took: spread(took), Added: spread(added),
		Best: slices.Min(took) - slices.Min(base)}
}

// kills has eight processes allocate and free, in several storms, while some of them are killed and
// while none is. It reports the most that the driver ever gave beyond the limit. The driver frees
// what a killed process had, as a real one does.
func kills(r *rig) ([]Call, error) {
	const limit, turns = 256 * grant.MiB, 100
	var calls []Call
	for _, killed := range []int{0, turns} {
		what := fmt.Sprintf("beyond a limit of 256 MiB, 8 processes, %d of them killed -9, 5 times", killed)
		for _, l := range r.libraries()[1:] {
			var beyond, had []float64
			for seed := range 5 {
				peak, allocations, err := r.storm(l, limit, turns, killed, seed+1)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", l.name, err)
				}
				beyond = append(beyond, max(0, (peak-float64(limit))/float64(grant.MiB)))
				had = append(had, allocations)
			}
			calls = append(calls, Call{What: what, Who: l.name, Note: fmt.Sprintf(
				"%.0f MiB (%.0f..%.0f), while %.0f allocations succeeded", spread(beyond).Median,
				slices.Min(beyond), slices.Max(beyond), spread(had).Median)})
		}
		if os.Getenv(hamiVar) == "" {
			calls = append(calls, Call{What: what, Who: hamiName, Note: hamiNot})
		}
	}
	return calls, nil
}

// storm returns the most bytes that the driver gave at a time, and how many allocations succeeded.
func (r *rig) storm(l library, limit grant.Bytes, turns, killed, seed int) (peak, allocations float64,
	err error) {
	driver := r.built("counting")
	dir, err := r.newBook()
	if err == nil && l.lay != nil {
		err = l.lay(driver, limit)
	}
	if err != nil {
		return 0, 0, err
	}
	if allocations, err = answered(r.using(l, driver, dir, limit, "storm", "8", fmt.Sprint(turns),
		fmt.Sprint(killed), fmt.Sprint(seed))); err != nil {
		return 0, 0, err
	}
	if allocations == 0 {
		return 0, 0, errors.New("no allocation succeeded")
	}
	peak, err = answered(r.using(r.libraries()[0], driver, dir, limit, "peak"))
	return peak, allocations, err
}

// answered runs a program that prints a number on its last line of output.
func answered(cmd *exec.Cmd) (float64, error) {
	var said strings.Builder
	cmd.Stderr = &said
	timer := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	output, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return strconv.ParseFloat(strings.TrimSpace(string(output)), 64)
}
