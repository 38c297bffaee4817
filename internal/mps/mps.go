// Package mps looks after NVIDIA's Multi-Process Service for grants in mode mps: one control daemon for each set of GPUs that
// such grants are over, from the first of them to the last.
//
// A daemon is not gpuledgerd's child in spirit: it lives in a directory below the run directory, says there who it is, and stays
// when gpuledgerd stops, crashes or is upgraded; the next gpuledgerd finds it and leaves it as it is. To restart it would kill
// every client. What gpuledgerd finds stands in the daemon's state.json; a container whose grant needs the daemon starts only
// when that says that its limits are set and a server answers.
package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Manager is gpuledgerd's manager of MPS daemons.
type Manager struct {
	Node   func() *node.Node
	Ledger func(*node.Node) (node.Overview, error) // reads it, or knows that it is as it was
	Log    *logrus.Logger

	daemons map[string]*daemon // by directory
	began   time.Time          // when the ledger was last read,
	took    time.Duration      // how long that took,
	seen    time.Time          // how new its grants were,
	failure error              // and what came of it
}

// Name is how the daemon calls it in logs.
func (m *Manager) Name() string { return "mps" }

// Stop leaves the daemons as they are.
func (m *Manager) Stop() {}

// restAfter keeps the reading of a large ledger below one percent of a core: of one that nobody has changed, only containers that are
// gone and time that is over can be news. One that was changed is read at once, if not all of the time, and where there is no daemon to
// end, one that was not changed is read seldom.
const (
	restAfter, restAfterChange = 100, 4
	restIdle                   = 30 * time.Second
)

// settled is older than a change that the clock of file systems could put at the time of another (one tick, 10 ms at most).
const settled = 20 * time.Millisecond

// Ensure has a daemon run, with the limits that the ledger says, for every set of GPUs with a grant in mode mps, and none
// elsewhere. Dead ones are noticed first, at every pass: what follows waits for answers, and may be put off.
func (m *Manager) Ensure(ctx context.Context) error {
	began, died := time.Now(), false
	for _, d := range m.daemons {
		died = d.notice() || died
		if err := d.shorten(); err != nil {
			m.Log.WithError(err).Debug("a log stays as long as it is")
		}
	}
	rest, changed := restAfter*m.took, m.changed()
	switch {
	case !changed.Equal(m.seen):
		rest = restAfterChange * m.took
	case len(m.daemons) == 0 && m.failure == nil && m.began.Sub(m.seen) > settled: // nobody wants one, and whoever does changes a grant
		rest = restIdle
	}
	if began.Before(m.began.Add(rest)) && !died {
		return m.failure
	}
	o, err := m.Ledger(m.Node())
	m.began, m.took, m.seen = began, time.Since(began), changed
	if err == nil {
		err = m.ensure(ctx, o)
	}
	m.failure = err
	return err
}

// changed is when a grant was last entered, changed or removed: each is a file, replaced by rename.
func (m *Manager) changed() time.Time {
	return host.StampOf(filepath.Join(m.Node().Policy.StateDir, "grants")).Changed()
}

func (m *Manager) ensure(ctx context.Context, o node.Overview) error {
	wanted := wants(o.Grants)
	all, err := m.known(m.Node(), wanted)
	if err != nil {
		return err
	}
	for _, d := range all { // those from before this gpuledgerd was started
		d.notice()
	}
	errs := make([]error, len(all))
	idle := map[*daemon]bool{}
	var asked sync.WaitGroup // all at once: one that does not answer, which each of its clients can see to, holds up no other
	for i, d := range all {
		w, is := wanted[d.name]
		if !is && len(o.Damaged) > 0 { // a damaged entry may be the one that needs it
			continue
		}
		d.users = w.containers
		switch p, runs := d.process(); {
		case !runs:
			idle[d] = true
		case is:
			asked.Go(func() { errs[i] = d.ensure(ctx, w, p) })
		default:
			asked.Go(func() { errs[i] = d.retire(ctx, p) })
		}
	}
	asked.Wait()
	for i, d := range all {
		w, is := wanted[d.name]
		switch {
		case idle[d] && is:
			errs[i] = d.bring(w, all)
		case idle[d]:
			errs[i] = d.clear()
		}
		errs[i] = errors.Join(errs[i], d.mourn())
	}
	return errors.Join(errs...)
}

// want is a daemon that grants need.
type want struct {
	uuids      []string // by index
	limits     map[string]grant.Bytes
	threads    int
	containers []string
}

// wants adds grants up: a daemon's defaults bound every client, and each client's own settings may only lower them. So they are
// those of the largest grant.
func wants(grants []grant.Grant) map[string]want {
	all := map[string]want{}
	for _, g := range grants {
		if g.Mode != grant.MPS {
			continue
		}
		name := grant.MPSName(g.UUIDs())
		w, found := all[name]
		if !found {
			w = want{uuids: g.UUIDs(), limits: map[string]grant.Bytes{}}
		}
		for _, s := range g.GPUs {
			w.limits[s.UUID] = max(w.limits[s.UUID], s.Memory)
		}
		w.threads = max(w.threads, cmp.Or(g.Compute, 100))
		for _, b := range g.Bindings {
			w.containers = append(w.containers, b.Container)
		}
		all[name] = w
	}
	return all
}

// known are the daemons that are wanted or there, those that are not wanted first: they may be in the way of others.
func (m *Manager) known(n *node.Node, wanted map[string]want) ([]*daemon, error) {
	names := map[string]bool{}
	entries, err := os.ReadDir(grant.MPSDir(n.Policy.RunDir, ""))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		names[e.Name()] = true
	}
	for name := range wanted {
		names[name] = true
	}
	var all []*daemon
	here := map[string]*daemon{}
	for name := range names {
		dir := grant.MPSDir(n.Policy.RunDir, name)
		d := m.daemons[dir]
		if d == nil {
			d = &daemon{name: name, dir: dir}
		}
		d.node, d.log = n, m.Log
		here[dir] = d
		all = append(all, d)
	}
	m.daemons = here
	slices.SortFunc(all, func(a, b *daemon) int {
		_, x := wanted[a.name]
		_, y := wanted[b.name]
		return cmp.Or(boolean(x)-boolean(y), cmp.Compare(a.name, b.name))
	})
	return all, nil
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The waits between starts of a daemon that does not come up, and between looks at whether its limits are still as set: whoever
// reaches the control socket, as every client does, can change them.
const (
	firstWait  = time.Second
	lastWait   = 10 * time.Second
	lookEvery  = 10 * time.Second
	patience   = 10 * time.Second // with a daemon that was told to end
	allAnswers = 4 * answerTime   // that a pass asks a daemon for
)

// restAfterSilence is for how long, as a multiple of what it took, one is not asked again that did not answer: what its clients do to it
// keeps the ends of other daemons unseen for that time.
const restAfterSilence = 2

// daemon is one control daemon, in its directory.
type daemon struct {
	name, dir string
	node      *node.Node
	log       *logrus.Logger

	read   bool            // state was, from the file
	state  grant.MPSDaemon // as last written
	proven proof           // by which it may be asked
	retry  time.Time       // no start before
	wait   time.Duration
	quiet  time.Time // not asked before
	looked time.Time // at its limits
	users  []string  // containers, at the last pass
	lost   []string  // containers that its end, or its server's, took along
	when   time.Time
	told   time.Time // to end
}

// proof is that a daemon listens on a socket, which the kernel has told this gpuledgerd.
type proof struct {
	daemon grant.Process
	socket [2]uint64
}

// notice finds that a daemon, or a server of it, has ended that was there at the last pass, or before gpuledgerd was started.
func (d *daemon) notice() (died bool) {
	if !d.read {
		d.state, _ = d.node.MPSState(d.dir)
		d.read = true
	}
	who, left := "", grant.MPSDaemon{GPUs: d.state.GPUs}
	for _, p := range d.state.Servers {
		if runs, err := d.node.Host.Runs(p); err == nil && !runs {
			who = fmt.Sprintf("server (process %d)", p.PID)
			continue
		}
		left.Servers = append(left.Servers, p)
	}
	if p := d.state.Daemon; p.PID != 0 {
		if runs, err := d.node.Host.Runs(p); err == nil && !runs {
			who = fmt.Sprintf("daemon (process %d)", p.PID)
			left.Servers = nil    // they end with it
			d.quiet = time.Time{} // nor is the next one as silent
		} else {
			left.Daemon, left.Socket = p, d.state.Socket
		}
	}
	if who == "" {
		return false
	}
	took := slices.Concat(d.lost, d.users, d.bound()) // the last for those that ended with it, a moment ago
	slices.Sort(took)
	d.lost, d.when = slices.Compact(took), time.Now()
	d.log.WithFields(logrus.Fields{"gpus": d.state.GPUs, "containers": d.lost}).Error("the MPS " + who + " has ended; the contexts of its clients are gone")
	left.Problem = "its " + who + " has ended"
	if words := d.lastWords(); words != "" { // of one that ends as soon as it is started, the reason
		left.Problem += ": " + words
	}
	if err := d.say(left); err != nil {
		d.log.WithError(err).Warn("cannot write down that an MPS daemon has ended") // whoever reads that it runs asks the kernel too
	}
	return true
}

// bound are the containers that use grants of the daemon now.
func (d *daemon) bound() []string {
	o, err := d.node.Overview()
	if err != nil {
		return d.users
	}
	return wants(o.Grants)[d.name].containers
}

// mourn is the error that stands for as long as containers are there that lost their daemon.
func (d *daemon) mourn() error {
	d.lost = slices.DeleteFunc(d.lost, func(c string) bool { return !slices.Contains(d.users, c) })
	if len(d.lost) == 0 {
		return nil
	}
	return fmt.Errorf("the MPS daemon or server of %v ended at %s, and these containers lost their contexts: %v; start them again", d.state.GPUs,
		d.when.UTC().Format(time.RFC3339), d.lost)
}

// say writes the state down where something else stands.
func (d *daemon) say(state grant.MPSDaemon) error {
	if written, known := d.node.MPSState(d.dir); known && same(state, written) {
		d.state = state
		return nil
	}
	if err := d.node.SetMPSState(d.dir, state); err != nil {
		return err
	}
	d.state = state
	return nil
}

func same(a, b grant.MPSDaemon) bool {
	a.Version, a.BootID, b.Version, b.BootID = 0, "", 0, ""
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// ensure has one that runs serve what is wanted.
func (d *daemon) ensure(ctx context.Context, w want, p grant.Process) error {
	d.told = time.Time{}
	began := time.Now()
	if began.Before(d.quiet) {
		return fmt.Errorf("the MPS daemon of %v is not ready: %s", w.uuids, d.state.Problem)
	}
	ctx, cancel := context.WithTimeout(ctx, allAnswers)
	defer cancel()
	state, err := d.serve(ctx, w, p)
	d.rest(err, time.Since(began))
	d.notice() // a server that ended since the look at the beginning may have been replaced by serve
	if err != nil {
		state = grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Servers: d.state.Servers, Problem: err.Error()}
		if d.proven.daemon == p {
			state.Socket = d.proven.socket
		}
		err = fmt.Errorf("the MPS daemon of %v is not ready: %w", w.uuids, err)
	} else {
		d.wait = 0
	}
	return errors.Join(err, d.say(state))
}

// rest puts off one that did not answer.
func (d *daemon) rest(err error, took time.Duration) {
	if err != nil && took >= answerTime {
		d.quiet = time.Now().Add(restAfterSilence * took)
	}
}

// serve sets its limits, has a server run and gives what it then says of itself.
func (d *daemon) serve(ctx context.Context, w want, p grant.Process) (grant.MPSDaemon, error) {
	state := grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Limits: w.limits, Threads: w.threads}
	stamp, err := d.stamp(ctx)
	if err != nil {
		return state, err
	}
	if err := d.reach(&state); err != nil { // before anything is asked: who answers may be somebody else
		return state, err
	}
	c, err := d.control()
	if err == nil {
		err = d.agree(ctx, c, w, &state)
	}
	if err == nil { // and after: whoever has the socket's place for a moment has given the answers
		err = d.stillThere(state.Socket, stamp, p)
	}
	return state, err
}

// agree has it say that it serves what is wanted.
func (d *daemon) agree(ctx context.Context, c control, w want, state *grant.MPSDaemon) error {
	servers, err := c.servers(ctx)
	if err != nil {
		return err
	}
	asSaid := d.state.Problem == "" && d.state.Daemon == state.Daemon && fmt.Sprint(d.state.Limits, d.state.Threads) == fmt.Sprint(w.limits, w.threads)
	if !asSaid || len(servers) == 0 || time.Since(d.looked) > lookEvery {
		if err := c.settle(ctx, w, servers); err != nil {
			return err
		}
		d.looked = time.Now()
	}
	if len(servers) == 0 { // only now: defaults reach servers that start after them
		if servers, err = c.startServer(ctx); err != nil {
			return err
		}
	}
	for _, pid := range servers {
		if err := c.active(ctx, pid); err != nil {
			return err
		}
		server, _, err := d.node.Host.Process(pid)
		if err != nil {
			return fmt.Errorf("its server %d: %w", pid, err)
		}
		state.Servers = append(state.Servers, server)
	}
	return nil
}

// reach looks at the way by which clients come to it: whom it lets in, which its own arguments say, whoever launched it; and that
// the socket is its own. A client that cannot reach the daemon would go on without it, with the whole GPU.
func (d *daemon) reach(state *grant.MPSDaemon) error {
	args, err := host.ReadFile(filepath.Join(d.node.Host.Proc, strconv.Itoa(state.Daemon.PID), "cmdline"), 1<<16)
	if err != nil {
		return err
	}
	state.Anybody = slices.Contains(strings.Split(string(args), "\x00"), multiUser)
	socket, mode, err := d.own(state.Daemon)
	if err == nil && state.Anybody && mode&0o002 == 0 {
		err = errors.New("its control socket is open to root alone")
	}
	state.Socket = socket
	return err
}

// own is the control socket, on which the kernel has said that the daemon listens, or a process that it has started. What is written down
// is no proof of it: the daemon may have been started again since, and its clients put what they like in the socket's place.
func (d *daemon) own(p grant.Process) (socket [2]uint64, mode uint32, err error) {
	socket, mode, is := node.MPSSocket(d.dir)
	switch {
	case !is && !onMount(filepath.Join(d.dir, "pipe")):
		return socket, mode, errors.New("it has no control socket, and its directory is not mounted where gpuledgerd looks")
	case !is:
		return socket, mode, errors.New("it has no control socket")
	case d.proven == proof{p, socket}:
		return socket, mode, nil
	}
	pid, listens, err := host.Listener(node.MPSSocketPath(d.dir))
	if err != nil {
		return socket, mode, fmt.Errorf("it does not listen on its control socket: %w", err)
	}
	if _, parent, err := d.node.Host.Process(pid); listens != socket || pid != p.PID && (err != nil || parent != p.PID) {
		return socket, mode, otherSocket(p)
	}
	d.proven = proof{p, socket}
	return socket, mode, nil
}

// stamp is the control socket's. Whoever puts another one in its place and then it back into its own has renamed or linked it, which the
// time of its last change tells; a client only connects. It is taken when that time is old enough to tell.
func (d *daemon) stamp(ctx context.Context) (host.Stamp, error) {
	for range 2 {
		stamp, now := host.StampOf(node.MPSSocketPath(d.dir)), time.Now()
		if stamp.Before(now) || stamp.Changed().After(now) { // the clock was put back: then the next change has another time as well
			return stamp, nil
		}
		select { // a daemon that has just begun to listen
		case <-time.After(2 * settled):
		case <-ctx.Done():
		}
	}
	return host.Stamp{}, errMoved
}

// stillThere is an error where a socket was replaced, or was moved since it had a stamp.
func (d *daemon) stillThere(socket [2]uint64, stamp host.Stamp, p grant.Process) error {
	if now, _, is := node.MPSSocket(d.dir); !is || now != socket {
		return otherSocket(p)
	}
	if host.StampOf(node.MPSSocketPath(d.dir)) != stamp {
		return errMoved
	}
	return nil
}

// errMoved says that the answers may be another's. The daemon is asked again at the next pass.
var errMoved = errors.New("its control socket was moved while it was asked, by who reaches its directory")

func otherSocket(p grant.Process) error {
	return fmt.Errorf("%s, by who reaches its directory; when its containers have ended, end process %d", node.OtherSocket, p.PID)
}

// bring starts it, unless another daemon still has one of its GPUs, or it failed a moment ago.
func (d *daemon) bring(w want, all []*daemon) error {
	for _, o := range all {
		if _, runs := o.process(); runs && o != d && slices.ContainsFunc(o.state.GPUs, func(uuid string) bool { return slices.Contains(w.uuids, uuid) }) {
			return d.fails(w, fmt.Errorf("the daemon of %v is not gone yet", o.state.GPUs))
		}
	}
	now := time.Now()
	if now.Before(d.retry) {
		return fmt.Errorf("the MPS daemon of %v is not ready: %s", w.uuids, d.state.Problem)
	}
	d.wait = min(max(firstWait, 2*d.wait), lastWait)
	d.retry = now.Add(d.wait)
	if err := d.start(w); err != nil {
		return d.fails(w, err)
	}
	p, runs := d.process()
	if !runs {
		return d.fails(w, fmt.Errorf("it ended at once; see %s", filepath.Join(d.dir, "log")))
	}
	d.log.WithFields(logrus.Fields{"gpus": w.uuids, "pid": p.PID}).Info("the MPS daemon is started")
	if pipe := filepath.Join(d.dir, "pipe"); !followsNoLinks(pipe) {
		d.log.WithField("directory", pipe).Warn("root's programs follow links that clients of the MPS daemon make in its directory (docs/strength.md): the kernel is older than 5.10, or gpuledgerd of another version than its launcher")
	}
	return d.say(grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Problem: "its daemon is being started"})
}

// fails says why it does not run.
func (d *daemon) fails(w want, err error) error {
	said := error(nil)
	if os.MkdirAll(d.dir, 0o700) == nil {
		said = d.say(grant.MPSDaemon{GPUs: w.uuids, Problem: err.Error()})
	}
	return errors.Join(fmt.Errorf("cannot start the MPS daemon of %v: %w", w.uuids, err), said)
}

// retire ends it when it has no clients any more: to end it under one that has work on the GPU can hang them all, and clients
// of other daemons too (seen up to CUDA 13.5).
func (d *daemon) retire(ctx context.Context, p grant.Process) error {
	if !d.told.IsZero() {
		if time.Since(d.told) < patience {
			return nil
		}
		return fmt.Errorf("the MPS daemon of %v was told to end at %s and is still there", d.state.GPUs, d.told.UTC().Format(time.RFC3339))
	}
	began := time.Now()
	if began.Before(d.quiet) {
		return fmt.Errorf("the MPS daemon of %v has no grant any more, and does not answer", d.state.GPUs)
	}
	ctx, cancel := context.WithTimeout(ctx, allAnswers)
	defer cancel()
	err := d.dismiss(ctx, p)
	d.rest(err, time.Since(began))
	return err
}

// dismiss tells it to end, where it is the one that answers, and where that disturbs nobody.
func (d *daemon) dismiss(ctx context.Context, p grant.Process) error {
	stamp, err := d.stamp(ctx)
	if err != nil {
		return fmt.Errorf("the MPS daemon of %v has no grant any more and cannot be told to end: %w", d.state.GPUs, err)
	}
	socket, _, err := d.own(p)
	if err != nil {
		return fmt.Errorf("the MPS daemon of %v has no grant any more and cannot be told to end: %w", d.state.GPUs, err)
	}
	if err := d.say(grant.MPSDaemon{GPUs: d.state.GPUs, Socket: socket, Problem: "its last grant is gone"}); err != nil { // no process: its end is no news
		return err
	}
	c, err := d.control()
	if err != nil {
		return err
	}
	clients, err := c.clients(ctx)
	switch {
	case err != nil:
		return err
	case len(clients) > 0:
		return fmt.Errorf("the MPS daemon of %v has no grant any more and serves processes %v, so it stays until they end", d.state.GPUs, clients)
	}
	if err := d.stillThere(socket, stamp, p); err != nil {
		return err
	}
	if err := c.quit(ctx); err != nil {
		return err
	}
	d.told = time.Now()
	d.log.WithField("gpus", d.state.GPUs).Info("the MPS daemon is told to end: its last grant is gone")
	return nil
}
