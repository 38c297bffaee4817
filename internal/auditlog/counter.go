package auditlog

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// RecordedRefusal is a container that was refused, or would have been. Its texts are shortened and
// hold no control characters, but tenants may have written them.
type RecordedRefusal struct {
	Time      time.Time
	Code      string
	Mode      string // Enforced, "report", "disabled" or "observed"
	Message   string
	Container string // the id
	Pod       grant.Identity
}

// Enforced is the mode of a refusal that kept its container from starting.
const Enforced = "enforced"

// Other replaces codes and modes that this version does not know, so that a log cannot make up new
// names without end.
const Other = "other"

// RefusalKind is what refusals are counted by.
type RefusalKind struct{ Code, Mode string }

// Counts are what was read since the counter began. They never fall.
type Counts struct {
	Refusals   map[RefusalKind]uint64
	Admissions uint64
	Passes     uint64 // that were recorded: exempted, stripped, hidden or node-root
	Unreadable uint64 // lines
	Gaps       uint64 // rotations of which a file was gone before it was read
	Latency    Latency
}

// maxRecent is how many refusals are kept.
const maxRecent = 50

// Counter counts the decisions that are recorded, across the log's rotations. Many goroutines may
// call its methods; only one calls Poll.
type Counter struct {
	mu     sync.Mutex
	files  files
	counts Counts
	recent []RecordedRefusal // newest last
}

// How much of an old log is read at the beginning, and how much of a new one by one Poll, in bytes.
const (
	oldBytes  = 256 << 10
	pollBytes = 1 << 20
)

// maxOpen is how many files may be open: the log, and rotated ones that were not read to their end.
const maxOpen = 16

// Follow sets the log's path, "" for none. Lines that the log holds already are kept as recent
// refusals and not counted: another process may have counted them.
func (c *Counter) Follow(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files.path == path {
		return
	}
	c.close()
	c.files.path = path
	if path == "" {
		return
	}
	if f, err := open(path); err == nil {
		_ = f.skipTo(oldBytes)
		_, _ = f.lines(pollBytes, false, func(line []byte) bool { c.readEntry(line, false); return true })
		c.files.open = []*file{f}
	}
}

// Poll reads new lines, up to a number of bytes. The next call reads the rest. An error means that
// the log cannot be read.
func (c *Counter) Poll() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files.path == "" {
		return nil
	}
	err := c.openNewer()
	left := int64(pollBytes)
	for _, f := range c.files.open {
		n, e := f.lines(left, false, func(line []byte) bool { c.readEntry(line, true); return true })
		left -= n
		err = errors.Join(err, e)
	}
	c.closeFinished()
	if err != nil {
		return cannotRead(err)
	}
	return nil
}

// openNewer opens the files that are new. If none was open, that is the log alone: rotated files
// may be older than this counter.
func (c *Counter) openNewer() error {
	if len(c.files.open) > 0 {
		missing, err := c.files.openNewer()
		if missing {
			c.counts.Gaps++
		}
		return err
	}
	f, err := open(c.files.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was recorded yet, or a rotation is under way
	}
	if err == nil {
		c.files.open = []*file{f}
	}
	return err
}

// closeFinished closes a rotated file when its end was reached twice. A process that has it open
// may write one more line to it.
func (c *Counter) closeFinished() {
	for n := len(c.files.open); n > 1 && (c.files.open[0].endReached > 1 || n > maxOpen); n-- {
		c.files.closeOldest(1)
	}
}

func (c *Counter) close() { c.files.close() }

// Close closes the files.
func (c *Counter) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
	c.files.path = ""
}

// Path returns the log's path; "" for none.
func (c *Counter) Path() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files.path
}

// Counts returns a copy of the counts.
func (c *Counter) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied := c.counts
	copied.Refusals = make(map[RefusalKind]uint64, len(c.counts.Refusals))
	for kind, n := range c.counts.Refusals {
		copied.Refusals[kind] = n
	}
	return copied
}

// Recent returns the last refusals, the newest first.
func (c *Counter) Recent() []RecordedRefusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	recent := slices.Clone(c.recent)
	slices.Reverse(recent)
	return recent
}

// readEntry counts one line. Its texts may hold anything that a tenant put into annotations.
func (c *Counter) readEntry(line []byte, counted bool) {
	if isBlank(line) {
		return
	}
	e, ok := parse(line)
	if ok && counted && e.Verdict != "" && e.Took > 0 {
		c.counts.Latency.add(e.Took)
	}
	switch {
	case !ok:
		c.counts.Unreadable += increment(counted)
	case e.Verdict == string(grant.Admit):
		c.counts.Admissions += increment(counted)
	case e.Verdict == string(grant.Pass):
		c.counts.Passes += increment(counted)
	case e.Verdict == string(grant.Refused):
		c.addRefusal(e, counted)
	}
}

func increment(counted bool) uint64 {
	if counted {
		return 1
	}
	return 0
}

func (c *Counter) addRefusal(e *Entry, counted bool) {
	r := RecordedRefusal{Time: e.Time, Code: knownOrOther(e.Code, codes), Mode: knownOrOther(e.Mode, modes),
		Message: Clean(e.Message), Container: Clean(e.Container),
		Pod: grant.Identity{UID: Clean(e.Pod.UID), Namespace: Clean(e.Pod.Namespace), Pod: Clean(e.Pod.Pod),
			Container: Clean(e.Pod.Container)}}
	if e.Mode == "" {
		r.Mode = Enforced
	}
	if counted {
		if c.counts.Refusals == nil {
			c.counts.Refusals = map[RefusalKind]uint64{}
		}
		c.counts.Refusals[RefusalKind{r.Code, r.Mode}]++
	}
	c.recent = append(c.recent, r)
	if len(c.recent) > maxRecent {
		c.recent = slices.Delete(c.recent, 0, len(c.recent)-maxRecent)
	}
}

var (
	codes = func() (list []string) {
		for _, code := range grant.Codes {
			list = append(list, string(code))
		}
		return list
	}()
	modes = []string{string(grant.Report), string(grant.Disabled), string(grant.Observed)}
)

func knownOrOther(word string, list []string) string {
	if slices.Contains(list, word) {
		return word
	}
	return Other
}
