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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// asker has a child process ask NVML, which can hang in the kernel, crash, and tell nonsense when GPUs come and go; then that
// happens to the child, which is given up, and the next one begins with another NVML.
type asker struct {
	command []string // answers each line on its standard input with one on its standard output
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
	// standstill is for an answer that is there when the time is over, because this process or the machine stood still: it is to be read yet.
	standstill = 200 * time.Millisecond
)

// measuring is a child at work.
type measuring struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan []byte // closed when it says no more
	mu     sync.Mutex
	said   string // on standard error, the last line
	source grant.Source
	fresh  bool
}

// exchange sends the child a line and takes its answer, which read has to understand.
func (m *asker) exchange(ctx context.Context, source grant.Source, line []byte, read func([]byte) error) error {
	if m.child != nil && m.child.source != source {
		m.drop()
	}
	if m.child == nil {
		if time.Now().Before(m.retry) {
			return m.error
		}
		if err := m.start(source); err != nil {
			return m.failed(err)
		}
	}
	answer, err := m.ask(ctx, line)
	if err == nil {
		err = read(answer)
	}
	if err != nil {
		m.drop()
		return m.failed(err)
	}
	m.error, m.wait = nil, 0
	return nil
}

func (m *asker) failed(err error) error {
	m.error = err
	m.wait = min(max(2*m.wait, firstRest), lastRest)
	m.retry = time.Now().Add(m.wait)
	return m.error
}

// start begins a child, unless those before it hang in the kernel, where no signal reaches them.
func (m *asker) start(source grant.Source) error {
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

// lastComplaint is how long a child that has said its last on standard output may take to complain.
const lastComplaint = time.Second

// listen hands on what a child says, until it says no more. A process that the child has left behind may keep standard error open for
// as long as it lives: it is not waited for.
func (c *measuring) listen(out, complaints io.Reader) {
	defer close(c.lines)
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		for s := bufio.NewScanner(complaints); s.Scan(); {
			c.mu.Lock()
			if c.said == "" {
				c.said = firstLine(grant.Printable(s.Text()))
			}
			c.mu.Unlock()
		}
	}()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxSample)
	for lines.Scan() {
		select {
		case c.lines <- append([]byte(nil), lines.Bytes()...):
		default: // nobody has asked
		}
	}
	timeout := time.NewTimer(lastComplaint)
	defer timeout.Stop()
	select {
	case <-quiet:
	case <-timeout.C:
	}
}

// ask has the child answer within its time.
func (m *asker) ask(ctx context.Context, line []byte) ([]byte, error) {
	c, within := m.child, m.later
	if c.fresh {
		within, c.fresh = m.first, false
	}
	if pipe, bounded := c.in.(interface{ SetWriteDeadline(time.Time) error }); bounded { // one that hangs reads no long line
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
			timeout.Reset(standstill)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
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

// drop gives the child up. One that hangs in the kernel ends when the kernel lets it.
func (m *asker) drop() {
	c := m.child
	m.child = nil
	if c == nil {
		return
	}
	_ = c.in.Close()
	_ = c.cmd.Process.Kill()
	m.stuck.Add(1)
	go func() {
		_ = c.cmd.Wait() // for the child alone; then the pipes are closed, whoever else has their other ends
		m.stuck.Add(-1)
	}()
}

// Close ends the child.
func (m *asker) Close() { m.drop() }
