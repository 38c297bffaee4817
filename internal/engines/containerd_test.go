package engines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// A copy of the test's program in a directory containerd-VERSION is a containerd of that version.
func init() {
	program, _ := os.Executable()
	version, found := strings.CutPrefix(filepath.Base(filepath.Dir(program)), "containerd-")
	switch {
	case !found:
	case len(os.Args) > 1 && os.Args[1] == "--version":
		fmt.Println("containerd github.com/containerd/containerd v" + version + " 0123456")
		os.Exit(0)
	default:
		time.Sleep(time.Hour)
	}
}

// newContainerd is the path of a containerd of a version.
func newContainerd(t *testing.T, version, name string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	path := filepath.Join(t.TempDir(), "containerd-"+version, name)
	must(t, os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o755))
	return path
}

// startContainerd runs a program as containerd with a main file.
func startContainerd(t *testing.T, program, main string) {
	t.Helper()
	cmd := exec.Command(program, "--config", main)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// TestTheContainerdThatRunsDecides how several files are merged, whichever containerd lies where
// programs are searched.
func TestTheContainerdThatRunsDecides(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("misses root, because only root's processes count")
	}
	one, two := newContainerd(t, "1.7.27", "containerd"), newContainerd(t, "2.2.0", "containerd")
	other := newContainerd(t, "2.1.0", "another")
	renamed := filepath.Join(t.TempDir(), "containerd")
	must(t, os.Symlink(other, renamed))
	for name, c := range map[string]struct {
		run   []string
		major int
	}{
		"none runs":                       {nil, 0},
		"2.x":                             {[]string{two}, 2},
		"1.x":                             {[]string{one}, 1},
		"both":                            {[]string{two, one}, 1},
		"another program with that name":  {[]string{renamed}, 0},
		"2.x, and another with that name": {[]string{renamed, two}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			root := newSystem(t, map[string]string{"/conf.d/10.toml": "version = 2\n"})
			main, text := root+"/config.toml", "version = 2\nimports = [\""+root+"/conf.d/*.toml\"]\n"
			must(t, os.WriteFile(main, []byte(text), 0o644))
			for _, program := range c.run {
				startContainerd(t, program, main)
			}
			startContainerd(t, one, root+"/other.toml") // which reads another file
			in := Installation{Engine: grant.Containerd, System: filetree.System{Root: "/"}, File: main}
			if got := containerdRelease(in)[0]; got != c.major {
				t.Errorf("the major version is %d, want %d", got, c.major)
			}
			read, err := in.Read()
			must(t, err)
			if last := read.(*Containerd).LastSectionWins; last != (c.major < 2) {
				t.Errorf("the last section wins: %v", last)
			}
			in.System.Root = root
			if got := containerdRelease(in)[0]; got != 0 {
				t.Errorf("for an image the major version is %d", got)
			}
		})
	}
}

// TestTheSmallestVersion counts, because what is right under both merges is right then.
func TestTheSmallestVersion(t *testing.T) {
	say := func(text string) string {
		path := filepath.Join(t.TempDir(), "containerd")
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		return path
	}
	debian := say("echo containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3")
	upstream := say("echo containerd github.com/containerd/containerd/v2 v2.2.0 1c4457e00fac")
	for _, row := range []struct {
		programs []string
		want     release
	}{{nil, release{}}, {[]string{debian}, release{1, 6, 20}}, {[]string{upstream}, release{2, 2, 0}},
		{[]string{upstream, upstream}, release{2, 2, 0}},
		{[]string{upstream, debian}, release{1, 6, 20}}, {[]string{debian, upstream}, release{1, 6, 20}},
		{[]string{upstream, say("echo containerd, of no version")}, release{}},
		{[]string{say("exit 1"), upstream}, release{}},
		{[]string{"/nowhere/containerd"}, release{}}} {
		if got := smallestRelease(row.programs); got != row.want {
			t.Errorf("%q: %v, want %v", row.programs, got, row.want)
		}
	}
}
