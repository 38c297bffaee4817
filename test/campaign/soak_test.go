package campaign

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// measure is something that must not grow, and by how much it may differ.
type measure struct {
	name  string
	take  func(*campaign) int
	slack func(first int) int
}

func exactly(int) int  { return 0 }
func a(int) int        { return 2 }
func few(int) int      { return 6 }
func third(of int) int { return of/3 + 8<<10 }

// measures are taken while no container and no grant is there.
var measures = []measure{
	{"gpuledgerd: memory, KiB", func(c *campaign) int { return c.daemonStatus("VmRSS") }, third},
	{"gpuledgerd: threads", func(c *campaign) int { return c.daemonStatus("Threads") }, few},
	{"gpuledgerd: descriptors", func(c *campaign) int {
		return entries(fmt.Sprintf("/proc/%d/fd", c.node.daemon.Process.Pid))
	}, a},
	{"gpuledgerd: goroutines", func(c *campaign) int { return c.page.goroutines() }, a},
	{"files and directories in state", func(c *campaign) int { return files(c.node.Dir + "/state") }, a},
	{"files and directories in run", func(c *campaign) int { return files(c.node.Dir + "/run") }, a},
	{"cgroups", func(c *campaign) int {
		total := 0
		_ = filepath.WalkDir("/sys/fs/cgroup", func(_ string, entry os.DirEntry, err error) error {
			switch {
			case err != nil || !entry.IsDir() || entry.Name() == "conmon": // Podman's first one stays
			case entry.Name() == "unified": // no hierarchy here, and crun writes plain files into it
				return filepath.SkipDir
			default:
				total++
			}
			return nil
		})
		return total
	}, exactly},
	{"mounts", func(c *campaign) int { return len(mounts("")) }, exactly},
	{"processes", func(c *campaign) int {
		ours, _ := os.Readlink("/proc/self/ns/mnt") // tests of other packages have others
		all, _ := filepath.Glob("/proc/[0-9]*")
		return len(slices.DeleteFunc(all, func(dir string) bool {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			theirs, _ := os.Readlink(dir + "/ns/mnt")
			return theirs != ours || !rig.Lives(pid)
		}))
	}, a},
}

// daemonStatus is a number of gpuledgerd in /proc/PID/status.
func (c *campaign) daemonStatus(key string) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.node.daemon.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if name, rest, _ := strings.Cut(line, ":"); name == key {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

func entries(dir string) int {
	all, _ := os.ReadDir(dir)
	return len(all)
}

func files(dir string) int {
	total := 0
	_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err == nil {
			total++
		}
		return nil
	})
	return total
}

// page is the status page, which is asked for all the time.
type page struct {
	client http.Client
	over   chan struct{}
	looks  atomic.Int64
}

func openPage(socket string) *page {
	p := &page{over: make(chan struct{}), client: http.Client{Timeout: time.Minute,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}}
	go func() {
		for {
			select {
			case <-p.over:
				return
			case <-time.After(2 * time.Second):
				if _, err := p.get("/"); err == nil {
					p.looks.Add(1)
				}
			}
		}
	}()
	return p
}

func (p *page) get(path string) (string, error) {
	answer, err := p.client.Get("http://gpuledger" + path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// goroutines is what the daemon says of itself.
func (p *page) goroutines() int {
	text, _ := p.get("/metrics")
	_, rest, _ := strings.Cut(text, "\ngo_goroutines ")
	number, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(number)
	return n
}

// quiet takes all measures after a drain.
func (c *campaign) quiet() []int {
	c.drain()
	time.Sleep(3 * time.Second)
	var taken []int
	for _, m := range measures {
		taken = append(taken, m.take(c))
	}
	return taken
}

// grown are the measures that have grown by more than they may, and those that were not taken: each
// is more than 0.
func grown(first, last []int) (all []string) {
	for i, m := range measures {
		if last[i] > first[i]+m.slack(first[i]) || first[i] == 0 || last[i] == 0 {
			all = append(all, fmt.Sprintf("%s: %d after a tenth, %d at the end", m.name, first[i], last[i]))
		}
	}
	return all
}

// TestAMeasureOfNothing is no measure: an error must not look like a small number.
func TestAMeasureOfNothing(t *testing.T) {
	all := func(n int) []int { return slices.Repeat([]int{n}, len(measures)) }
	for _, c := range []struct{ first, last, grown int }{{7, 7, 0}, {0, 7, len(measures)},
		{7, 0, len(measures)}, {1, 1 << 30, len(measures)}} {
		if got := grown(all(c.first), all(c.last)); len(got) != c.grown {
			t.Errorf("%d and %d: %q", c.first, c.last, got)
		}
	}
}

// TestSoak: lives without faults for SOAK, or a short time, with the status page open. What
// gpuledgerd and the node hold at the end is what they held after the first tenth.
func TestSoak(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	length := 10 * time.Second
	if text := os.Getenv(soakVar); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		must(t, err)
	}
	counts := newTally(uint64(time.Now().UnixNano()))
	counts.Programs, counts.Commit = programs(t)
	c := newCampaign(t, counts)
	c.page = openPage(c.node.Dir + "/page.sock")
	defer close(c.page.over)
	began := time.Now()
	var first []int
	long := os.Getenv(soakVar) != ""
	for first == nil || !c.over.Load() && (time.Since(began) < length ||
		long && len(counts.lacks()) > 0 && time.Since(began) < 2*length+mostPatience) {
		c.round(fault{strike: nothing}, length/40)
		if first == nil && (c.over.Load() || time.Since(began) > length/10) {
			first = c.quiet()
		}
	}
	last := c.quiet()
	// tests of other packages make cgroups for a while; what leaks stays
	for tries := 0; tries < 12 && len(grown(first, last)) > 0; tries++ {
		time.Sleep(5 * time.Second)
		last = c.quiet()
	}
	c.end()
	c.counts.print(os.Stdout)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "\tafter a tenth\tat the end, after %v\n", time.Since(began).Round(time.Second))
	for i, m := range measures {
		fmt.Fprintf(w, "%s\t%d\t%d\n", m.name, first[i], last[i])
	}
	for _, what := range grown(first, last) {
		t.Error(what)
	}
	if c.page.looks.Load() == 0 {
		t.Error("the page was never read")
	}
	if lives, _, _ := counts.sums(); lives == 0 || counts.Scans == 0 {
		t.Errorf("%d containers have lived, and %d were scanned", lives, counts.Scans)
	}
	if lacks := counts.lacks(); long && len(lacks) > 0 {
		t.Errorf("no container has lived of %s", strings.Join(lacks, ", "))
	}
}
