package sim

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	oneSeed  = flag.Uint64("seed", 0, "run this life alone, and print what happens")
	duration = flag.Duration("duration", 0, "run lives of fresh seeds for so long")
	lives    = flag.Uint64("lives", 40, "how many lives are run")
	first    = flag.Uint64("first", 1, "the first seed")
)

const steps = 300

func live(t *testing.T, seed uint64) (*life, string) {
	t.Helper()
	base := "/dev/shm" // no disk is needed: what a power cut leaves is simulated
	if info, err := os.Stat(base); err != nil || !info.IsDir() {
		base = t.TempDir()
	}
	// The paths are the same in every run: keys of bindings are made from them.
	dir := base + "/gpuledger-sim"
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX), os.RemoveAll(dir), os.Mkdir(dir, 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _, _ = os.RemoveAll(dir), os.Remove(dir+".lock"), lock.Close() }()
	l := newLife(dir, seed)
	return l, l.Run(steps)
}

// TestSeed runs lives of a node, each from a seed.
func TestSeed(t *testing.T) {
	if *oneSeed != 0 {
		l, wrong := live(t, *oneSeed)
		t.Log(strings.Join(l.lines, "\n"))
		if wrong != "" {
			t.Fatal(wrong)
		}
		return
	}
	seed, end, began, all := *first, *first+*lives, time.Now(), 0
	for ; *duration > 0 && time.Since(began) < *duration || *duration == 0 && seed < end; seed++ {
		l, wrong := live(t, seed)
		if all += l.step; wrong != "" {
			t.Fatalf("life %d, %s\ngo test ./test/sim -run TestSeed -seed %d", seed-*first+1, wrong, seed)
		}
	}
	n := seed - *first
	t.Logf("%d lives from seed %d, %d steps, %.0f lives an hour", n, *first, all,
		float64(n)/time.Since(began).Hours())
}

// TestASeedIsOneLife: the same seed gives the same steps twice.
func TestASeedIsOneLife(t *testing.T) {
	for seed := uint64(1000); seed < 1010; seed++ {
		a, _ := live(t, seed)
		b, _ := live(t, seed)
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
