package main

import (
	"bufio"
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
	anybody bool // one server for all users
	gpus    int
	limits  map[int]string // for later servers, by device ordinal
	percent string
	servers map[int]*exec.Cmd // by user
}

func serveControl(args []string) error {
	anybody := slices.Contains(args, "-multiuser-server")
	if anybody && in("old") {
		return fmt.Errorf("unrecognized option -multiuser-server")
	}
	if in("stillborn") {
		return fmt.Errorf("cannot find a GPU")
	}
	c := &control{anybody: anybody, gpus: len(strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")),
		limits: map[int]string{}, percent: "100", servers: map[int]*exec.Cmd{}}
	if err := os.WriteFile(pipes()+"/nvidia-cuda-mps-control.pid", []byte(strconv.Itoa(os.Getpid())),
		0o644); err != nil {
		return err
	}
	return listen("control", func(conn net.Conn, _ *bufio.Reader, line string, peer unix.Ucred) {
		if in("mute") {
			time.Sleep(time.Hour)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		words := strings.Fields(line)
		if words[0] == "connect" {
			fmt.Fprintln(conn, c.serverFor(int(peer.Uid)))
			return
		}
		fmt.Fprint(conn, c.do(words))
		if words[0] == "quit" {
			_ = conn.Close()
			c.end()
		}
	})
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
		conn, answer, err := dial("control")
		if err != nil {
			return fmt.Errorf("cannot find MPS control daemon process")
		}
		fmt.Fprintln(conn, input.Text())
		if _, err := io.Copy(os.Stdout, answer); err != nil {
			return err
		}
		_ = conn.Close()
	}
	return input.Err()
}

// do carries out a command. As the real daemon, it prints nothing for a command that it does not
// know.
func (c *control) do(words []string) string {
	arg := append(words[1:], "", "", "")
	switch words[0] {
	case "get_server_list":
		var pids []string
		for _, s := range c.servers {
			pids = append(pids, strconv.Itoa(s.Process.Pid))
		}
		slices.Sort(pids)
		return strings.Join(append(pids, ""), "\n")
	case "get_server_status":
		if c.byPID(arg[0]) < 0 {
			return "Server not found\n"
		}
		for _, state := range []string{"initializing", "fault"} {
			if in(state) {
				return strings.ToUpper(state) + "\n"
			}
		}
		return "ACTIVE\n"
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
	}
	return ""
}

// short prints a limit as the real daemon does: in G if that is a whole number.
func short(limit string) string {
	if n, err := strconv.Atoi(strings.TrimSuffix(limit, "M")); err == nil && n%1024 == 0 &&
		strings.HasSuffix(limit, "M") {
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
	s := exec.Command("/proc/self/exe")
	s.Args[0] = "nvidia-cuda-mps-server"
	s.Env = append(os.Environ(), "FAKEMPS_SOCKET="+name, "FAKEMPS_PERCENT="+c.percent)
	for ordinal, limit := range c.limits {
		s.Env = append(s.Env, fmt.Sprintf("FAKEMPS_LIMIT_%d=%s", ordinal, limit))
	}
	if err := s.Start(); err != nil {
		return "busy: " + err.Error()
	}
	c.servers[uid] = s
	go func() {
		_ = s.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.servers[uid] == s {
			delete(c.servers, uid)
		}
	}()
	for range 1000 {
		if conn, err := net.Dial("unix", name); err == nil {
			_ = conn.Close()
			return name
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "busy: the server does not come up"
}

// tell sends a line to a user's server and returns its answer.
func tell(uid int, line string) string {
	conn, err := net.Dial("unix", fmt.Sprintf("server-%d", uid))
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
	os.Exit(0)
}
