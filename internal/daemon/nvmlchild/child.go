// Package nvmlchild calls NVML in a child process of gpuledgerd, which may hang or crash.
package nvmlchild

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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// Child exchanges lines with a child process that calls NVML. NVML can hang in the kernel, crash,
// and return nonsense when GPUs come and go. Then the child is given up, and the next one starts
// with a fresh NVML.
type Child struct {
	command     []string // answers each line on its standard input with one on its standard output
	config      string   // the configuration's path
	inventory   func() host.Stamp
	firstAnswer time.Duration
	laterAnswer time.Duration

	current *process
	stuck   atomic.Int32 // children that were killed and have not ended yet
	retry   time.Time    // not before
	backoff time.Duration
	err     error // why there is no child
}

// How long an answer may take: the first one may load the driver. And how long to wait after a
// failure.
const (
	firstSample  = 30 * time.Second
	laterSample  = 5 * time.Second
	firstBackoff = time.Second
	lastBackoff  = time.Minute
	maxStuck     = 2
	// gracePeriod is for an answer that has arrived when the time is over, because this process was
	// stopped.
	gracePeriod = 200 * time.Millisecond
)

// process is a running child.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan []byte // closed at the end of its output
	mu     sync.Mutex
	stderr string // on standard error, the last line
	of     childOf
	isNew  bool
}

// childOf is what a child was started for. NVML lists the GPUs when it is loaded: it does not find
// one that is added later, and one that was away can stay lost to it. The inventory is taken again
// when GPUs come and go.
type childOf struct {
	source    grant.Source
	inventory host.Stamp
}

// newChild has `gpuledger inventory COMMAND...` answer, with the configuration at the path.
// inventory gives the present state of the node's inventory.
func newChild(config string, inventory func() host.Stamp, command ...string) Child {
	command = append([]string{Program("gpuledger"), "inventory"}, command...)
	return Child{command: command, config: config, inventory: inventory, firstAnswer: firstSample,
		laterAnswer: laterSample}
}

// exchange sends a line to the child and passes its answer to read, which returns an error if it
// cannot understand it.
func (m *Child) exchange(ctx context.Context, source grant.Source, line []byte,
	read func([]byte) error) error {
	of := childOf{source, m.inventory()}
	if m.current != nil && m.current.of != of {
		m.drop()
	}
	if m.current == nil {
		if time.Now().Before(m.retry) {
			return m.err
		}
		if err := m.start(of); err != nil {
			return m.fail(err)
		}
	}
	answer, err := m.roundTrip(ctx, line)
	if err == nil {
		err = read(answer)
	}
	if err != nil {
		m.drop()
		return m.fail(err)
	}
	m.err, m.backoff = nil, 0
	return nil
}

func (m *Child) fail(err error) error {
	m.err = err
	m.backoff = min(max(2*m.backoff, firstBackoff), lastBackoff)
	m.retry = time.Now().Add(m.backoff)
	return m.err
}

// start starts a child, unless earlier ones hang in the kernel, where no signal reaches them.
func (m *Child) start(of childOf) error {
	if n := m.stuck.Load(); n >= maxStuck {
		return fmt.Errorf("%d processes that asked NVML hang in the driver and cannot be ended", n)
	}
	c := &process{cmd: exec.Command(m.command[0], m.command[1:]...), lines: make(chan []byte, 1),
		of: of, isNew: true}
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
	go c.readOutput(out, complaints)
	m.current = c
	return nil
}

// maxAnswer bounds a line, in bytes. A sample of a thousand processes has 100 KiB.
const maxAnswer = 16 << 20

// stderrTime is how long a child may write to standard error after the end of its standard output.
const stderrTime = time.Second

// readOutput passes on what a child prints, until its end. It does not wait for standard error for
// long: a process that the child started may keep that open.
func (c *process) readOutput(out, complaints io.Reader) {
	defer close(c.lines)
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		for s := bufio.NewScanner(complaints); s.Scan(); {
			c.mu.Lock()
			if c.stderr == "" {
				c.stderr = ErrorLine(grant.Printable(s.Text()))
			}
			c.mu.Unlock()
		}
	}()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		select {
		case c.lines <- append([]byte(nil), lines.Bytes()...):
		default: // it was not asked
		}
	}
	timeout := time.NewTimer(stderrTime)
	defer timeout.Stop()
	select {
	case <-quiet:
	case <-timeout.C:
	}
}

// roundTrip sends a line and waits for the answer, for a bounded time.
func (m *Child) roundTrip(ctx context.Context, line []byte) ([]byte, error) {
	c, within := m.current, m.laterAnswer
	if c.isNew {
		within, c.isNew = m.firstAnswer, false
	}
	// a child that hangs reads nothing
	if pipe, bounded := c.in.(interface{ SetWriteDeadline(time.Time) error }); bounded {
		_ = pipe.SetWriteDeadline(time.Now().Add(within))
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		c.drain(time.Second)
		return nil, c.reason(err)
	}
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for over := false; ; over = true {
		select {
		case line, alive := <-c.lines:
			if !alive {
				return nil, c.reason(errors.New("the process that asks NVML has ended"))
			}
			return line, nil
		case <-timeout.C:
			if over {
				return nil, fmt.Errorf("NVML has not answered for %s", within)
			}
			timeout.Reset(gracePeriod)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// drain waits for a while until the child prints nothing more.
func (c *process) drain(within time.Duration) {
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

// reason is what the child printed on standard error, or else the error.
func (c *process) reason(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stderr != "" {
		return errors.New(c.stderr)
	}
	return err
}

// drop kills the child and forgets it. A child that hangs in the kernel ends when the kernel lets
// it.
func (m *Child) drop() {
	c := m.current
	m.current = nil
	if c == nil {
		return
	}
	_ = c.in.Close()
	_ = c.cmd.Process.Kill()
	m.stuck.Add(1)
	go func() {
		// for the child alone; then the pipes are closed, even if other processes have them open
		_ = c.cmd.Wait()
		m.stuck.Add(-1)
	}()
}

// Close ends the child.
func (m *Child) Close() { m.drop() }
