package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
)

// The waits between starts of a daemon that fails, and between checks of its limits: every client
// reaches the control socket, and so can change them.
const (
	firstWait  = time.Second
	lastWait   = 10 * time.Second
	lookEvery  = 10 * time.Second
	allAnswers = 4 * answerTime  // for all answers of one daemon in a pass
	startTime  = 5 * time.Second // for how long a daemon that was started counts as starting
)

// restAfterSilence is for how long a daemon that did not answer is not asked again, as a multiple
// of the time that it took. While it is asked, the ends of other daemons are not noticed, and its
// clients can make it slow. The same holds for the next start after one that took long.
const restAfterSilence = 2

// daemon is one control daemon, with its directory.
type daemon struct {
	name, dir string
	node      *node.Node
	log       *logrus.Logger
	system    System // nil: this machine

	read       bool            // state was read from the file
	state      grant.MPSDaemon // as last written
	proven     provenSockets   // the sockets by which it may be asked
	nextStart  time.Time       // no start before
	launching  bool            // a launcher was started, and has not recorded its process yet
	backoff    time.Duration
	started    time.Time        // when it was last started, if it was ready before or never started
	askedAgain time.Time        // not asked before, because it did not answer
	looked     time.Time        // when its limits were checked
	logRead    int64            // how much was in its log when it was last ready, in bytes
	users      []boundContainer // that use it, as of the last pass
	lost       lostContexts     // with it or its server, and not started again yet
	toldToEnd  time.Time        // for the first time; zero: it was not
	toldAgain  time.Time        // for the last time
}

// provenSockets are the sockets on which a daemon listens, as the kernel has reported to this
// gpuledgerd.
type provenSockets struct {
	daemon grant.Process
	own    sockets
}

func (d *daemon) sys() System    { return systemOr(d.system) }
func (d *daemon) now() time.Time { return d.sys().Now() }

// facts are what a plan needs to know of the daemon.
func (d *daemon) facts() facts {
	return facts{name: d.name, gpus: d.state.GPUs, runs: d.runs(), toldToEnd: d.toldToEnd,
		toldAgain: d.toldAgain, askedAgain: d.askedAgain}
}

// runs reports whether its process runs, or may run.
func (d *daemon) runs() bool {
	_, runs, err := processIn(d.dir, d.node.Host)
	return runs || err != nil
}

// apply does an action on a daemon that runs.
func (d *daemon) apply(ctx context.Context, a action, w want) error {
	p, _, err := processIn(d.dir, d.node.Host)
	if err != nil {
		return fmt.Errorf("cannot tell whether the MPS daemon of %v runs: %w", d.state.GPUs, err)
	}
	switch a {
	case serve, reportNotReady:
		d.toldToEnd = time.Time{}
		if a == reportNotReady {
			return fmt.Errorf("the MPS daemon of %v is not ready: %s", w.uuids, d.state.Problem)
		}
		return d.serve(ctx, w, p)
	case dismiss:
		return d.dismiss(ctx, p)
	case reportNotEnded:
		return notEnded(d.state.GPUs, d.toldToEnd)
	case reportSilent:
		return fmt.Errorf("the MPS daemon of %v has no grant any more, and does not answer", d.state.GPUs)
	}
	return nil
}

// detectEnd reports whether the daemon or a server of it has ended since the last pass, or before
// gpuledgerd was started, and writes that down.
func (d *daemon) detectEnd() (died bool) {
	if !d.read {
		d.state, _ = mpsstate.Read(d.node.Host, d.dir)
		d.lost = readLost(d.node.Host, d.dir)
		d.users, d.read = d.lost.Containers, true
	}
	ended, early, left := "", false, grant.MPSDaemon{GPUs: d.state.GPUs}
	for _, p := range d.state.Servers {
		if runs, err := d.node.Host.Runs(p); err == nil && !runs {
			ended = fmt.Sprintf("server (process %d)", p.PID)
			continue
		}
		left.Servers = append(left.Servers, p)
	}
	if p := d.state.Daemon; p.PID != 0 {
		if runs, err := d.node.Host.Runs(p); err == nil && !runs {
			ended = fmt.Sprintf("daemon (process %d)", p.PID)
			early = d.state.Socket == [2]uint64{} && d.toldToEnd.IsZero()
			left.Servers = nil         // they end with the daemon
			d.askedAgain = time.Time{} // the next daemon may answer
		} else {
			left.Daemon, left.Socket, left.Privileged = p, d.state.Socket, d.state.Privileged
		}
	}
	switch {
	case ended == "":
		return false
	case d.state.Problem == noGrant:
		left.Problem = noGrant
		d.state = left
		return false
	}
	lost := slices.Clone(d.lost.Containers)
	for _, c := range slices.Concat(d.users, d.boundContainers()) { // the last for those that have just begun
		if !slices.Contains(lost, c) {
			lost = append(lost, c)
		}
	}
	if err := d.lost.set(d.node.Host, d.dir, lost, d.now()); err != nil {
		d.log.Warn(err)
	}
	d.log.WithFields(logrus.Fields{"gpus": d.state.GPUs, "containers": ids(lost)}).Error("the MPS " +
		ended + " has ended; the contexts of its clients are gone")
	left.Problem = "its " + ended + " has ended"
	words := d.logReason()
	if early {
		words = cmp.Or(words, noReason)
	}
	if words != "" {
		left.Problem += ": " + words
	}
	if err := d.writeState(left); err != nil {
		// readers of the state ask the kernel, too
		d.log.WithError(err).Warn("cannot write down that an MPS daemon has ended")
	}
	return true
}

// boundContainers are the containers that use the daemon's grants now.
func (d *daemon) boundContainers() []boundContainer {
	o, err := grants.Read(d.node)
	if err != nil {
		return d.users
	}
	return wants(o.Grants)[d.name].containers
}

// writeState writes the state if it differs from the file.
func (d *daemon) writeState(state grant.MPSDaemon) error {
	state.Starting = state.Problem != "" && (d.now().Sub(d.started) < startTime || state.Problem == noGrant)
	if written, known := mpsstate.Read(d.node.Host, d.dir); known && equalState(state, written) {
		d.state = state
		return nil
	}
	if err := mpsstate.Write(d.node.Host, d.dir, state); err != nil {
		return err
	}
	d.state = state
	return nil
}

func equalState(a, b grant.MPSDaemon) bool {
	a.Version, a.BootID, b.Version, b.BootID = 0, "", 0, ""
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// serve has the daemon serve what is wanted, and writes down whether it does.
func (d *daemon) serve(ctx context.Context, w want, p grant.Process) error {
	began := d.now()
	ctx, cancel := context.WithTimeout(ctx, allAnswers)
	defer cancel()
	state, err := d.setUp(ctx, w, p)
	d.putOff(err, d.now().Sub(began))
	d.detectEnd() // a server that has ended meanwhile may have been replaced by setUp
	if err != nil {
		state = grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Servers: d.state.Servers, Problem: err.Error()}
		if d.proven.daemon == p {
			state.Socket, state.Privileged = d.proven.own.control, d.proven.own.privileged
		}
		err = fmt.Errorf("the MPS daemon of %v is not ready: %w", w.uuids, err)
	} else {
		d.backoff, d.logRead = 0, logSize(d.dir)
	}
	return errors.Join(err, d.writeState(state))
}

// putOff postpones the next question to a daemon that did not answer.
func (d *daemon) putOff(err error, took time.Duration) {
	if err != nil && took >= answerTime {
		d.askedAgain = d.now().Add(restAfterSilence * min(took, allAnswers)) // longer: it was stopped
	}
}

// setUp sets the limits, has a server run, and returns the state that results.
func (d *daemon) setUp(ctx context.Context, w want, p grant.Process) (grant.MPSDaemon, error) {
	state := grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Limits: w.limits, Threads: w.threads}
	before, err := d.socketStamps(ctx)
	if err != nil {
		return state, err
	}
	if err := d.checkSocket(&state); err != nil { // before anything is asked: another process may answer
		return state, err
	}
	c, err := d.control()
	if err == nil {
		err = d.agree(ctx, c, w, &state)
	}
	if err == nil { // and after: another process may have answered in between
		err = d.stillThere(sockets{state.Socket, state.Privileged}, before, p)
	}
	return state, err
}

// agree asks the daemon whether it serves what is wanted, and sets what it does not have.
func (d *daemon) agree(ctx context.Context, c control, w want, state *grant.MPSDaemon) error {
	servers, err := c.servers(ctx)
	if err != nil {
		return err
	}
	asSaid := d.state.Problem == "" && d.state.Daemon == state.Daemon &&
		fmt.Sprint(d.state.Limits, d.state.Threads) == fmt.Sprint(w.limits, w.threads)
	if !asSaid || len(servers) == 0 || d.now().Sub(d.looked) > lookEvery {
		if err := c.setLimits(ctx, w, servers); err != nil {
			return err
		}
		d.looked = d.now()
	}
	if len(servers) == 0 { // after the limits: defaults apply to servers that start later
		if servers, err = c.startServer(ctx); err != nil {
			return d.withReason(err)
		}
	}
	for _, pid := range servers {
		server, _, err := d.node.Host.Process(pid)
		if err != nil {
			return d.withReason(fmt.Errorf("its server %d: %w", pid, err))
		}
		if !mpsstate.Descends(d.node.Host, server, state.Daemon) {
			return fmt.Errorf("it names process %d as its server, and has not started that process", pid)
		}
		if err := c.checkActive(ctx, pid, w.threads); err != nil {
			return err
		}
		state.Servers = append(state.Servers, server)
	}
	return nil
}

// withReason adds to an error what the log says of it.
func (d *daemon) withReason(err error) error {
	if words := d.logReason(); words != "" {
		return fmt.Errorf("%w: %s", err, words)
	}
	return err
}

// start starts the daemon, unless it failed a moment ago.
func (d *daemon) start(w want) error {
	now := d.now()
	if now.Before(d.nextStart) {
		return fmt.Errorf("the MPS daemon of %v is not ready: %s", w.uuids, d.state.Problem)
	}
	if d.backoff == 0 {
		d.started = now
	}
	d.backoff = min(max(firstWait, 2*d.backoff), lastWait)
	d.toldToEnd = time.Time{} // that was the one before
	err := d.launch(w)
	ended := d.now()
	d.nextStart = ended.Add(max(d.backoff, restAfterSilence*min(ended.Sub(now), allAnswers)))
	if err != nil {
		return d.startFailed(w, err)
	}
	p, runs, err := processIn(d.dir, d.node.Host)
	switch {
	case err != nil:
		return d.startFailed(w, err)
	case !runs:
		return d.startFailed(w, endedAtOnce(d.logReason()))
	}
	d.log.WithFields(logrus.Fields{"gpus": w.uuids, "pid": p.PID}).Info("the MPS daemon is started")
	if pipe := filepath.Join(d.dir, "pipe"); !followsNoLinks(pipe) {
		d.log.WithField("directory", pipe).Warn("root's programs follow links that clients of the MPS " +
			"daemon make in its directory (docs/strength.md): the kernel is older than 5.10, or gpuledgerd " +
			"of another version than its launcher")
	}
	return d.writeState(grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Problem: "its daemon is being started"})
}

// startFailed writes down why the daemon does not run.
func (d *daemon) startFailed(w want, err error) error {
	said := error(nil)
	if os.MkdirAll(d.dir, 0o700) == nil {
		said = d.writeState(grant.MPSDaemon{GPUs: w.uuids, Problem: err.Error()})
	}
	return errors.Join(fmt.Errorf("cannot start the MPS daemon of %v: %w", w.uuids, err), said)
}
