package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// server counts what its clients allocate.
type server struct {
	mu      sync.Mutex
	gpus    int
	limits  map[int]int // MiB, by device ordinal; no entry is no limit
	percent int
	clients map[int32]bool
}

func serveClients() error {
	s := &server{gpus: len(strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")), limits: map[int]int{},
		clients: map[int32]bool{}}
	s.percent, _ = strconv.Atoi(os.Getenv("FAKEMPS_PERCENT"))
	for ordinal := range s.gpus {
		if limit, is := mebibytes(os.Getenv(fmt.Sprintf("FAKEMPS_LIMIT_%d", ordinal))); is {
			s.limits[ordinal] = limit
		}
	}
	if in("failing") {
		fmt.Printf("[Server %d] Failed to start : invalid argument\n", os.Getpid())
		return fmt.Errorf("[Server %d] Exiting", os.Getpid())
	}
	control, err := strconv.Atoi(os.Getenv("FAKEMPS_CONTROL"))
	if err != nil {
		return err
	}
	go endWith(control)
	listener, err := listen(os.Getenv("FAKEMPS_SOCKET"), 0o777)
	if err != nil {
		return err
	}
	return accept(listener,
		func(conn net.Conn, lines *bufio.Reader, line string, peer unix.Ucred) {
			words := append(strings.Fields(line), "", "")
			s.mu.Lock()
			switch words[0] {
			case "clients":
				for pid := range s.clients {
					fmt.Fprintln(conn, pid)
				}
			case "limit":
				ordinal, _ := strconv.Atoi(words[1])
				s.limits[ordinal], _ = mebibytes(words[2])
			case "percent":
				s.percent, _ = strconv.Atoi(words[1])
			case "get-percent":
				fmt.Fprintf(conn, "%d.0\n", s.percent)
			case "client":
				s.clients[peer.Pid] = true
				limits, percent := s.forClient(line)
				s.mu.Unlock()
				serve(conn, lines, line, limits, percent)
				s.mu.Lock()
				delete(s.clients, peer.Pid)
			}
			s.mu.Unlock()
		})
}

// endWith ends the server with the daemon that started it, which may have ended already.
func endWith(control int) {
	if fd, err := unix.PidfdOpen(control, 0); err == nil && os.Getppid() == control {
		for ended := 0; ended < 1; { // less after a signal
			ended, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		}
	}
	os.Exit(1)
}

// mebibytes reads a limit.
func mebibytes(text string) (int, bool) {
	for suffix, unit := range map[string]int{"M": 1, "G": 1024} {
		if digits, found := strings.CutSuffix(text, suffix); found {
			n, err := strconv.Atoi(digits)
			return n * unit, err == nil
		}
	}
	return 0, false
}

// forClient are the limits of one client. They are the server's, which the client's own can lower.
// A client has none if one of its own names a GPU that does not exist.
func (s *server) forClient(hello string) (map[int]int, int) {
	limits, percent := map[int]int{}, s.percent
	for ordinal, limit := range s.limits {
		limits[ordinal] = limit
	}
	for _, word := range strings.Fields(hello)[2:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE":
			if n, err := strconv.Atoi(value); err == nil {
				percent = min(percent, n)
			}
		case "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT":
			for _, own := range strings.Split(value, ",") {
				device, size, _ := strings.Cut(own, "=")
				ordinal, err := strconv.Atoi(device)
				if err != nil || ordinal >= s.gpus {
					return nil, percent
				}
				n, is := mebibytes(size)
				if limit, bound := limits[ordinal]; is && (!bound || n < limit) {
					limits[ordinal] = n
				}
			}
		}
	}
	return limits, percent
}

// serve serves one client until it ends. The client names a file of its shared memory, then
// allocates.
func serve(conn net.Conn, lines *bufio.Reader, hello string, limits map[int]int, percent int) {
	probe := strings.Fields(hello)[1]
	if strings.Contains(hello, " CUDA_MPS_SM_PARTITION=") { // the server has no partitions
		fmt.Fprintln(conn, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
		return
	}
	if _, err := os.Stat(filepath.Join("/dev/shm", filepath.Base(probe))); err != nil {
		fmt.Fprintln(conn, "no shared memory in common")
		return
	}
	fmt.Fprintf(conn, "mps threads=%d\n", percent)
	used := map[int]int{}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		var ordinal, size int
		_, _ = fmt.Sscanf(line, "alloc %d %d", &ordinal, &size)
		if limit, bound := limits[ordinal]; bound && used[ordinal]+size > limit {
			fmt.Fprintln(conn, "CUDA_ERROR_OUT_OF_MEMORY")
			continue
		}
		used[ordinal] += size
		fmt.Fprintln(conn, "CUDA_SUCCESS")
	}
}
