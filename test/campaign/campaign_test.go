package campaign

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// The variables of make torture and make soak.
const (
	timeVar  = "CAMPAIGN_TIME"  // how long; empty: one short round of each fault
	stateVar = "CAMPAIGN_STATE" // the file with what was done so far
	faultsOf = "CAMPAIGN_FAULTS"
	soakVar  = "SOAK"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(faultVar); dir != "" {
		if err := serveFaulty(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(rig.Main(m))
}

// campaign is 16 workers on a node, and what breaks it.
type campaign struct {
	t       *testing.T
	node    *node
	workers []*worker
	counts  *tally
	state   string // the tally's file, or empty
	mounts  []string
	page    *page // of a soak

	releases *releases

	gate  sync.RWMutex // held for reading by a life, for writing while workers stand still
	over  atomic.Bool
	ended sync.WaitGroup

	// of the present round; they change while the workers stand still
	fault  fault
	faulty string // the name of a fault under which a grant may fail
	kills  bool
	jumps  bool // the clock does
}

// tags are those of the programs' builds.
var tags = []string{"failpoint"}

// programs builds the programs under test. It returns a hash of them and of this one, and what git
// says of the checkout. A hash sees changes that are not committed, too.
func programs(t *testing.T) (hash, commit string) {
	all := []string{"/proc/self/exe", "../fakedriver", "../fakemps", "../../shim", "../testdata/gpu.c",
		"testdata/opens.c"}
	for _, program := range []string{"gpuledger", "gpuledger-runtime", "gpuledger-hook", "gpuledgerd"} {
		all = append(all, rig.Binary(t, program, tags...))
	}
	sum := sha256.New()
	for _, path := range all {
		must(t, filepath.WalkDir(path, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			_, _ = sum.Write(text)
			return err
		}))
	}
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=8").Output()
	if err != nil { // an archive, or the checkout of another user
		return hex.EncodeToString(sum.Sum(nil))[:12], "an unknown commit"
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], strings.TrimSpace(string(out))
}

// newCampaign starts the node and the workers, which stand still.
func newCampaign(t *testing.T, counts *tally) *campaign {
	c := &campaign{t: t, node: newNode(t), counts: counts, state: os.Getenv(stateVar),
		releases: newReleases()}
	for i := range engines {
		e := &engines[i]
		for range e.workers {
			w := &worker{campaign: c, number: len(c.workers), engine: e, took: map[step]time.Duration{}}
			for at := range slotsEach {
				w.slots = append(w.slots, &slot{node: c.node, engine: e,
					id: fmt.Sprintf("w%02d%c", w.number, 'a'+at)})
			}
			c.workers = append(c.workers, w)
		}
	}
	c.node.startDaemon("")
	c.mounts = mounts(c.node.Dir)
	c.gate.Lock()
	for _, w := range c.workers {
		c.ended.Go(func() {
			for !c.over.Load() {
				w.oneLife()
			}
		})
	}
	c.ended.Go(c.witness)
	return c
}

func (w *worker) oneLife() {
	w.gate.RLock()
	defer w.gate.RUnlock()
	if !w.over.Load() {
		w.live()
	}
}

// end lets the workers end. The caller holds the gate.
func (c *campaign) end() {
	c.over.Store(true)
	c.gate.Unlock()
	c.ended.Wait()
}

// calm has every worker do something, without kills. The caller holds the gate.
func (c *campaign) calm(do func(w *worker)) {
	kills := c.kills
	c.kills = false
	var all sync.WaitGroup
	for _, w := range c.workers {
		all.Go(func() {
			w.kill = kill{}
			do(w)
		})
	}
	all.Wait()
	c.kills = kills
}

// violation reports what must never be.
func (c *campaign) violation(format string, args ...any) {
	what := fmt.Sprintf("round %d (%s): ", c.counts.Round, c.fault.name) + fmt.Sprintf(format, args...)
	c.t.Errorf("%s VIOLATION %s", time.Now().Format("15:04:05"), what)
	if c.counts.violation(what) > 40 {
		c.over.Store(true)
	}
	if err := c.counts.save(c.state); err != nil {
		c.t.Error(err)
	}
}

// stream is a source of random numbers that depends only on the seed and its name.
func (c *campaign) stream(name string, number int) *rand.Rand {
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, name, " ", number)
	return rand.New(rand.NewPCG(c.counts.Seed, hash.Sum64()))
}

// faultOf is the fault of a round. Each kind comes once in so many rounds as there are kinds.
func (c *campaign) faultOf(all []fault, round int) fault {
	order := c.stream("order", round/len(all)).Perm(len(all))
	return all[order[round%len(all)]]
}

// round lets the workers work for a time, under a fault, and audits.
func (c *campaign) round(f fault, length time.Duration) {
	random := c.stream("fault", c.counts.Round)
	for _, w := range c.workers {
		w.random = c.stream("worker", c.counts.Round*len(c.workers)+w.number)
		for _, s := range w.slots {
			s.lost = s.lost || f.endsMPS()
		}
	}
	began := time.Now()
	c.fault, c.kills, c.faulty = f, f.name != "", ""
	if f.refuses {
		c.faulty = f.name
	}
	heal := f.strike(c, random)
	if !f.still {
		looks := c.counts.looks(f.name)
		c.gate.Unlock()
		for began := time.Now(); !c.over.Load() && (time.Since(began) < length ||
			c.counts.looks(f.name) == looks && time.Since(began) < mostPatience); {
			if f.during != nil {
				f.during(c, random)
			}
			time.Sleep(200 * time.Millisecond)
		}
		c.gate.Lock()
		if c.counts.looks(f.name) == looks && !c.over.Load() {
			c.violation("nothing was compared in %v", mostPatience)
		}
	}
	if heal != nil {
		heal()
	}
	c.faulty = ""
	if c.node.mark != "" || !c.node.daemonRuns() {
		c.endDaemon()
		c.node.startDaemon("")
	}
	c.audit()
	if c.counts.Round%drainEvery == drainEvery-1 {
		c.drain()
	}
	c.counts.mu.Lock()
	c.counts.Round++
	c.counts.Took += time.Since(began)
	c.counts.Faults[f.name]++
	c.counts.mu.Unlock()
	if c.t.Failed() {
		c.counts.failed(c.t)
	}
	if err := c.counts.save(c.state); err != nil {
		c.t.Error(err)
	}
	lives, kills, violations := c.counts.sums()
	fmt.Printf("%s round %d, %s: %d lives, %d kills, %d violations after %v\n",
		time.Now().Format("15:04:05"), c.counts.Round, f.name, lives, kills, violations,
		c.counts.Took.Round(time.Second))
}

// mostPatience is how long something may take on a busy machine.
const mostPatience = 5 * time.Minute

// drainEvery is how many rounds there are to one after which nothing is left.
const drainEvery = 3

// TestCampaign runs for CAMPAIGN_TIME, and until each fault had its round and each kind has lived
// through each engine. Without that variable it is one short round of each fault. TEST_SEED repeats
// a campaign's order of faults and kills. One that was interrupted goes on from its state file, if
// the programs are the same.
func TestCampaign(t *testing.T) {
	rig.More(t)
	if rig.Under(t, rig.V1) { // where crun runs without CAP_SYS_RESOURCE too
		return
	}
	all := chosenFaults(t)
	length, until := time.Second, time.Duration(0)
	if text := os.Getenv(timeVar); text != "" {
		d, err := time.ParseDuration(text)
		must(t, err)
		length, until = min(30*time.Second, d/time.Duration(len(all))), d
	}
	hash, commit := programs(t)
	counts, err := resume(os.Getenv(stateVar), hash, commit, os.Getenv(rig.SeedEnv))
	must(t, err)
	fmt.Printf("%s=%d repeats the order of faults and kills\n", rig.SeedEnv, counts.Seed)
	failedBefore := slices.Clone(counts.Failed)
	ended := false
	defer func() {
		if !ended { // by t.Fatal
			counts.failed(t)
			_ = counts.save(os.Getenv(stateVar))
		}
	}()
	c := newCampaign(t, counts)
	// The figures of a file alone are not enough: a round is always done.
	for first := true; first || !c.over.Load() && (counts.Round < len(all) || counts.Took < until ||
		until > 0 && len(counts.lacks()) > 0 && counts.Took < 2*until+mostPatience); first = false {
		c.round(c.faultOf(all, counts.Round), length)
	}
	c.fault = fault{name: "end"}
	c.drain()
	c.end()
	counts.print(os.Stdout)
	lives, kills, violations := counts.sums()
	if lives == 0 || kills == 0 || counts.Scans == 0 {
		t.Error("something of it shows nothing: there was none")
	}
	if violations > 0 && !t.Failed() {
		t.Errorf("%d violations before it was interrupted", violations)
	}
	for _, when := range failedBefore {
		t.Errorf("it had failed before it was interrupted, %s", when)
	}
	if until > 0 {
		counts.complete(t, all)
	}
	ended = true
	if c.state != "" { // the next one begins anew
		must(t, os.Rename(c.state, c.state+".done"))
	}
}
