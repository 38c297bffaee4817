package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReplaceFile(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	left := filepath.Join(dir, fmt.Sprintf(".x.json.%d-0", os.Getpid())) // left by a process with this pid
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for content, mode := range map[string]os.FileMode{"": 0o600, "a": 0o644,
		strings.Repeat("b", 1<<20): 0o640} {
		for _, durability := range []Durability{Volatile, Durable} {
			if err := ReplaceFile(path, []byte(content), mode, durability); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			info, e := os.Stat(path)
			if err != nil || e != nil || string(got) != content || info.Mode() != mode {
				t.Errorf("%d bytes, %v, %v, %v; want %d, %v", len(got), info.Mode(), err, e,
					len(content), mode)
			}
		}
	}
	if got, err := os.ReadFile(left); err != nil || string(got) != "half" {
		t.Errorf("another's draft is %q now (%v)", got, err)
	}
	if names := namesIn(t, dir); len(names) != 2 {
		t.Errorf("left behind: %q", names)
	}
}

func TestReplaceFiles(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := t.TempDir()
	content := map[string][]byte{}
	for i := range 30 {
		content[fmt.Sprint("x", i)] = fmt.Append(nil, i)
	}
	for range 2 { // new ones, and the same again
		if err := ReplaceFiles(dir, content, 0o640); err != nil {
			t.Fatal(err)
		}
		for name, want := range content {
			got, err := os.ReadFile(filepath.Join(dir, name))
			info, e := os.Stat(filepath.Join(dir, name))
			if err != nil || e != nil || !bytes.Equal(got, want) || info.Mode() != 0o640 {
				t.Errorf("%s has %q, %v, %v, %v; want %q", name, got, info.Mode(), err, e, want)
			}
		}
		if names := namesIn(t, dir); len(names) != len(content) {
			t.Errorf("there are %q", names)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "taken", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	content["taken"] = nil
	err := ReplaceFiles(dir, content, 0o640)
	if err == nil || !strings.HasPrefix(err.Error(), "cannot write 31 files in "+dir+": ") {
		t.Errorf("%v", err)
	}
	if names := namesIn(t, dir); len(names) != len(content) {
		t.Errorf("a failure leaves %q", names)
	}
}

func TestAFailedReplacementLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := ReplaceFile(path, []byte("x"), 0o600, Volatile)
	if err == nil || !strings.HasPrefix(err.Error(), "cannot write "+path+": ") {
		t.Errorf("%v", err)
	}
	if names := namesIn(t, dir); len(names) != 1 {
		t.Errorf("left behind: %q", names)
	}
	if err := ReplaceFile(filepath.Join(dir, "none/x"), nil, 0o600,
		Volatile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestConcurrentReplacements: with several writers, every reader sees the whole content of one.
func TestConcurrentReplacements(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 100_000) }
	if err := ReplaceFile(path, content(0), 0o600, Volatile); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			for range 20 {
				if err := ReplaceFile(path, content(i), 0o600, Volatile); err != nil {
					t.Error(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || len(got) == 0 || !bytes.Equal(got, content(int(got[0]-'a'))) {
					t.Errorf("a part: %d bytes, %v", len(got), err)
				}
			}
		})
	}
	writers.Wait()
	if names := namesIn(t, filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left behind: %q", names)
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// pollerEnv makes a second process of this test open a file. It prints whether that started Go's
// poller.
const pollerEnv = "GPULEDGER_TEST_POLLER"

func TestOpenFileStartsNoPoller(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if opener := os.Getenv(pollerEnv); opener != "" {
		f, err := map[string]func(string, int, os.FileMode) (*os.File, error){
			"ours": func(path string, flags int, mode os.FileMode) (*os.File, error) {
				return OpenFile(path, flags, uint32(mode))
			},
			"os's": os.OpenFile,
		}[opener](path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		polls := false
		for fd := range 64 { // listing the directory would start the poller
			to, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			polls = polls || to == "anon_inode:[eventpoll]"
		}
		fmt.Printf("polls: %v\n", polls)
		return
	}
	for opener, want := range map[string]string{"ours": "polls: false\n", "os's": "polls: true\n"} {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), pollerEnv+"="+opener)
		if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s: %q (%v), want %q", opener, out, err, want)
		}
	}
}

func TestOpenFileDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(pipe, os.O_RDONLY, 0) // without O_NONBLOCK this would wait for a writer
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	f, err = OpenFile(filepath.Join(dir, "new"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the next program would have it open, too: %#x (%v)", flags, err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if _, err := OpenFile(filepath.Join(dir, "none"), os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
