package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	oneSeed  = flag.Uint64("seed", 0, "run this life alone, and print what happens")
	duration = flag.Duration("duration", 0, "run lives of fresh seeds for so long")
	lives    = flag.Uint64("lives", 40, "how many lives are run")
	first    = flag.Uint64("first", 1, "the first seed")
	withRare = flag.Bool("rare", false, "plant only the mistakes that take hundreds of lives to be noticed")
	stride   = flag.Uint64("stride", 1, "from one seed to the next")
	workers  = flag.Int("workers", runtime.NumCPU(), "in how many processes lives are run at once")
)

const steps = 300

func live(t *testing.T, seed uint64, traced bool) (*life, string) {
	t.Helper()
	base := "/dev/shm" // no disk is needed: what a power cut leaves is simulated
	if info, err := os.Stat(base); err != nil || !info.IsDir() {
		base = os.TempDir()
	}
	// A seed has the same paths in every run: keys of bindings are made from them.
	dir := fmt.Sprintf("%s/gpuledger-sim-%d", base, seed)
	lock, err := lockFile(dir + ".lock")
	if err == nil {
		err = errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _, _ = os.RemoveAll(dir), os.Remove(dir+".lock"), lock.Close() }()
	// One virtual process runs at a time: another thread would only wake up to sleep again.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	l := newLife(dir, seed, traced)
	return l, l.Run(steps)
}

// lockFile makes a file and locks it. The process that had the lock removes the file. Another may
// have made a new one since then and locked that, so a lock of a removed file does not count.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil {
			open, failed := f.Stat()
			there, missing := os.Stat(path)
			if errors.Join(failed, missing) == nil && os.SameFile(open, there) {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil && err != unix.EINTR {
			return nil, err
		}
	}
}

// TestSeed runs lives of a node, each from a seed.
func TestSeed(t *testing.T) {
	if *oneSeed != 0 {
		l, wrong := live(t, *oneSeed, true)
		t.Log(strings.Join(l.lines, "\n"))
		if wrong != "" {
			t.Fatal(wrong)
		}
		return
	}
	began := time.Now()
	var total count
	if *workers > 1 {
		total = liveInProcesses(t)
	} else {
		total = liveAll(t, began)
	}
	hours := time.Since(began).Hours()
	t.Logf("from seed %d, %s; an hour: %.0f lives of nodes, %.0f of containers", *first, total,
		float64(total["lives of nodes"])/hours, float64(total[containersStarted])/hours)
	if missing := total.missing(); missing != "" && !t.Failed() && os.Getenv("SIM_PLANTED") == "" {
		t.Error(missing)
	}
}

// liveAll runs the lives of this process.
func liveAll(t *testing.T, began time.Time) count {
	c := count{}
	for seed := *first; *duration > 0 && time.Since(began) < *duration ||
		*duration == 0 && c["lives of nodes"] < int(*lives); seed += *stride {
		l, wrong := live(t, seed, false)
		c.add(l)
		if wrong != "" {
			t.Fatalf("life %d, %s\ngo test ./test/sim -run TestSeed -seed %d", c["lives of nodes"], wrong,
				seed)
		}
	}
	return c
}

// liveInProcesses runs the lives in several processes at once: a process has one simulator. The
// first that finds something ends the others.
func liveInProcesses(t *testing.T) count {
	total := count{}
	outputs := make([][]byte, *workers)
	while, end := context.WithCancel(context.Background())
	defer end()
	var all sync.WaitGroup
	for i := range outputs {
		share := (int(*lives) + *workers - 1 - i) / *workers
		cmd := exec.CommandContext(while, os.Args[0], "-test.run", "^TestSeed$", "-test.v",
			"-test.timeout", "0", "-workers", "1", "-stride", fmt.Sprint(*workers),
			"-first", fmt.Sprint(*first+uint64(i)), "-lives", fmt.Sprint(share),
			"-duration", duration.String())
		all.Go(func() {
			var err error
			if outputs[i], err = cmd.CombinedOutput(); err != nil && while.Err() == nil {
				end()
				t.Errorf("%s", outputs[i])
			}
		})
	}
	all.Wait()
	for _, out := range outputs {
		_, line, _ := strings.Cut(string(out), "from seed ")
		_, line, _ = strings.Cut(line, ", ")
		line, _, _ = strings.Cut(line, ";")
		if err := total.addText(line); err != nil && !t.Failed() {
			t.Errorf("%v: %s", err, out)
		}
	}
	return total
}

// TestASeedIsOneLife: the same seed gives the same steps twice.
func TestASeedIsOneLife(t *testing.T) {
	for seed := uint64(1000); seed < 1010; seed++ {
		a, _ := live(t, seed, true)
		b, _ := live(t, seed, true)
		if slices.Equal(a.lines, b.lines) {
			continue
		}
		for i := range min(len(a.lines), len(b.lines)) {
			if a.lines[i] != b.lines[i] {
				t.Fatalf("seed %d: line %d is %q, and then %q", seed, i, a.lines[i], b.lines[i])
			}
		}
		t.Fatalf("seed %d: %d lines, and then %d", seed, len(a.lines), len(b.lines))
	}
}
