package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestIsLimit: a limit is compared as the daemon prints it, in whole GiB from 1 GiB on.
func TestIsLimit(t *testing.T) {
	for _, c := range []struct {
		answer string
		mib    grant.Bytes
		want   bool
	}{
		{"512M", 512, true}, {"1023M", 1023, true}, {"1G", 1024, true}, {"1G", 1536, true},
		{"1536M", 1536, true},
		{"15G", 16160, true}, {"2G", 1536, false}, {"1G", 2048, false}, {"16G", 16160, false},
		{"0M", 512, false}, {"0G", 512, false}, {"", 512, false}, {"unlimited", 2048, false},
	} {
		if got := isLimit(c.answer, c.mib*grant.MiB); got != c.want {
			t.Errorf("%q for %d MiB: %v", c.answer, c.mib, got)
		}
	}
}

// TestErrorsOnStandardOutput: an answer that reports an error is one, with the exit status 0.
func TestErrorsOnStandardOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), grant.MPSControl)
	for answer, isError := range map[string]bool{"Unknown command": true,
		"Cannot find MPS control daemon process": true, "Failed to open control_lock": true,
		"Server not found": true, "Permission denied": true,
		"Not enough privilege to execute quit command": true,
		"": false, "25.0": false, "1G": false, "ACTIVE": false, "INITIALIZING": false, "1234": false} {
		must(t, os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\necho %q\n", answer), 0o755))
		c := control{program: path, env: []string{"PATH=/usr/bin:/bin"}, system: patient{}}
		got, err := c.ask(context.Background(), "start_server")
		if isError != (err != nil) || err == nil && got != answer ||
			isError && !strings.Contains(err.Error(), answer) {
			t.Errorf("%q: %q, %v", answer, got, err)
		}
	}
}

// TestQuestionsEndWithGpuledgerd: a program that is slow to ask does so no more when gpuledgerd was
// killed. It could make a daemon end that has grants again.
func TestQuestionsEndWithGpuledgerd(t *testing.T) {
	dir := t.TempDir()
	program, file := filepath.Join(dir, "slow"), filepath.Join(dir, "pid")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\necho $$ >"+file+"\nexec sleep 300\n"), 0o755))
	gpuledgerd := exec.Command("/proc/self/exe")
	gpuledgerd.Env = append(os.Environ(), askProgram+"="+program)
	must(t, gpuledgerd.Start())
	var pid int
	for pid == 0 {
		text, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	must(t, gpuledgerd.Process.Kill())
	_ = gpuledgerd.Wait()
	for end := time.Now().Add(time.Minute); unix.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(end) {
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatal("it still runs")
		}
	}
}

// TestCommandsOfADriver: a daemon is asked only what its driver knows.
func TestCommandsOfADriver(t *testing.T) {
	for version, want := range map[string]string{"535.183.01": "get_active_thread_percentage ",
		"550.54.15": "get_server_status ", "580.65.06": "get_server_status ", "": "get_server_status "} {
		s := newStageOf(t, version)
		d := s.daemon("GPU-0")
		must(t, s.pass(context.Background(), d, true))
		questions := s.asked(d)
		for _, command := range []string{"get_active_thread_percentage ", "get_server_status "} {
			if strings.Contains(questions, command) != (command == want) {
				t.Errorf("driver %q is asked\n%s", version, questions)
			}
		}
	}
}

// TestServersOfOthers: a process that the daemon has not started is not its server.
func TestServersOfOthers(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	must(t, os.WriteFile(filepath.Join(d.dir, "servers"), []byte("1\n"), 0o600))
	if err := s.pass(context.Background(), d, true); err == nil ||
		!strings.Contains(err.Error(), "it names process 1 as its server, and has not started that process") {
		t.Error(err)
	}
	if len(d.state.Servers) > 0 {
		t.Errorf("%+v", d.state)
	}
}

// TestLogReason: the last line that reports a failure counts, of those since the daemon was ready.
func TestLogReason(t *testing.T) {
	s := newStage(t)
	d := s.again("0123")
	must(t, os.MkdirAll(filepath.Join(d.dir, "log"), 0o700))
	path := filepath.Join(d.dir, logFile)
	const old, last = "an old one Failed\n", "Server 7 exited\n"
	const failed = "Failed to start : invalid argument\n"
	for name, c := range map[string]struct {
		text string
		read int
		want string
	}{
		"none":                       {"", 0, ""},
		"the last one":               {"one\ntwo\n\n", 0, "two"},
		"the one that failed":        {failed + last + last, 0, "Failed to start : invalid argument"},
		"the last that failed":       {old + failed + last, 0, "Failed to start : invalid argument"},
		"from before it was ready":   {old + last, len(old), "Server 7 exited"},
		"nothing since it was ready": {old, len(old), ""},
		"shortened since":            {failed, 1000, "Failed to start : invalid argument"},
		"beyond what is searched":    {failed + strings.Repeat("x\n", maxTail), 0, "x"},
	} {
		must(t, os.WriteFile(path, []byte(c.text), 0o600))
		if d.logRead = int64(c.read); d.logReason() != c.want {
			t.Errorf("%s: %q", name, d.logReason())
		}
	}
	must(t, os.Remove(path))
	if got := d.logReason(); got != "" {
		t.Errorf("without a log: %q", got)
	}
	if err := errors.New("why"); d.withReason(err) != err {
		t.Error("a reason from nowhere")
	}
}

// TestDriverLinks: the programs by their names wherever they lie, and of libraries the driver's
// own.
func TestDriverLinks(t *testing.T) {
	library := func(path string, bits int, names ...string) grant.DriverFile {
		return grant.DriverFile{Kind: grant.FileLibrary, Path: path, Bits: bits, Names: names}
	}
	d := grant.Driver{Root: "/drv", Files: []grant.DriverFile{
		{Kind: grant.FileBinary, Path: "/usr/bin/" + grant.MPSControl, Target: "/usr/bin/" + grant.MPSControl},
		{Kind: grant.FileBinary, Path: "/usr/lib/nvidia/mps", Target: "/usr/sbin/" + grant.MPSServer},
		library("/usr/lib/libcuda.so.550", 64, "libcuda.so", "libcuda.so.1"),
		library("/usr/lib/libnvidia-allocator.so.550", 64, "gbm/nvidia-drm_gbm.so"),
		library("/usr/lib32/libcuda.so.550", 32, "libcuda.so.1"),
	}}
	dir := filepath.Join(t.TempDir(), "mps")
	path, err := linkDriver(dir, d)
	must(t, err)
	for name, want := range map[string]string{
		"bin/" + grant.MPSControl:        "/drv/usr/bin/" + grant.MPSControl,
		"bin/" + grant.MPSServer:         "/drv/usr/lib/nvidia/mps",
		"lib/libcuda.so":                 "/drv/usr/lib/libcuda.so.550",
		"lib/libcuda.so.1":               "/drv/usr/lib/libcuda.so.550",
		"lib/libcuda.so.550":             "/drv/usr/lib/libcuda.so.550",
		"lib/libnvidia-allocator.so.550": "/drv/usr/lib/libnvidia-allocator.so.550",
	} {
		if got, _ := os.Readlink(filepath.Join(path, name)); got != want {
			t.Errorf("%s leads to %q, want %q", name, got, want)
		}
	}
	if names, _ := os.ReadDir(path + "/lib"); len(names) != 4 {
		t.Errorf("%v", names)
	}
	if again, err := linkDriver(dir, d); err != nil || again != path {
		t.Errorf("the same files: %s and %s, %v", path, again, err)
	}
	d.Root = "/"
	other, err := linkDriver(dir, d)
	must(t, err)
	if names, _ := os.ReadDir(other + "/lib"); other == path || len(names) != 0 {
		t.Errorf("on the node's own root: %s with %v", other, names)
	}
	d.Files = d.Files[:1]
	if _, err := linkDriver(dir, d); err == nil ||
		err.Error() != "the driver's files have no "+grant.MPSServer {
		t.Error(err)
	}
}
