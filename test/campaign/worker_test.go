package campaign

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// slot is a place for one container after another, all with the same id.
type slot struct {
	*node
	id     string
	engine *engine
	made   int // containers, in containerd

	mu        sync.Mutex
	bundle    *rig.Bundle // nil before the first container
	live      bool
	wish      wish
	reference grant.Reference
	owner     *slot // whose reference a forged container says
	ends      bool  // the grant has a time
	jumped    bool  // the clock has, since the grant was made
	stuck     bool  // it was created while no binding could be removed
	lost      bool  // its MPS daemon may have been killed: programs that start later have no limit
	gpus      []int // of its grant, nil if that is only in the ledger
}

// inLedger is the container's id in the ledger.
func (s *slot) inLedger() string {
	if s.engine.name != "podman" {
		return s.bundle.ID
	}
	id, _ := os.ReadFile(s.cidFile())
	return strings.TrimSpace(string(id))
}

// processes are the container's that live.
func (s *slot) processes() []int {
	if s.bundle == nil {
		return nil
	}
	return slices.DeleteFunc(s.cgroups().Processes(), func(pid int) bool { return !rig.Lives(pid) })
}

// cgroups are the container's, as those of a bundle of another name.
func (s *slot) cgroups() *rig.Bundle {
	b := *s.bundle
	if s.engine.name == "podman" {
		b.ID = "libpod-" + s.inLedger()
	}
	return &b
}

// found is what the container's first process could open when it started; ok is false before.
func (s *slot) found() (minors []int, ok bool) {
	if s.bundle == nil {
		return nil, false
	}
	text, err := os.ReadFile(s.foundFile())
	return numbers(string(text)), err == nil
}

func (s *slot) foundFile() string { return filepath.Join(s.bundle.Dir, "rootfs/tmp/found") }

// numbers reads what /bin/opens prints: a line with the nodes that it could open.
func numbers(text string) []int {
	all := []int{}
	if !strings.HasSuffix(text, "\n") {
		return []int{-1} // which no node has
	}
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return []int{-1}
		}
		all = append(all, n)
	}
	return all
}

// opens has a process in the container open the nodes. It prints a line, which ctr loses at times.
func (s *slot) opens() (r rig.Result) {
	for range 5 {
		if r = rig.Run(s.engine.execs(s, "/bin/opens")); r.Code != 0 || r.Stdout != "" {
			break
		}
	}
	return r
}

// withControl are the minor numbers that a container of these GPUs may open.
func withControl(gpus []int) []int {
	if len(gpus) == 0 {
		return []int{}
	}
	return append(slices.Sorted(slices.Values(gpus)), controlMinor)
}

// slotsEach is how many containers of a worker live at once.
const slotsEach = 3

// worker makes and ends containers through one engine.
type worker struct {
	*campaign
	number int
	engine *engine
	slots  []*slot
	random *rand.Rand // of this round
	lives  int
	kill   kill
	took   map[step]time.Duration // a moving average
}

// kill is the program of a life that is killed: at a mark, or after a part of its usual time.
type kill struct {
	step  step
	point string
	part  float64
}

// points are the marks of each step's program.
var points = map[step][]string{
	toGrant: {"ledger/locked", "ledger/put-linked", "ledger/put-written", "ledger/put-renamed",
		"ledger/put-synced", "ledger/put-unlinked"},
	toCreate: {"ledger/locked", "ledger/bind-linked", "ledger/bind-written", "ledger/bind-unlinked",
		"node/bound", "node/limited", "runtime/admitted", "runtime/edited", "hook/admitted", "inject/ruled",
		"inject/nodes", "ledger/put-renamed", "ledger/sweep-removed", "grants/tree"},
	toDelete: {"ledger/locked", "ledger/unbind-removed", "ledger/unbind-unlinked", "ledger/delete-renamed",
		"ledger/delete-unlinked"},
	toRelease: {"ledger/locked", "ledger/delete-renamed", "ledger/delete-synced", "ledger/delete-removed",
		"ledger/delete-unbound", "ledger/delete-unlinked"},
}

var steps = []step{toGrant, toCreate, toCreate, toStart, toExec, toDelete, toDelete, toRelease}

// drawKill chooses the program of this life that is killed: none in most.
func (w *worker) drawKill() {
	w.kill = kill{}
	if !w.kills || w.random.IntN(5) < 3 {
		return
	}
	w.kill = kill{step: steps[w.random.IntN(len(steps))], part: w.random.Float64()}
	marks := points[w.kill.step]
	marked := w.kill.step == toGrant || w.kill.step == toRelease || w.engine.name != "containerd" &&
		w.engine.name != "podman"
	if len(marks) > 0 && marked && w.random.IntN(2) == 0 {
		w.kill.point = marks[w.random.IntN(len(marks))]
	}
}

// dying is the mark at which a step's program kills itself.
func (w *worker) dying(of step) string {
	if w.kill.step == of {
		return w.kill.point
	}
	return ""
}

// run runs a step's program. killed reports whether it was killed, as this life orders.
func (w *worker) run(c command) (r rig.Result, killed bool) {
	began, after := time.Now(), time.Duration(0)
	marked := w.dying(c.step) != ""
	if w.kill.step == c.step && !marked {
		after = max(time.Millisecond, time.Duration(w.kill.part*1.2*float64(w.took[c.step])))
	}
	r, program := rig.RunKilled(c.cmd, after)
	if mistaken(r.Stderr) {
		w.violation("%v: %+v", c.cmd.Args, r)
	}
	switch {
	case program != "":
	case marked && r.Killed():
		program = filepath.Base(c.cmd.Path)
	case marked && strings.Contains(r.Stderr, "signal: killed"):
		program = "gpuledger-hook" // as runc and crun say it
	default:
		// what runs in a container ends with its shim
		if r.Killed() && !w.engineFaulty() {
			w.violation("%v was killed, and nothing here did it: %+v", c.cmd.Args, r)
		}
		w.took[c.step] += (time.Since(began) - w.took[c.step]) / 8
		return r, false
	}
	w.counts.kill(program)
	w.kill = kill{}
	return r, true
}

// live is a life: what was in the slot ends, and another container starts there.
func (w *worker) live() {
	s := w.slots[w.lives%slotsEach]
	w.lives++
	s.mu.Lock()
	defer s.mu.Unlock()
	w.drawKill()
	w.end(s)
	k := draw(w.random, w.engine.asks)
	if missing := w.counts.missing(w.engine); len(missing) > 0 && w.lives%2 == 0 {
		k = missing[w.lives/2%len(missing)] // a short campaign has each of them, too
	}
	if !w.grant(s, k) {
		return
	}
	reference := referenceOf(s)
	if s.owner = nil; k.name == forged {
		var done func()
		reference, s.owner, done = w.forge(s, &k.forges)
		defer done()
	}
	s.wish = k.wishes(w.random, reference)
	if !w.create(s) {
		w.clear(s)
		return
	}
	s.stuck, s.lost = w.fault.stuck, w.fault.endsMPS()
	w.counts.life(w.engine.name, k.name)
	s.live = true
	if w.random.IntN(3) == 0 {
		w.exec(s)
	}
}

func referenceOf(s *slot) string {
	if s.reference == (grant.Reference{}) {
		return ""
	}
	return s.reference.String()
}

// grant makes the grant that a container of this kind needs. Without room there is none.
func (w *worker) grant(s *slot, k kind) (ok bool) {
	s.reference, s.gpus = grant.Reference{}, []int{}
	if k.grant == nil {
		if k.name == asks {
			s.gpus = nil
		}
		return true
	}
	n, args := at(s.node.Node, w.dying(toGrant)), k.grantArgs(w.random, s.id)
	s.ends, s.jumped = slices.Contains(args, "--ttl"), w.jumps
	r, killed := w.run(command{toGrant, commandOf(n, args...)})
	if killed {
		w.forget(s)
		return false
	}
	var g struct {
		Reference string
		GPUs      []grant.Share
	}
	switch {
	case r.Code == 5: // the audits ask whether such an answer is right
		w.counts.noRoom(k.name)
		return false
	case r.Code != 0 && w.faulty != "":
		w.forget(s)
		return false
	case r.Code != 0:
		w.violation("gpuledger grant in mode %s: %+v", k.name, r)
		return false
	}
	reference, err := grant.ParseReference("")
	if e := json.Unmarshal([]byte(r.Stdout), &g); e == nil {
		reference, err = grant.ParseReference(g.Reference)
	}
	if err != nil || len(g.GPUs) != 1 {
		w.violation("gpuledger grant printed %q: %v", r.Stdout, err)
		return false
	}
	s.reference, s.gpus = reference, []int{g.GPUs[0].Index}
	return true
}

// create makes and starts the container. It reports whether that lives.
func (w *worker) create(s *slot) bool {
	if s.bundle != nil {
		_ = os.Remove(s.foundFile())
	}
	shown := cmpOr(s.gpus, every(gpus))
	if s.wish.name == asks {
		shown = nil // the client waits until it is known which one the container has
	}
	s.node.showGPUs(s.id, shown)
	began := time.Now()
	for tries := 0; ; tries++ {
		r, killed := w.creates(s)
		switch {
		case killed:
			return false
		case s.wish.name == forged:
			return w.refused(s, r)
		case r.Code == 0:
			return w.started(s)
		case strings.Contains(r.Stderr, "(mps-not-ready)") && w.faulty == "" &&
			(tries < 20 || time.Since(began) < mostPatience && !w.fault.stopsMPS()):
			w.engine.clears(s)
			time.Sleep(300 * time.Millisecond)
			continue
		case strings.Contains(r.Stderr, "(mps-not-ready)") && w.fault.stopsMPS():
			return false
		case s.wish.name == asks && (strings.Contains(r.Stderr, "(no-capacity)") ||
			strings.Contains(r.Stderr, "(mode-conflict)")):
			w.counts.noRoom(asks)
			return false
		case w.faulty != "" && s.wish.name != none:
			return false
		case w.engineFaulty():
			return false
		}
		w.violation("create of %s (%s) through %s: %+v", s.id, s.wish.name, w.engine.name, r)
		return false
	}
}

func cmpOr(some, other []int) []int {
	if len(some) > 0 {
		return some
	}
	return other
}

// creates runs the programs that make and start a container.
func (w *worker) creates(s *slot) (r rig.Result, killed bool) {
	for _, c := range w.engine.creates(s, s.wish, w.dying(toCreate)) {
		if r, killed = w.run(c); killed || r.Code != 0 {
			return r, killed
		}
	}
	return r, false
}

// started waits for the container's first process, and compares what it can open with the grant.
func (w *worker) started(s *slot) bool {
	end := time.Now().Add(5 * time.Minute)
	for look := 1; ; look++ {
		if _, ok := s.found(); ok {
			break
		}
		if look%10 == 0 && len(s.processes()) == 0 {
			if _, ok := s.found(); !ok && !w.engineFaulty() {
				w.violation("container %s of %s has ended before it could open anything", s.id, w.engine.name)
			}
			return false
		}
		if time.Now().After(end) {
			w.violation("container %s of %s has not begun", s.id, w.engine.name)
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	found, _ := s.found()
	switch {
	case s.wish.name != asks:
	case len(found) == 2: // a GPU, and the control node
		s.node.listGPUs(s.id, found[:1])
	default:
		w.violation("container %s of %s has asked for a GPU and can open %v", s.id, w.engine.name, found)
	}
	if s.gpus != nil && !slices.Equal(found, withControl(s.gpus)) {
		w.violation("container %s (%s) of %s can open %v, and was granted the GPUs %v", s.id, s.wish.name,
			w.engine.name, found, s.gpus)
	}
	return true
}

// exec joins the container, and compares what such a process can open.
func (w *worker) exec(s *slot) {
	r, killed := w.run(command{toExec, w.engine.execs(s, "/bin/opens")})
	if !killed && r.Code == 0 && r.Stdout == "" {
		r = s.opens() // ctr has lost the output
	}
	first, _ := s.found()
	switch {
	case killed || w.engineFaulty():
	case r.Code != 0:
		w.violation("exec in %s of %s: %+v", s.id, w.engine.name, r)
	case !slices.Equal(numbers(r.Stdout), first):
		w.violation("a process that joins %s of %s can open %q, its first one %v", s.id, w.engine.name,
			r.Stdout, first)
	}
}

// endedMeanwhile is what Podman says of a container that ended before Podman could kill it.
const endedMeanwhile = "container state improper: stopped"

// end ends the slot's container, in most lives by its engine, and releases its grant.
func (w *worker) end(s *slot) {
	if !s.live {
		return
	}
	s.live = false
	pids := s.processes()
	if len(pids) == 0 && w.engine.name != "containerd" { // whose containers end with their shims
		w.violation("container %s of %s has ended by itself", s.id, w.engine.name)
	}
	if w.kills && len(pids) > 0 && w.random.IntN(5) == 0 {
		killed := false
		for _, pid := range pids { // the first one's end ends the others, and it may have any place here
			killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
		}
		if killed {
			w.counts.kill("container")
		}
		if w.random.IntN(2) == 0 {
			w.free(s)
		}
	}
	for _, c := range w.engine.deletes(s, w.dying(toDelete)) {
		r, killed := w.run(c)
		if killed || r.Code != 0 {
			// containerd's task may have ended with its shim, and Podman 4.3 fails where a
			// container ends while it is killed
			if !killed && w.engine.name != "containerd" && !strings.Contains(r.Stderr, endedMeanwhile) {
				w.violation("delete of %s through %s: %+v", s.id, w.engine.name, r)
			}
			w.clear(s)
			return
		}
	}
	w.gone(s)
	w.release(s)
}

// clear removes whatever is left of the slot's container and grant.
func (w *worker) clear(s *slot) {
	if s.bundle != nil {
		w.engine.clears(s)
		w.gone(s)
	}
	w.release(s)
}

// free waits until the grants of a container that has ended are free, before its engine is told to
// delete it.
func (w *worker) free(s *slot) {
	w.gone(s)
	if w.faulty != "" {
		return
	}
	var held int
	for range 600 {
		all, err := s.node.list()
		if err == nil {
			if _, held = ofContainer(all, s.inLedger()); held == 0 {
				return
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.violation("container %s of %s has ended, and holds %d grants", s.id, w.engine.name, held)
}

func (w *worker) release(s *slot) {
	if referenceOf(s) == "" {
		return
	}
	n := at(s.node.Node, w.dying(toRelease))
	r, killed := w.run(command{toRelease, commandOf(n, "release", string(s.reference.ID))})
	if killed || r.Code != 0 {
		w.releases.mayBeLeft(s.reference.ID)
	}
	if killed {
		w.forget(s)
		return
	}
	expired := r.Code == 4 && s.ends && s.jumped
	switch {
	case r.Code == 0:
		w.releases.acknowledged(s.reference.ID)
	case !expired && w.faulty == "":
		w.violation("release of %s, of %s: %+v", s.reference.ID, s.id, r)
	}
	s.reference = grant.Reference{}
}

// gone waits until no process of the container is left.
func (w *worker) gone(s *slot) {
	for tries := 0; len(s.processes()) > 0; tries++ {
		if tries == 3000 {
			w.violation("container %s of %s does not end", s.id, w.engine.name)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// forget releases the grants that a killed program has left under the slot's label.
func (w *worker) forget(s *slot) {
	s.reference = grant.Reference{}
	all, _, err := s.node.listAnyway()
	if err != nil && w.faulty == "" {
		w.violation("%v", err)
	}
	if err != nil || s.jumped { // a grant that is over by this clock comes back with the right one
		w.releases.someMayBeLeft(s.id)
	}
	for _, g := range all {
		switch {
		case g.Label != s.id:
		case len(g.Bindings) == 0:
			_ = w.releaseGrant(g.ID)
		default:
			w.releases.mayBeLeft(g.ID)
		}
	}
}

// listed is a grant, with its label.
type listed struct {
	rig.Listed
	Label string
}

// list is Grants for a goroutine, and for a ledger that may not be readable.
func (n *node) list() ([]listed, error) { return parse(n.CLI("grants", "--json")) }

// listAnyway is list, with an error where entries that cannot be read are left out. whole reports
// that none is.
func (n *node) listAnyway() (grants []listed, whole bool, err error) {
	r := n.CLI("grants", "--json")
	grants, err = parse(r)
	if err == nil && strings.Contains(r.Stderr, "warning") {
		err = errors.New(r.Stderr)
	}
	return grants, err == nil, err
}

func parse(r rig.Result) ([]listed, error) {
	var out struct{ Grants []json.RawMessage }
	if r.Code != 0 || json.Unmarshal([]byte(r.Stdout), &out) != nil {
		return nil, fmt.Errorf("gpuledger grants: %+v", r)
	}
	var all []listed
	for _, text := range out.Grants {
		var g listed
		label := struct{ Label string }{}
		if err := errors.Join(json.Unmarshal(text, &g.Listed), json.Unmarshal(text, &label)); err != nil {
			return nil, err
		}
		g.Label = label.Label
		all = append(all, g)
	}
	return all, nil
}

// endsMPS reports whether MPS daemons are killed, whose containers have to be started again then.
func (f fault) endsMPS() bool { return f.name == "MPS daemons die" }

// stopsMPS reports whether MPS daemons are killed, or what starts them.
func (f fault) stopsMPS() bool { return f.endsMPS() || f.name == "gpuledgerd dies" }

// engineFaulty reports whether the engine itself is being killed.
func (w *worker) engineFaulty() bool { return w.fault.engine && w.engine.name == "containerd" }
