package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// client is a program that uses CUDA. Its arguments are what it does. "0:2048" allocates 2048 MiB
// on device 0. "hold" keeps all of it while the server lives. "talk" does too, and makes the server
// answer ten times a second.
func client(deeds []string) error {
	conn, lines, err := join()
	if err != nil {
		return err
	}
	for _, deed := range deeds {
		switch device, size, isAlloc := strings.Cut(deed, ":"); {
		case deed == "hold" && conn == nil:
			time.Sleep(time.Hour)
		case deed == "hold":
			_, err := lines.ReadString('\n')
			return fmt.Errorf("lost: %w", err)
		case deed == "talk":
			return talk(conn, lines)
		case !isAlloc:
			return fmt.Errorf("cannot understand %q", deed)
		case conn == nil:
			fmt.Println(deed, "CUDA_SUCCESS")
		default:
			fmt.Fprintf(conn, "alloc %s %s\n", device, size)
			answer, err := lines.ReadString('\n')
			if err != nil {
				return err
			}
			fmt.Println(deed, strings.TrimSpace(answer))
		}
	}
	return nil
}

// talk prints "beat" for every answer.
func talk(conn net.Conn, lines *bufio.Reader) error {
	if conn == nil {
		return fmt.Errorf("no daemon to talk to")
	}
	for {
		fmt.Fprintln(conn, "alloc 0 0")
		if answer, err := lines.ReadString('\n'); err != nil || answer != "CUDA_SUCCESS\n" {
			return fmt.Errorf("lost: %w: %s", err, answer)
		}
		fmt.Println("beat")
		time.Sleep(100 * time.Millisecond)
	}
}

// join connects to the daemon. Without a daemon the program goes on and is no client.
func join() (net.Conn, *bufio.Reader, error) {
	conn, answer, err := dial(openSocket)
	if err != nil {
		fmt.Println("plain CUDA, the whole GPU")
		return nil, nil, nil
	}
	defer conn.Close()
	fmt.Fprintln(conn, "connect")
	line, err := answer.ReadString('\n')
	name := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(name, "server-") {
		return nil, nil, fmt.Errorf("CUDA_ERROR_NOT_PERMITTED: %s", name)
	}
	probe, err := os.CreateTemp("/dev/shm", "client-")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(probe.Name())
	server, lines, err := dial(name)
	if err != nil {
		return nil, nil, err
	}
	hello := "client " + probe.Name()
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "CUDA_MPS_") {
			hello += " " + entry
		}
	}
	fmt.Fprintln(server, hello)
	line, err = lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "mps ") {
		return nil, nil, fmt.Errorf("CUDA_ERROR_MPS_CONNECTION_FAILED: %s", strings.TrimSpace(line))
	}
	fmt.Print(line)
	return server, lines, nil
}
