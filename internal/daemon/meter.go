package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// meter asks a child process what is used of the GPUs. NVML can hang in the kernel, crash, and tell nonsense when GPUs come and
// go; then that happens to the child, which is given up, and the next one begins with another NVML.
type meter struct {
	command []string // answers each line on its standard input with a sample on its standard output
	config  string   // the configuration's path
	first   time.Duration
	later   time.Duration

	child *measuring
	stuck atomic.Int32 // children that were killed and have not ended
	retry time.Time    // not before
	wait  time.Duration
	error error // why there is no child
}

// How long a sample may take: the first loads the driver, where nobody has done so. And how long a failure rests.
const (
	firstSample = 30 * time.Second
	laterSample = 5 * time.Second
	firstRest   = time.Second
	lastRest    = time.Minute
	maxStuck    = 2
)

func newMeter(config string) *meter {
	return &meter{command: []string{beside("gpuledger"), "inventory", "measure", "--follow"}, config: config, first: firstSample, later: laterSample}
}

// measuring is a child at work.
type measuring struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan []byte // closed when it has ended
	mu     sync.Mutex
	said   string // on standard error, the last line
	source grant.Source
	fresh  bool
}

// Sample asks once. An error says why there is none; the next call may begin anew.
func (m *meter) Sample(ctx context.Context, source grant.Source) (grant.Sample, error) {
	if m.child != nil && m.child.source != source {
		m.drop()
	}
	if m.child == nil {
		if time.Now().Before(m.retry) {
			return grant.Sample{}, m.error
		}
		if err := m.start(source); err != nil {
			return grant.Sample{}, m.failed(err)
		}
	}
	sample, err := m.ask(ctx)
	if err != nil {
		m.drop()
		return grant.Sample{}, m.failed(err)
	}
	m.error, m.wait = nil, 0
	return sample, nil
}

func (m *meter) failed(err error) error {
	m.error = fmt.Errorf("cannot tell what is used of the GPUs: %w", err)
	m.wait = min(max(2*m.wait, firstRest), lastRest)
	m.retry = time.Now().Add(m.wait)
	return m.error
}

// start begins a child, unless those before it hang in the kernel, where no signal reaches them.
func (m *meter) start(source grant.Source) error {
	if n := m.stuck.Load(); n >= maxStuck {
		return fmt.Errorf("%d processes that asked NVML hang in the driver and cannot be ended", n)
	}
	c := &measuring{cmd: exec.Command(m.command[0], m.command[1:]...), lines: make(chan []byte, 1), source: source, fresh: true}
	c.cmd.Env = append(os.Environ(), policy.PathEnv+"="+m.config)
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	complaints, err := c.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	c.in = in
	go c.listen(out, complaints)
	m.child = c
	return nil
}

// maxSample bounds a line, in bytes. A thousand processes have 100 KiB.
const maxSample = 16 << 20

// listen hands on what a child says, until it ends.
func (c *measuring) listen(out, complaints io.Reader) {
	var quiet sync.WaitGroup
	quiet.Go(func() {
		for s := bufio.NewScanner(complaints); s.Scan(); {
			c.mu.Lock()
			if c.said == "" {
				c.said = firstLine(grant.Printable(s.Text()))
			}
			c.mu.Unlock()
		}
	})
	defer close(c.lines)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxSample)
	for lines.Scan() {
		select {
		case c.lines <- append([]byte(nil), lines.Bytes()...):
		default: // nobody has asked
		}
	}
	quiet.Wait()
}

// ask has the child answer within its time.
func (m *meter) ask(ctx context.Context) (grant.Sample, error) {
	c, within := m.child, m.later
	if c.fresh {
		within, c.fresh = m.first, false
	}
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		c.drain(time.Second)
		return grant.Sample{}, c.reason(err)
	}
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case line, alive := <-c.lines:
		if !alive {
			return grant.Sample{}, c.reason(errors.New("the process that asks NVML has ended"))
		}
		return readSample(line)
	case <-timeout.C:
		return grant.Sample{}, fmt.Errorf("NVML has not answered for %s", within)
	case <-ctx.Done():
		return grant.Sample{}, ctx.Err()
	}
}

// drain waits, for a while, until the child says nothing more.
func (c *measuring) drain(within time.Duration) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for {
		select {
		case _, alive := <-c.lines:
			if !alive {
				return
			}
		case <-timeout.C:
			return
		}
	}
}

// reason is what the child complained of, or else the error.
func (c *measuring) reason(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said != "" {
		return errors.New(c.said)
	}
	return err
}

// readSample understands an answer, and refuses one that no GPU can give.
func readSample(line []byte) (grant.Sample, error) {
	var s grant.Sample
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("NVML's answer cannot be understood: %w", err)
	}
	seen := map[string]bool{}
	for _, g := range s.GPUs {
		switch {
		case g.UUID == "" || seen[g.UUID]:
			return s, fmt.Errorf("NVML's answer cannot be true: GPU %d has the UUID %q", g.Index, grant.Printable(g.UUID))
		case g.Health == grant.Healthy && (g.Used > g.Total || g.Total > maxTotal):
			return s, fmt.Errorf("NVML's answer cannot be true: of GPU %d %s of %s are in use", g.Index, g.Used, g.Total)
		}
		seen[g.UUID] = true
		for _, p := range g.Processes {
			if p.PID <= 0 || p.Memory > maxTotal {
				return s, fmt.Errorf("NVML's answer cannot be true: process %d uses %s of GPU %d", p.PID, p.Memory, g.Index)
			}
		}
	}
	return s, nil
}

// maxTotal is more than any GPU has, or will for some time.
const maxTotal = 64 * grant.TiB

// drop gives the child up. One that hangs in the kernel ends when the kernel lets it.
func (m *meter) drop() {
	c := m.child
	m.child = nil
	if c == nil {
		return
	}
	_ = c.in.Close()
	_ = c.cmd.Process.Kill()
	m.stuck.Add(1)
	go func() {
		for alive := true; alive; { // so that listen comes to its end
			_, alive = <-c.lines
		}
		_ = c.cmd.Wait()
		m.stuck.Add(-1)
	}()
}

// Close ends the child.
func (m *meter) Close() { m.drop() }
