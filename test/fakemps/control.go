package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// control is the control daemon.
type control struct {
	mu      sync.Mutex
	release release
	anybody bool // one server for all users
	gpus    int
	limits  map[int]string // for later servers, by device ordinal
	percent string
	servers map[int]*exec.Cmd // by user
}

// noDaemon is what the program prints if it reaches no daemon, and for options that it does not
// know.
const noDaemon answer = "Cannot find MPS control daemon process"

// answer is an error in NVIDIA's words.
type answer string

func (a answer) Error() string { return string(a) }

// The sockets of the daemon. Every user may connect to the first, and root to the second.
const (
	openSocket = "control"
	rootSocket = "control_privileged"
)

// runControl is the program: the daemon with -f, else what asks it.
func runControl(args []string) error {
	driver := installed()
	for _, arg := range args {
		if arg != "-f" && (arg != "-multiuser-server" || !driver.users) {
			if driver.wordy {
				return answer("Unrecognized option " + arg)
			}
			return noDaemon
		}
	}
	if len(args) > 0 {
		return serveControl(driver, slices.Contains(args, "-multiuser-server"))
	}
	return askControl()
}

// say prints a line of the daemon's log, as with -f.
func say(format string, args ...any) {
	fmt.Printf("[%s Control %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(),
		fmt.Sprintf(format, args...))
}

func serveControl(driver release, anybody bool) error {
	if in("blind") {
		os.Exit(100) // CUDA_ERROR_NO_DEVICE
	}
	if in("stillborn") {
		say("Failed to initialize: cannot find a GPU")
		return errors.New("the daemon is shutting down")
	}
	c := &control{release: driver, anybody: anybody, percent: "100", limits: map[int]string{},
		gpus: len(strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")), servers: map[int]*exec.Cmd{}}
	if err := os.WriteFile(pipes()+"/nvidia-cuda-mps-control.pid", []byte(strconv.Itoa(os.Getpid())),
		0o644); err != nil {
		return err
	}
	if err := makeLog(); err != nil {
		return err
	}
	if err := makeLock(); err != nil {
		return err
	}
	mode := os.FileMode(0o666)
	if in("narrow") {
		mode = 0o600
	}
	open, err := listen(openSocket, mode)
	if err != nil {
		return err
	}
	privileged, err := listen(rootSocket, 0o755)
	if err != nil {
		return err
	}
	say("Starting control daemon using socket %s/%s", pipes(), openSocket)
	go func() { _ = accept(privileged, c.answer) }()
	return accept(open, c.answer)
}

// makeLock makes the file that everybody opens who asks the daemon.
func makeLock() error {
	path := pipes() + "/control_lock"
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return err
	}
	return os.Chmod(path, 0o666)
}

// makeLog makes the FIFO beside the sockets, to which every user may write.
func makeLog() error {
	path := pipes() + "/log"
	_ = os.Remove(path)
	if err := unix.Mkfifo(path, 0o777); err != nil {
		return err
	}
	return os.Chmod(path, 0o777)
}

func (c *control) answer(conn net.Conn, _ *bufio.Reader, line string, peer unix.Ucred) {
	if in("mute") {
		time.Sleep(time.Hour)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	words := strings.Fields(line)
	switch {
	case words[0] == "connect":
		fmt.Fprintln(conn, c.serverFor(int(peer.Uid)))
	case !c.may(peer, words[0]):
		fmt.Fprintln(conn, c.denial(peer, words[0]))
	case words[0] == "quit":
		_ = conn.Close()
		c.end()
	default:
		fmt.Fprint(conn, c.do(words))
	}
}

// may reports whether a user may send a command: root all of them, others what changes nothing.
func (c *control) may(peer unix.Ucred, command string) bool {
	return peer.Uid == 0 || strings.HasPrefix(command, "get_") ||
		command == "set_default_active_thread_percentage" && c.release.open
}

// denial is what a user is told who may not send a command.
func (c *control) denial(peer unix.Ucred, command string) string {
	switch {
	case !c.release.wordy:
		return "Permission denied"
	case command == "quit":
		return "Not enough privilege to execute quit command"
	}
	return fmt.Sprintf("Insufficient privileges for UID %d. Control deamon settings can only be modified by "+
		"the user who started it or by the root user.", peer.Uid)
}

// askControl is the program without arguments: it reads commands from standard input. Like the
// daemon it opens a file beside the socket, and creates it if it is missing.
func askControl() error {
	lock, err := os.OpenFile(pipes()+"/control_lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		conn, answer, err := dialControl()
		if err != nil {
			return noDaemon
		}
		fmt.Fprintln(conn, input.Text())
		if _, err := io.Copy(os.Stdout, answer); err != nil {
			return err
		}
		_ = conn.Close()
	}
	return input.Err()
}

// dialControl connects to the daemon: as root first to root's socket.
func dialControl() (net.Conn, *bufio.Reader, error) {
	if os.Geteuid() == 0 {
		if conn, answer, err := dial(rootSocket); err == nil {
			return conn, answer, nil
		}
	}
	return dial(openSocket)
}

// unknown is the answer to a command that the driver does not know.
func (c *control) unknown(command string) string {
	if c.release.wordy {
		return fmt.Sprintf("Unknown command %q\n", command)
	}
	return "Unknown command\n"
}

// do carries out a command.
func (c *control) do(words []string) string {
	arg := append(words[1:], "", "", "")
	if !c.release.limits && strings.HasSuffix(words[0], "_device_pinned_mem_limit") {
		return c.unknown(words[0])
	}
	switch words[0] {
	case "get_server_list":
		return c.serverList()
	case "get_server_status":
		return c.status(arg[0])
	case "start_server":
		uid, _ := strconv.Atoi(arg[1])
		c.serverFor(uid)
	case "get_client_list":
		return tell(c.byPID(arg[0]), "clients")
	case "set_default_device_pinned_mem_limit":
		if ordinal, err := strconv.Atoi(arg[0]); err == nil && ordinal < c.gpus && !in("deaf") {
			c.limits[ordinal] = arg[1]
		}
	case "get_default_device_pinned_mem_limit":
		ordinal, _ := strconv.Atoi(arg[0])
		return short(c.limits[ordinal]) + "\n"
	case "set_device_pinned_mem_limit":
		return tell(c.byPID(arg[0]), "limit "+arg[1]+" "+arg[2])
	case "set_default_active_thread_percentage":
		c.percent = arg[0]
	case "get_default_active_thread_percentage":
		return c.percent + ".0\n"
	case "set_active_thread_percentage":
		return tell(c.byPID(arg[0]), "percent "+arg[1])
	case "get_active_thread_percentage":
		if c.byPID(arg[0]) < 0 {
			return "Server not found\n"
		}
		return tell(c.byPID(arg[0]), "get-percent")
	default:
		return c.unknown(words[0])
	}
	return ""
}

func (c *control) serverList() string {
	var pids []string
	for _, s := range c.servers {
		pids = append(pids, strconv.Itoa(s.Process.Pid))
	}
	if in("foreign") {
		pids = []string{"1"}
	}
	slices.Sort(pids)
	return strings.Join(append(pids, ""), "\n")
}

func (c *control) status(pid string) string {
	if !c.release.status {
		return c.unknown("get_server_status")
	}
	if c.byPID(pid) < 0 && !in("foreign") {
		return "Server not found\n"
	}
	for _, state := range []string{"initializing", "fault"} {
		if in(state) {
			return strings.ToUpper(state) + "\n"
		}
	}
	return "ACTIVE\n"
}

// short prints a limit as the real daemon does: from 1 GiB on in whole GiB, without the rest.
func short(limit string) string {
	if n, is := mebibytes(limit); is && n >= 1024 {
		return strconv.Itoa(n/1024) + "G"
	}
	return limit
}

// byPID is the user of the server with this pid; -1 if there is no such server.
func (c *control) byPID(pid string) int {
	for uid, s := range c.servers {
		if strconv.Itoa(s.Process.Pid) == pid {
			return uid
		}
	}
	return -1
}

// serverFor is the socket of the user's server, or why there is none. There is one server at a
// time.
func (c *control) serverFor(uid int) string {
	if c.anybody {
		uid = 0
	}
	if c.servers[uid] != nil {
		return fmt.Sprintf("server-%d", uid)
	}
	for other, s := range c.servers {
		if tell(other, "clients") != "" {
			return "busy: server of another user"
		}
		_ = s.Process.Kill()
	}
	name := fmt.Sprintf("server-%d", uid)
	_ = os.Remove(name)
	s := exec.Command(serverProgram)
	s.Stdout, s.Stderr = os.Stdout, os.Stdout
	s.Env = append(os.Environ(), "FAKEMPS_SOCKET="+name, "FAKEMPS_PERCENT="+c.percent,
		fmt.Sprintf("FAKEMPS_CONTROL=%d", os.Getpid()))
	for ordinal, limit := range c.limits {
		s.Env = append(s.Env, fmt.Sprintf("FAKEMPS_LIMIT_%d=%s", ordinal, limit))
	}
	if err := s.Start(); err != nil {
		say("Server exited with status 127")
		return "busy: " + err.Error()
	}
	say("Starting new server %d for user %d", s.Process.Pid, uid)
	c.servers[uid] = s
	ended := make(chan struct{})
	go func() {
		err := s.Wait()
		close(ended)
		say("Server %d exited: %v", s.Process.Pid, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.servers[uid] == s {
			delete(c.servers, uid)
		}
	}()
	for range 1000 {
		if conn, err := net.Dial("unixpacket", name); err == nil {
			_ = conn.Close()
			return name
		}
		select {
		case <-ended:
			delete(c.servers, uid)
			return "busy: the server has ended"
		case <-time.After(10 * time.Millisecond):
		}
	}
	return "busy: the server does not come up"
}

// tell sends a line to a user's server and returns its answer.
func tell(uid int, line string) string {
	conn, err := net.Dial("unixpacket", fmt.Sprintf("server-%d", uid))
	if err != nil {
		return ""
	}
	defer conn.Close()
	fmt.Fprintln(conn, line)
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

func (c *control) end() {
	for _, s := range c.servers {
		_ = s.Process.Kill()
	}
	if c.release.wordy {
		_ = os.Remove("log")
		_ = os.Remove("nvidia-cuda-mps-control.pid")
	}
	os.Exit(0)
}
