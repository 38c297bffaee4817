package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// inspectAgain prints the state of the GPUs each second until it is interrupted or q is pressed. If
// the output is no terminal, it prints one state after the other.
func inspectAgain(c *cli.Context) error {
	events := make(chan os.Signal, 8)
	signal.Notify(events, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(events)
	if !isTerminal(os.Stdout) || c.Bool("json") {
		return inspectInARow(c, events)
	}
	signal.Notify(events, unix.SIGWINCH, unix.SIGTSTP)
	s := &screen{in: os.Stdin, out: os.Stdout, write: c.App.Writer, events: events}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return inspectOn(c, s)
}

// inspectInARow prints pictures, or JSON documents, one after the other.
func inspectInARow(c *cli.Context, events <-chan os.Signal) error {
	for {
		if !c.Bool("json") {
			fmt.Fprintln(c.App.Writer, clock(time.Now()))
		}
		if err := inspect(c, c.App.Writer); err != nil {
			return err
		}
		select {
		case <-events:
			return nil
		case <-time.After(time.Second):
		}
	}
}

func clock(now time.Time) string { return now.Format("2006-01-02 15:04:05 MST") }

// inspectOn draws pictures on a screen. Warnings become part of the picture.
func inspectOn(c *cli.Context, s *screen) error {
	var notes bytes.Buffer
	said := c.App.ErrWriter
	c.App.ErrWriter = &notes
	defer func() { c.App.ErrWriter = said }()
	keys := s.keys()
	for {
		var picture bytes.Buffer
		notes.Reset()
		if err := inspect(c, &picture); err != nil {
			return err
		}
		columns := columnsOf(s.out)
		for line := range strings.Lines(notes.String()) {
			fmt.Fprintln(&picture, wrap(strings.TrimSuffix(line, "\n"), columns, "", "  "))
		}
		if err := s.draw(clock(time.Now())+s.ends(), picture.String()); err != nil {
			return err
		}
		if ended, err := s.wait(keys); ended || err != nil {
			return err
		}
	}
}

// screen is a terminal that is drawn on.
type screen struct {
	in, out *os.File
	write   io.Writer     // to out
	before  *unix.Termios // the settings of in before; nil: it is no terminal, and no keys are read
	events  chan os.Signal
}

// Control sequences for the first picture and for the end: alternate screen, hidden cursor, no line
// wrap.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
	leaveScreen = "\n\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// enter makes the terminal deliver single keys without echo, and switches to the screen. Keys that
// send signals still do.
func (s *screen) enter() error {
	s.before = nil
	if now, err := unix.IoctlGetTermios(int(s.in.Fd()), unix.TCGETS); err == nil {
		keys := *now
		keys.Lflag &^= unix.ICANON | unix.ECHO
		keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
		if err := unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &keys); err != nil {
			return fmt.Errorf("cannot read keys from the terminal: %w", err)
		}
		s.before = now
	}
	_, err := io.WriteString(s.write, enterScreen)
	if err != nil {
		s.leave()
	}
	return err
}

// leave restores the terminal.
func (s *screen) leave() {
	_, _ = io.WriteString(s.write, leaveScreen)
	if s.before != nil {
		_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, s.before)
	}
}

func (s *screen) ends() string {
	if s.before == nil {
		return "  Ctrl-C ends"
	}
	return "  q ends"
}

// keys returns the keys that are pressed. They are read until the program ends.
func (s *screen) keys() <-chan byte {
	if s.before == nil {
		return nil
	}
	keys := make(chan byte)
	go func() {
		for key := make([]byte, 1); ; {
			if n, err := s.in.Read(key); n != 1 || err != nil {
				return
			}
			keys <- key[0]
		}
	}()
	return keys
}

// wait waits until the next state is due. It reports whether the user ended the command meanwhile.
func (s *screen) wait(keys <-chan byte) (ended bool, err error) {
	due := time.After(time.Second)
	for {
		select {
		case <-due:
			return false, nil
		case key := <-keys:
			if key == 'q' || key == 'Q' {
				return true, nil
			}
		case event := <-s.events:
			switch event {
			case unix.SIGWINCH:
				return false, nil
			case unix.SIGTSTP:
				return false, s.pause()
			}
			return true, nil
		}
	}
}

// pause restores the terminal and stops the process, as Ctrl-Z does, until the shell continues it.
func (s *screen) pause() error {
	s.leave()
	stop()
	return s.enter()
}

// draw writes a picture from the top, cut to the terminal's size.
func (s *screen) draw(heading, picture string) error {
	rows := defaultRows
	if size, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 {
		rows = int(size.Row)
	}
	lines := append([]string{heading}, strings.Split(strings.TrimSuffix(picture, "\n"), "\n")...)
	lines = within(lines, rows, columnsOf(s.out))
	text := "\x1b[H\x1b[2K" + strings.Join(lines, "\n\x1b[2K")
	if len(lines) < rows {
		text += "\n\x1b[J"
	}
	_, err := io.WriteString(s.write, text)
	return err
}

// defaultRows is the height of the terminal, in lines, if it does not report it.
const defaultRows = 24

// within cuts lines to a terminal's size. If it has too few rows, the last one says how many lines
// are missing.
func within(lines []string, rows, columns int) []string {
	if missing := len(lines) - rows; missing > 0 {
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("… %d more lines", missing+1))
	}
	for i, line := range lines {
		lines[i] = shorten(line, columns)
	}
	return lines
}
