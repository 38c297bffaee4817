package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long gpuledgerd runs before it is measured, and how long each of its two measurements is: one
// with a scrape each 15 s, as Prometheus does by default, and one with a scrape each second, which
// gives the times of its passes.
const (
	daemonWarmUp = 20 * time.Second
	daemonTime   = 60 * time.Second
	scrapeEvery  = 15 * time.Second
)

// measure measures the node at its present size, with gpuledgerd running.
func (n *scaleNode) measure() (at ScaleAt, err error) {
	at.Size = n.size
	d, err := n.startDaemon()
	if err != nil {
		return at, err
	}
	defer d.stop()
	progress("gpuledgerd, for %v", daemonWarmUp+2*daemonTime)
	if at.Daemon, err = d.measure(); err != nil {
		return at, err
	}
	progress("%d calls of each command", n.rig.options.calls)
	if at.Calls, err = n.measureCalls(); err != nil {
		return at, err
	}
	progress("%d times %d creates at once", n.bursts(), atOnceCreates)
	bursts, err := n.measureBursts()
	at.Calls = append(at.Calls, bursts...)
	return at, err
}

// A measuredCall is a command that is called again and again.
type measuredCall struct {
	name    string
	before  func() error // not measured; may be nil
	command func() *exec.Cmd
	after   func(output string) // may be nil
}

// measureCalls calls each command in turns.
func (n *scaleNode) measureCalls() ([]CallRow, error) {
	granted, err := n.admit("admit", "--memory", "256MiB")
	if err != nil {
		return nil, err
	}
	free, err := n.admit("admit-free")
	if err != nil {
		return nil, err
	}
	all := n.callsOf("", n.rig.cli, n.rig.wrapper, granted, free)
	if other := n.rig.options.against; other != "" {
		all = append(all, n.callsOf(", other version", filepath.Join(other, "gpuledger"),
			filepath.Join(other, wrapperName), granted, free)...)
	}
	costs := make([][]callCost, len(all))
	for round := range n.rig.options.calls {
		if round%20 == 0 { // inspect shows it
			if err := n.use.write(); err != nil {
				return nil, err
			}
		}
		for i, call := range all {
			if n.rig.ctx.Err() != nil {
				return nil, errors.New("interrupted")
			}
			if call.before != nil {
				if err := call.before(); err != nil {
					return nil, err
				}
			}
			cost, err := n.rig.cost(call.command())
			if err != nil {
				return nil, err
			}
			if call.after != nil {
				call.after(cost.output)
			}
			costs[i] = append(costs[i], cost)
		}
	}
	rows := make([]CallRow, len(all))
	for i, call := range all {
		rows[i] = rowOf(call.name, costs[i])
	}
	return rows, granted.end()
}

// callsOf are the calls of one version's programs. Its release is of what its grant made.
func (n *scaleNode) callsOf(suffix, cli, wrapper string, granted, free *admittedContainer) []measuredCall {
	made := ""
	command := func(args ...string) func() *exec.Cmd {
		return func() *exec.Cmd { return n.rig.command(n.env, append([]string{cli}, args...)...) }
	}
	admits := func(a *admittedContainer) func() *exec.Cmd {
		return func() *exec.Cmd {
			return n.rig.command(n.admitting.env, wrapper, "--root", n.root, "create",
				"--bundle", a.bundle, a.id)
		}
	}
	return []measuredCall{
		{"admit with a grant, true(1) as runtime" + suffix, granted.restore, admits(granted), nil},
		{"admit without a GPU, true(1) as runtime" + suffix, free.restore, admits(free), nil},
		{"grant" + suffix, nil, command("grant", "--memory", "256MiB"),
			func(output string) { made = grantIn(output) }},
		{"release" + suffix, nil, func() *exec.Cmd { return command("release", made)() }, nil},
		{"inspect" + suffix, nil, command("inspect"), nil},
		{"grants" + suffix, nil, command("grants"), nil},
		{"check" + suffix, nil, command("check"), nil},
	}
}

// grantIn is the id in the reference that `gpuledger grant` prints; "" if it printed none.
func grantIn(output string) string {
	for word := range strings.FieldsSeq(output) {
		if id, secret, _ := strings.Cut(word, "."); strings.HasPrefix(id, "g-") && secret != "" {
			return id
		}
	}
	return ""
}

// An admittedContainer is one that the wrapper admits and that does not start, because its real
// runtime is true(1).
type admittedContainer struct {
	*container
	asked []byte // its config.json
	grant string // its grant's id; "": none
}

// admit makes a container, and a grant for it if there are arguments for one.
func (n *scaleNode) admit(id string, grantOf ...string) (*admittedContainer, error) {
	reference := ""
	if len(grantOf) > 0 {
		var err error
		if reference, err = n.grant(grantOf...); err != nil {
			return nil, err
		}
	}
	admitting := *n
	admitting.node = n.admitting
	c, err := admitting.container(id, reference)
	if err != nil {
		return nil, err
	}
	a := &admittedContainer{container: c}
	a.grant, _, _ = strings.Cut(reference, ".")
	a.asked, err = os.ReadFile(filepath.Join(c.bundle, "config.json"))
	return a, err
}

// restore puts the engine's config.json back, which the wrapper has replaced.
func (a *admittedContainer) restore() error {
	return os.WriteFile(filepath.Join(a.bundle, "config.json"), a.asked, 0o644)
}

// end releases its grant.
func (a *admittedContainer) end() error { return a.node.rig.run(a.node.cli("release", a.grant)) }

// bursts is how often containers are created at once.
func (n *scaleNode) bursts() int { return 1 + n.rig.options.calls/50 }

// measureBursts creates containers at once and deletes them, in turns with the bare runtime.
func (n *scaleNode) measureBursts() ([]CallRow, error) {
	var created, deleted, bare, bareDeleted, whole, wholeBare []callCost
	for i := len(n.burst); i < atOnceCreates; i++ {
		reference, err := n.grant("--memory", "256MiB")
		if err != nil {
			return nil, err
		}
		n.burst = append(n.burst, reference)
	}
	for range n.bursts() {
		for _, isBare := range []bool{false, true} {
			var batch []*container
			for i, reference := range n.burst {
				if isBare {
					reference = ""
				}
				c, err := n.container(fmt.Sprintf("%064x", wholeNode.Containers+i), reference)
				if err != nil {
					return nil, err
				}
				c.bare = isBare
				batch = append(batch, c)
			}
			began := time.Now()
			of, err := n.together(batch, (*container).create)
			if err != nil {
				return nil, err
			}
			all := callCost{wall: time.Since(began)}
			for _, c := range of {
				all.cpu += c.cpu
			}
			gone, err := n.together(batch, (*container).delete)
			if err != nil {
				return nil, err
			}
			for _, c := range batch {
				_ = os.Remove(c.pid)
			}
			if isBare {
				bare, bareDeleted = append(bare, of...), append(bareDeleted, gone...)
				wholeBare = append(wholeBare, all)
			} else {
				created, deleted = append(created, of...), append(deleted, gone...)
				whole = append(whole, all)
			}
		}
	}
	grants, err := n.measureGrantsAtOnce()
	return []CallRow{
		grants,
		rowOf("create with a grant, one of 64 at once", created),
		rowOf("create by bare runc, one of 64 at once", bare),
		rowOf("delete, one of 64 at once", deleted),
		rowOf("delete by bare runc, one of 64 at once", bareDeleted),
		rowOf("64 creates at once, together", whole),
		rowOf("64 creates at once by bare runc, together", wholeBare),
	}, err
}

// measureGrantsAtOnce makes grants at once, which all wait for the ledger's lock, and releases them
// one after another.
func (n *scaleNode) measureGrantsAtOnce() (CallRow, error) {
	var costs []callCost
	for range n.bursts() {
		of, err := n.together(make([]*container, atOnceCreates), func(*container) *exec.Cmd {
			return n.cli("grant", "--memory", "256MiB")
		})
		if n.rig.ctx.Err() != nil {
			return CallRow{}, err
		}
		if err != nil { // it waited for the lock for too long
			progress("not all of %d grants at once were made: %v", atOnceCreates, err)
		}
		release := []string{"release"}
		for _, c := range of {
			if id := grantIn(c.output); id != "" {
				release = append(release, id)
			}
		}
		if err := n.rig.run(n.cli(release...)); err != nil {
			return CallRow{}, err
		}
		costs = append(costs, of...)
	}
	return rowOf("grant, one of 64 at once", costs), nil
}

// A runningDaemon is gpuledgerd.
type runningDaemon struct {
	node    *scaleNode
	cmd     *exec.Cmd
	address string // of its metrics
}

func (n *scaleNode) startDaemon() (*runningDaemon, error) {
	r := n.rig
	log, err := os.Create(r.path("gpuledgerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d := &runningDaemon{node: n, cmd: r.command(n.env, r.daemon, "--nri", "off", "--runtime-root", n.root)}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	r.ends = append(r.ends, d.stop)
	for deadline := began.Add(time.Minute); d.address == ""; time.Sleep(5 * time.Millisecond) {
		if r.ctx.Err() != nil || time.Now().After(deadline) {
			d.stop()
			return nil, fmt.Errorf("gpuledgerd does not serve: %s", readFile(log.Name()))
		}
		_, rest, _ := strings.Cut(readFile(log.Name()), `status page" address="`)
		d.address, _, _ = strings.Cut(rest, `"`)
	}
	return d, nil
}

func (d *runningDaemon) stop() {
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Wait()
	}
}

// measure measures daemon and child in a steady state, and then the times of the passes.
func (d *runningDaemon) measure() (row DaemonRow, err error) {
	if _, err := d.run(daemonWarmUp, daemonWarmUp); err != nil {
		return row, err
	}
	child, err := d.child()
	if err != nil {
		return row, err
	}
	pids := []int{d.cmd.Process.Pid, child}
	var before, after [2]programCost
	for i, pid := range pids {
		if before[i], err = costOf(pid); err != nil {
			return row, err
		}
	}
	began := time.Now()
	if _, err := d.run(daemonTime, scrapeEvery); err != nil {
		return row, err
	}
	took := time.Since(began)
	for i, pid := range pids {
		if after[i], err = costOf(pid); err != nil {
			return row, err
		}
	}
	share := func(i int) float64 { return 100 * float64(after[i].cpu-before[i].cpu) / float64(took) }
	row = DaemonRow{CPU: share(0), ChildCPU: share(1), Resident: after[0].resident, Peak: after[0].peak,
		ChildResident: after[1].resident, Descriptors: after[0].descriptors,
		ChildDescriptors: after[1].descriptors, Threads: after[0].threads}
	scraped, err := d.run(daemonTime, time.Second)
	row.Watch, row.Reconcile = percentiles(scraped.watch), percentiles(scraped.reconcile)
	row.Scrape, row.ScrapeBytes = percentiles(scraped.took), scraped.bytes
	return row, err
}

// scrapes is what scrapes have shown.
type scrapes struct {
	watch, reconcile, took []time.Duration
	bytes                  int // of the last one
}

// run changes the use each second for a time, and scrapes.
func (d *runningDaemon) run(during, every time.Duration) (s scrapes, err error) {
	scraped := time.Now()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(time.Second) {
		if d.node.rig.ctx.Err() != nil {
			return s, errors.New("interrupted")
		}
		if err := d.node.use.write(); err != nil {
			return s, err
		}
		if time.Since(scraped) < every-time.Second/2 {
			continue
		}
		scraped = time.Now()
		text, err := d.scrape()
		if err != nil {
			return s, err
		}
		s.took, s.bytes = append(s.took, time.Since(scraped)), len(text)
		s.watch = append(s.watch, lastPass(text, "watch"))
		s.reconcile = append(s.reconcile, lastPass(text, "reconcile"))
	}
	return s, nil
}

func (d *runningDaemon) scrape() (string, error) {
	response, err := http.Get("http://" + d.address + "/metrics")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

var lastPasses = regexp.MustCompile(`gpuledger_manager_last_pass_duration_seconds{manager="(\w+)"} (\S+)`)

// lastPass is how long the last pass of a manager took.
func lastPass(metrics, manager string) time.Duration {
	for _, m := range lastPasses.FindAllStringSubmatch(metrics, -1) {
		if m[1] == manager {
			seconds, _ := strconv.ParseFloat(m[2], 64)
			return time.Duration(seconds * float64(time.Second))
		}
	}
	return 0
}

// child is the process that samples NVML for the daemon.
func (d *runningDaemon) child() (int, error) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.cmd.Process.Pid))
	for _, task := range tasks {
		for pid := range strings.FieldsSeq(readFile(task)) {
			if strings.Contains(readFile("/proc/"+pid+"/cmdline"), "\x00measure\x00") {
				return strconv.Atoi(pid)
			}
		}
	}
	return 0, errors.New("no process samples NVML for gpuledgerd")
}
