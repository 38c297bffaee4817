package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
)

// A callCost is what one process took. Its processor time hardly depends on what else runs on the
// machine.
type callCost struct {
	wall, cpu time.Duration
	output    string
}

// cost runs a process and measures it and the processes that it waited for. Its output goes to a
// file: a container's first process inherits it.
func (r *rig) cost(cmd *exec.Cmd) (callCost, error) {
	output, err := os.CreateTemp(r.path("run"), "output-")
	if err != nil {
		return callCost{}, err
	}
	defer output.Close()
	_ = os.Remove(output.Name())
	cmd.Stdout, cmd.Stderr = output, output
	began := time.Now()
	err = cmd.Run()
	wall := time.Since(began)
	said := make([]byte, 2000)
	n, _ := output.ReadAt(said, 0)
	took := callCost{wall: wall, output: string(said[:n])}
	if cmd.ProcessState != nil {
		took.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, took.output)
	}
	return took, err
}

// Percentiles are of some figures, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

func percentiles(times []time.Duration) Percentiles {
	sorted := slices.Sorted(slices.Values(times))
	if len(sorted) == 0 {
		return Percentiles{}
	}
	at := func(share float64) float64 {
		return milliseconds(sorted[min(int(share*float64(len(sorted))), len(sorted)-1)])
	}
	return Percentiles{at(0.5), at(0.9), at(0.99)}
}

func (p Percentiles) String() string { return fmt.Sprintf("%.1f, %.1f, %.1f", p.P50, p.P90, p.P99) }

// gpuUse is what the containers' processes are said to use.
type gpuUse struct {
	path string // of the description of the GPUs
	simulated.Use
}

// add adds the processes of a container, which are in its cgroup.
func (u *gpuUse) add(c *container, gpu int) error {
	pid, err := strconv.Atoi(readFile(c.pid))
	if err != nil {
		return err
	}
	for _, process := range append([]int{pid}, childrenOf(pid)...) {
		u.Processes = append(u.Processes, simulated.ProcessReading{PID: process, GPU: gpu,
			Memory: 48 << 20, Compute: 10})
	}
	return nil
}

// childrenOf waits until a container's first process has its children.
func childrenOf(pid int) (children []int) {
	for range 1000 {
		children = nil
		for word := range strings.FieldsSeq(readFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))) {
			if child, err := strconv.Atoi(word); err == nil {
				children = append(children, child)
			}
		}
		if len(children) == perContainer-1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return children
}

// write writes the file that the daemon's sampler reads. Each time every process uses another
// amount.
func (u *gpuUse) write() error {
	u.Version = 1
	for i := range u.Processes {
		u.Processes[i].Memory = simulated.Memory(48<<20 + (time.Now().UnixNano()/1000+int64(i))%9<<20)
	}
	data, err := json.Marshal(u.Use)
	if err != nil {
		return err
	}
	path := u.path + simulated.UseSuffix
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// mountOne is a tmpfs, and every other time a directory mounted again.
func mountOne(i int, dir, point string) error {
	if i%2 == 0 {
		return syscall.Mount("tmpfs", point, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "size=64k")
	}
	return syscall.Mount(dir, point, "", syscall.MS_BIND, "")
}

func killInit(pid int) {
	// its pid may be another process's if it has ended by itself
	if strings.Contains(readFile(fmt.Sprintf("/proc/%d/cgroup", pid)), "/gpuledger-bench-"+
		strconv.Itoa(os.Getpid())+"/") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// A running program's figures.
type programCost struct {
	cpu                  time.Duration
	resident, peak       int // KiB
	descriptors, threads int
}

// cpuClockOfProcess is CPUCLOCK_SCHED of linux/posix-timers.h: with a pid, the clock counts what
// all threads of a process have used.
const cpuClockOfProcess = 2

func costOf(pid int) (c programCost, err error) {
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockOfProcess), &used); err != nil {
		return c, fmt.Errorf("process %d: %w", pid, err)
	}
	c.cpu = time.Duration(used.Nano())
	for line := range strings.Lines(readFile(fmt.Sprintf("/proc/%d/status", pid))) {
		key, value, _ := strings.Cut(line, ":")
		number, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch key {
		case "VmRSS":
			c.resident = number
		case "VmHWM":
			c.peak = number
		case "Threads":
			c.threads = number
		}
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	c.descriptors = len(fds)
	return c, nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
