package mps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// answerTime is how long one answer may take.
const answerTime = 5 * time.Second

// control asks a daemon, with one command in each call, as NVIDIA's documentation of MPS lists
// them.
type control struct {
	program string
	env     []string
	driver  int // the driver's major version; 0: unknown
	system  System
}

// control returns how to ask the daemon, with the programs of the inventory's driver.
func (d *daemon) control() (control, error) {
	inv, problem := d.node.Inventory()
	if problem != nil {
		return control{}, errors.New(problem.Message)
	}
	links, err := linkDriver(d.dir, inv.Driver)
	if err != nil {
		return control{}, err
	}
	return control{program: filepath.Join(links, "bin", grant.MPSControl), env: d.env(links, inv.Driver),
		driver: inv.Driver.Major(), system: d.system}, nil
}

// env is the whole environment of NVIDIA's programs, which are below links.
func (d *daemon) env(links string, driver grant.Driver) []string {
	env := []string{"PATH=" + filepath.Join(links, "bin") + ":/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(d.dir, "pipe"),
		"CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(d.dir, "log")}
	if driver.Root != "/" {
		env = append(env, "LD_LIBRARY_PATH="+filepath.Join(links, "lib"))
	}
	return env
}

// ask returns the answer to one command.
func (c control) ask(ctx context.Context, format string, args ...any) (string, error) {
	command := fmt.Sprintf(format, args...)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	text, err := systemOr(c.system).Ask(ctx, c.program, c.env, command)
	if err != nil {
		return "", err
	}
	if reportsError(text) {
		return "", fmt.Errorf("it answers %q with %q", command, firstLine(text))
	}
	return text, nil
}

// errorWords are in the answers that report an error. NVIDIA's program prints these to its standard
// output, too, and its exit status is 0. No other answer has one of them: they are numbers, sizes
// and the status of a server.
var errorWords = []string{"unknown command", "cannot ", "can't ", "failed", "failure", "invalid", "error",
	"denied", "privilege", "not permitted", "not found", "no such"}

func reportsError(answer string) bool {
	answer = strings.ToLower(answer)
	return slices.ContainsFunc(errorWords, func(word string) bool { return strings.Contains(answer, word) })
}

// maxAnswer bounds what is kept of an answer, in bytes. A list of all clients that a server can
// have is a tenth of it. A tenant's process may answer in the daemon's place.
const maxAnswer = 64 << 10

// answer is what a program prints. If it prints more, its pipe is closed.
type answer struct {
	text []byte
	over bool
}

func (a *answer) Write(text []byte) (int, error) {
	if len(a.text)+len(text) > maxAnswer {
		a.over = true
		return 0, errors.New("that is enough")
	}
	a.text = append(a.text, text...)
	return len(text), nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return grant.Printable(line)
}

// pids asks for a list of processes.
func (c control) pids(ctx context.Context, format string, args ...any) ([]int, error) {
	answer, err := c.ask(ctx, format, args...)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, word := range strings.Fields(answer) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("it answers %q with %q, which are no processes",
				fmt.Sprintf(format, args...), firstLine(answer))
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func (c control) servers(ctx context.Context) ([]int, error) { return c.pids(ctx, "get_server_list") }

// clients are those of all servers.
func (c control) clients(ctx context.Context) (all []int, err error) {
	servers, err := c.servers(ctx)
	for _, pid := range servers {
		clients, e := c.pids(ctx, "get_client_list %d", pid)
		all, err = append(all, clients...), errors.Join(err, e)
	}
	return all, err
}

// startServer starts root's server before any client asks for one. Its answer proves that a server
// can start.
func (c control) startServer(ctx context.Context) ([]int, error) {
	if _, err := c.ask(ctx, "start_server -uid 0"); err != nil {
		return nil, err
	}
	servers, err := c.servers(ctx)
	if err == nil && len(servers) == 0 {
		err = errors.New("it has not started its server yet")
	}
	return servers, err
}

// statusSince is the first major version of the driver that was seen to know get_server_status. 535
// does not.
const statusSince = 550

// checkActive is an error if a server accepts no clients: it is starting, or waits for clients to
// end after a fault. A driver that cannot say so is asked for the server's thread percentage, which
// a server that runs has got. Then a fault is not seen.
func (c control) checkActive(ctx context.Context, server, percent int) error {
	if c.driver != 0 && c.driver < statusSince {
		return c.checkPercent(ctx, percent, fmt.Sprintf("get_active_thread_percentage %d", server))
	}
	status, err := c.ask(ctx, "get_server_status %d", server)
	if err == nil && status != "ACTIVE" {
		err = fmt.Errorf("its server %d is %s", server, firstLine(status))
	}
	return err
}

// setLimits sets the limits for future and present servers, and reads them back: a daemon that
// knows a GPU by another number sets nothing and reports no error.
func (c control) setLimits(ctx context.Context, w want, servers []int) error {
	for ordinal, uuid := range w.uuids {
		size := fmt.Sprintf("%dM", w.limits[uuid]/grant.MiB)
		if _, err := c.ask(ctx, "set_default_device_pinned_mem_limit %d %s", ordinal, size); err != nil {
			return err
		}
		for _, pid := range servers {
			if _, err := c.ask(ctx, "set_device_pinned_mem_limit %d %d %s", pid, ordinal, size); err != nil {
				return err
			}
		}
		answer, err := c.ask(ctx, "get_default_device_pinned_mem_limit %d", ordinal)
		if err != nil {
			return err
		}
		if !isLimit(answer, w.limits[uuid]) {
			return fmt.Errorf("its limit on GPU %s is %q and not %s", uuid, firstLine(answer), w.limits[uuid])
		}
	}
	return c.setThreads(ctx, w.threads, servers)
}

func (c control) setThreads(ctx context.Context, percent int, servers []int) error {
	if _, err := c.ask(ctx, "set_default_active_thread_percentage %d", percent); err != nil {
		return err
	}
	for _, pid := range servers {
		if _, err := c.ask(ctx, "set_active_thread_percentage %d %d", pid, percent); err != nil {
			return err
		}
	}
	return c.checkPercent(ctx, percent, "get_default_active_thread_percentage")
}

// checkPercent is an error if a command answers with another percentage.
func (c control) checkPercent(ctx context.Context, percent int, command string) error {
	answer, err := c.ask(ctx, "%s", command)
	if err != nil {
		return err
	}
	if got, err := strconv.ParseFloat(answer, 64); err != nil || got != float64(percent) {
		return fmt.Errorf("its thread percentage is %q and not %d", firstLine(answer), percent)
	}
	return nil
}

// isLimit reports whether the daemon's answer is this limit. From 1 GiB on it prints whole GiB and
// leaves the rest out: 1536 MiB are "1G".
func isLimit(answer string, limit grant.Bytes) bool {
	got, err := parseLimit(answer)
	return err == nil && (got == limit || limit >= grant.GiB && got == limit/grant.GiB*grant.GiB)
}

// parseLimit reads a size as the daemon writes it: 3G, 512M.
func parseLimit(text string) (grant.Bytes, error) {
	units := map[string]grant.Bytes{"M": grant.MiB, "G": grant.GiB}
	for suffix, unit := range units {
		if digits, found := strings.CutSuffix(text, suffix); found {
			n, err := strconv.ParseUint(digits, 10, 32)
			return grant.Bytes(n) * unit, err
		}
	}
	return 0, fmt.Errorf("%q is no size", text)
}

// quit ends the daemon and its servers.
func (c control) quit(ctx context.Context) error {
	_, err := c.ask(ctx, "quit")
	return err
}
