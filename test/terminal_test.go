package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/rig"
)

// terminal is a pseudo-terminal with what was written to it.
type terminal struct {
	*testing.T
	master, slave *os.File
	mu            sync.Mutex
	text          strings.Builder
}

func newTerminal(t *testing.T, rows, columns uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	x := &terminal{T: t, master: master, slave: slave}
	x.resize(rows, columns)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buffer := make([]byte, 4096); ; {
			n, err := master.Read(buffer)
			x.mu.Lock()
			x.text.Write(buffer[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { // a master without a slave reads EIO
		_ = slave.Close()
		<-done
		_ = master.Close()
	})
	return x
}

func (x *terminal) resize(rows, columns uint16) {
	x.Helper()
	must(x.T, unix.IoctlSetWinsize(int(x.slave.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: rows, Col: columns}))
}

// start runs a program in a new session on the terminal.
func (x *terminal) start(cmd *exec.Cmd) *exec.Cmd {
	x.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = x.slave, x.slave, x.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	must(x.T, cmd.Start())
	x.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func (x *terminal) press(keys string) {
	x.Helper()
	_, err := x.master.WriteString(keys)
	must(x.T, err)
}

func (x *terminal) said() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

func (x *terminal) settings() unix.Termios {
	x.Helper()
	now, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	must(x.T, err)
	return *now
}

var control = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)

// picture is the last complete one: the lines from the top of the screen on. Nil if there is none
// yet.
func (x *terminal) picture() []string {
	pictures := strings.Split(x.said(), "\x1b[H\x1b[2K")
	if len(pictures) < 3 {
		return nil
	}
	text := strings.TrimSuffix(control.ReplaceAllString(pictures[len(pictures)-2], ""), "\r\n")
	return strings.Split(text, "\r\n")
}

// shows waits for a picture with a line like this.
func (x *terminal) shows(line string) {
	x.Helper()
	like := regexp.MustCompile(line)
	rig.Eventually(x.T, "a picture with "+line, func() bool {
		return like.MatchString(strings.Join(x.picture(), "\n"))
	})
}

// within wants the picture to keep to the terminal.
func (x *terminal) within(rows, columns int) {
	x.Helper()
	picture := x.picture()
	if len(picture) > rows {
		x.Errorf("%d lines on a terminal of %d:\n%s", len(picture), rows, strings.Join(picture, "\n"))
	}
	for _, line := range picture {
		if n := utf8.RuneCountInString(line); n > columns {
			x.Errorf("%d columns on a terminal of %d: %q", n, columns, line)
		}
	}
}

// gaveBack wants the terminal's settings to be the original ones.
func (x *terminal) gaveBack(before unix.Termios) {
	x.Helper()
	if now := x.settings(); now != before {
		x.Errorf("the terminal is\n%+v\nand was\n%+v", now, before)
	}
	for _, pair := range [][2]string{{"\x1b[?1049h", "\x1b[?1049l"}, {"\x1b[?25l", "\x1b[?25h"},
		{"\x1b[?7l", "\x1b[?7h"}} {
		rig.Eventually(x.T, fmt.Sprintf("after %q there is %q", pair[0], pair[1]), func() bool {
			said := x.said()
			return strings.LastIndex(said, pair[0]) < strings.LastIndex(said, pair[1])
		})
	}
}

const clockLine = `^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \S+  q ends`

// TestInspectOnATerminal: it has a clock, fits the terminal's size as that changes, and restores
// the terminal whichever way it ends.
func TestInspectOnATerminal(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.Grant("--memory", "4GiB", "--label", "a label that is long enough for three narrow terminals or so")
	for name, end := range map[string]func(x *terminal, cmd *exec.Cmd){
		"q":         func(x *terminal, _ *exec.Cmd) { x.press("xyzq") },
		"Ctrl-C":    func(x *terminal, _ *exec.Cmd) { x.press("\x03") },
		"Ctrl-\\":   func(x *terminal, _ *exec.Cmd) { x.press("\x1c") },
		"terminate": func(_ *terminal, cmd *exec.Cmd) { _ = cmd.Process.Signal(unix.SIGTERM) },
		"hang up":   func(_ *terminal, cmd *exec.Cmd) { _ = cmd.Process.Signal(unix.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTerminal(t, 12, 40)
			before := x.settings()
			cmd := x.start(n.Command(rig.Binary(t, "gpuledger"), "inspect", "--details", "--watch"))
			x.shows(`(?m)^0 .* 4\.0/15\.8`)
			if first := x.picture()[0]; !regexp.MustCompile(clockLine).MatchString(first) {
				t.Errorf("the heading is %q", first)
			}
			x.within(12, 40)
			x.shows(`… \d+ more lines`)
			if x.settings() == before {
				t.Error("keys are read a line at a time")
			}
			x.resize(30, 120)
			x.shows(`MEMORY GiB \(ALLOCATED/TOTAL\)  COMPUTE  GRANTS`)
			x.within(30, 120)
			end(x, cmd)
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ends with %v", err)
			}
			x.gaveBack(before)
		})
	}
}

// TestInspectStopsOnATerminal: at Ctrl-Z the shell has its terminal back, and fg continues.
func TestInspectStopsOnATerminal(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	x := newTerminal(t, 24, 80)
	before := x.settings()
	script := fmt.Sprintf(`set -m; %s inspect --watch; echo "status $?"; stty -a >%s; fg >/dev/null; `+
		`echo "ended $?"`, rig.Binary(t, "gpuledger"), n.Dir+"/stty")
	cmd := x.start(n.Command("bash", "-c", script))
	x.shows("Allocated/Total")
	x.press("\x1a")
	rig.Eventually(t, "it goes on", func() bool {
		_, after, stopped := strings.Cut(x.said(), "status 148")
		return stopped && strings.Contains(after, "Allocated/Total")
	})
	if text := read(t, n.Dir+"/stty"); !strings.Contains(text, " icanon ") ||
		!strings.Contains(text, " echo ") {
		t.Errorf("while it is stopped the terminal is\n%s", text)
	}
	left, _, _ := strings.Cut(x.said(), "status 148")
	if !strings.Contains(left, "\x1b[?1049l") {
		t.Error("while it is stopped its picture does not change")
	}
	x.press("q")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %q", err, x.said())
	}
	rig.Eventually(t, "the end", func() bool { return strings.Contains(x.said(), "ended 0") })
	x.gaveBack(before)
}

// TestInspectFailsOnATerminal: errors are printed after the terminal is restored; warnings are in
// the picture.
func TestInspectFailsOnATerminal(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	x := newTerminal(t, 24, 60)
	before := x.settings()
	cmd := x.start(n.Command(rig.Binary(t, "gpuledger"), "inspect", "--watch"))
	x.shows("Allocated/Total")
	n.Must("disable", "--until-enabled")
	x.shows("(?s)warning: disabled until .*\n  .*without\\s+grants")
	x.within(24, 60)
	must(t, os.Remove(filepath.Join(n.Dir, "state", "inventory.json")))
	if err := cmd.Wait(); err == nil {
		t.Error("it ends with status 0")
	}
	x.gaveBack(before)
	rig.Eventually(t, "the error", func() bool {
		_, after, _ := strings.Cut(x.said(), "\x1b[?1049l")
		return strings.Contains(after, "gpuledger: this node has no inventory") &&
			strings.Contains(after, "hint: ")
	})
}

// TestInspectWithoutKeys: if standard input is not a terminal, it is not read.
func TestInspectWithoutKeys(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	x := newTerminal(t, 24, 80)
	before := x.settings()
	cmd := x.start(n.Command("sh", "-c", rig.Binary(t, "gpuledger")+
		` inspect --watch </dev/null; echo "ended $?"`))
	x.shows(`^20\S+ \S+ \S+  Ctrl-C ends`)
	x.press("q\x03")
	_ = cmd.Wait()
	x.gaveBack(before)
}
