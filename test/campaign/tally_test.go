package campaign

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// tally is what a campaign has done so far. It is kept in a file, so that one that was interrupted
// goes on.
type tally struct {
	Seed       uint64
	Programs   string   // a hash of all programs under test, and of this one
	Commit     string   // of the checkout, as git describes it
	Failed     []string // when the test failed, if it was interrupted after that
	Round      int
	Took       time.Duration
	NoRoom     map[string]int // grants that were refused for want of room, by kind
	Rooms      map[string]int // the same question of audits, by mode and the right answer
	Lives      map[string]int // by engine and kind of grant
	Refused    map[string]int // forged requests, by what they say
	Kills      map[string]int // by program
	Faults     map[string]int // rounds
	Looks      map[string]int // comparisons of the ledger with what lives while a fault lasts
	Scans      int            // of living containers, from the inside
	Flips      map[string]int // bits that flipped, by file
	Violations []string

	mu    sync.Mutex
	noted *testing.T // whose failure is in Failed
}

func newTally(seed uint64) *tally {
	return &tally{Seed: seed, Lives: map[string]int{}, Kills: map[string]int{}, Faults: map[string]int{},
		Looks: map[string]int{}, Refused: map[string]int{}, Flips: map[string]int{}}
}

// load reads the file of an interrupted campaign; nil without one.
func load(path string) (*tally, error) {
	text, err := os.ReadFile(path)
	if path == "" || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	t := newTally(0)
	if err == nil {
		err = json.Unmarshal(text, t)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot go on from %s; remove it to begin anew: %w", path, err)
	}
	return t, nil
}

// resume is the tally of an interrupted campaign of these programs, and of this seed if one is
// wanted, or a new one.
func resume(path, programs, commit, seed string) (*tally, error) {
	t, err := load(path)
	switch {
	case err != nil:
		return nil, err
	case t == nil:
	case t.Programs != programs:
		fmt.Printf("begins anew: %s is of other programs (%s, and now %s)\n", path, t.Commit, commit)
	case seed != "" && seed != fmt.Sprint(t.Seed):
		fmt.Printf("begins anew: %s is of seed %d\n", path, t.Seed)
	default:
		fmt.Printf("goes on after round %d of seed %d\n", t.Round, t.Seed)
		return t, nil
	}
	number, err := strconv.ParseUint(cmp.Or(seed, fmt.Sprint(time.Now().UnixNano())), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rig.SeedEnv, err)
	}
	t = newTally(number)
	t.Programs, t.Commit = programs, commit
	return t, nil
}

// failed notes that a test has failed, for the one that goes on. Not every failure is a violation.
func (t *tally) failed(test *testing.T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.noted == test {
		return
	}
	t.noted = test
	t.Failed = append(t.Failed, fmt.Sprintf("%s, after %d rounds", time.Now().Format("15:04:05"), t.Round))
}

func (t *tally) save(path string) error {
	if path == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	text, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// violation enters what must never be, and returns how many there are.
func (t *tally) violation(what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Violations = append(t.Violations, what)
	return len(t.Violations)
}

func (t *tally) look(fault string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Looks[fault]++
}

func (t *tally) looks(fault string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Looks[fault]
}

// complete fails the test if containers of a kind never lived, or a fault had no round. That
// something was compared is asked in each round.
func (t *tally) complete(test *testing.T, faults []fault) {
	for _, name := range t.lacks() {
		test.Errorf("no container of %s has lived", name)
	}
	t.exercised(test)
	for _, f := range faults {
		if t.Faults[f.name] == 0 {
			test.Errorf("no round of %q", f.name)
		}
	}
}

// lacks lists the kinds of which no container has lived, by engine.
func (t *tally) lacks() (names []string) {
	for i := range engines {
		for _, k := range t.missing(&engines[i]) {
			names = append(names, engines[i].name+" "+k.name)
		}
	}
	return names
}

// missing are the kinds of which no container of an engine has lived.
func (t *tally) missing(e *engine) (missing []kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range kinds {
		if k.name != forged && (k.name != asks || e.asks) && t.Lives[e.name+" "+k.name] == 0 {
			missing = append(missing, k)
		}
	}
	return missing
}

// often is a number of an engine's lives in which each of gpuledger's programs is killed: the hook
// some 15 times, the others far more often.
const often = 1000

// exercised fails the test if what a campaign must do many times was never done.
func (t *tally) exercised(test *testing.T) {
	for program, engine := range map[string]string{"gpuledger": "runc", "gpuledger-runtime": "runc",
		"gpuledger-hook": "hook"} {
		lives := 0
		for _, k := range kinds {
			lives += t.Lives[engine+" "+k.name]
		}
		if lives >= often && t.Kills[program] == 0 {
			test.Errorf("no %s was killed in %d lives", program, lives)
		}
	}
	for says := range forgeries {
		if t.Faults["kills only"] > 0 && sum(t.Lives) >= often && t.Refused[string(says)] == 0 {
			test.Errorf("no container that says %s was refused", says)
		}
	}
	for _, of := range []string{ofGrant, ofBinding} {
		if t.Faults["bits flip"] > 3 && t.Flips[of] == 0 {
			test.Errorf("no bit of a file %s has flipped", of)
		}
	}
}

func (t *tally) kill(program string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Kills[program]++
}

// refuse enters a forged request that was refused for the right reason.
func (t *tally) refuse(says string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Refused[says]++
}

// flip enters a bit that has flipped.
func (t *tally) flip(where string, noticed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !noticed {
		where += ", before its sum"
	}
	t.Flips[where]++
}

func (t *tally) life(engine, kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Lives[engine+" "+kind]++
}

func (t *tally) add(to *int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*to++
}

func (t *tally) sums() (lives, kills, violations int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return sum(t.Lives), sum(t.Kills), len(t.Violations)
}

func sum(of map[string]int) (n int) {
	for _, count := range of {
		n += count
	}
	return n
}

// print writes the table.
func (t *tally) print(to io.Writer) {
	lives, kills, _ := t.sums()
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "seed\t%d\n", t.Seed)
	fmt.Fprintf(w, "programs\t%s, of %s\n", t.Programs, t.Commit)
	for _, when := range t.Failed {
		fmt.Fprintf(w, "failed\t%s\n", when)
	}
	fmt.Fprintf(w, "time\t%v, %d rounds\n", t.Took.Round(time.Second), t.Round)
	section := func(title string, total int, of map[string]int) {
		fmt.Fprintf(w, "%s\t%d\n", title, total)
		for _, name := range slices.Sorted(maps.Keys(of)) {
			fmt.Fprintf(w, "  %s\t%d\n", name, of[name])
		}
	}
	section("container lives", lives, t.Lives)
	section("kills", kills, t.Kills)
	section("refused for want of room", sum(t.NoRoom), t.NoRoom)
	section("grants that audits asked for", sum(t.Rooms), t.Rooms)
	section("rounds by fault", sum(t.Faults), t.Faults)
	section("forged requests refused", sum(t.Refused), t.Refused)
	section("comparisons of the ledger with what lives, by fault", sum(t.Looks), t.Looks)
	fmt.Fprintf(w, "scans from inside a container\t%d\n", t.Scans)
	section("bits flipped", sum(t.Flips), t.Flips)
	fmt.Fprintf(w, "violations\t%d\n", len(t.Violations))
	for _, what := range t.Violations {
		fmt.Fprintf(w, "  %s\n", what)
	}
}
