// Command fakemps stands in for NVIDIA's Multi-Process Service where there is no GPU. By the name
// it is called it is the control daemon and what asks it (nvidia-cuda-mps-control), its server, or
// a client. It speaks the commands that NVIDIA documents (docs.nvidia.com/deploy/mps, "Tools and
// Interface Reference"), allocates nothing, and has the real one's traps:
//
//   - a client whose own limit names a GPU that the server does not have loses every limit;
//   - a client that finds no daemon goes on without one, with the whole GPU;
//   - limits are a process's and not a container's;
//   - defaults reach only servers that start after them;
//   - a server serves the processes of one user; with -multiuser-server, root's server serves those
//     of all users;
//   - client and server must see the same /dev/shm;
//   - the end of the server is the end of its clients' contexts.
//
// Words in the file fakemps.moods beside the program make it behave badly: deaf (it takes no
// limits), initializing and fault (its servers take no clients), stillborn (it ends at once), mute
// (it does not answer), old (it does not know -multiuser-server), narrow (its socket is open to its
// own user alone).
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case "nvidia-cuda-mps-control":
		if len(os.Args) > 1 {
			err = serveControl(os.Args[1:])
		} else {
			err = askControl()
		}
	case "nvidia-cuda-mps-server":
		err = serveClients()
	default:
		err = client(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// in reports whether the file fakemps.moods beside the program contains this word.
func in(mood string) bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	words, _ := os.ReadFile(filepath.Join(filepath.Dir(self), "fakemps.moods"))
	return strings.Contains(string(words), mood)
}

// pipes is the pipe directory. Sockets in it are opened by short names, because the path can be too
// long for a socket.
func pipes() string {
	if dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); dir != "" {
		return dir
	}
	return "/tmp/nvidia-mps"
}

func dial(name string) (net.Conn, *bufio.Reader, error) {
	if err := os.Chdir(pipes()); err != nil {
		return nil, nil, err
	}
	conn, err := net.Dial("unix", name)
	if err != nil {
		return nil, nil, err
	}
	return conn, bufio.NewReader(conn), nil
}

// listen passes the first line of every connection to serve, with the credentials of its peer.
func listen(name string, serve func(conn net.Conn, lines *bufio.Reader, line string, peer unix.Ucred)) error {
	if err := os.Chdir(pipes()); err != nil {
		return err
	}
	listener, err := net.Listen("unix", name)
	if err != nil {
		return err
	}
	if !in("narrow") {
		if err := os.Chmod(name, 0o777); err != nil { // every user that reaches the directory may connect
			return err
		}
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			peer, err := peerOf(conn)
			lines := bufio.NewReader(conn)
			if line, e := lines.ReadString('\n'); err == nil && e == nil {
				serve(conn, lines, strings.TrimSpace(line), peer)
			}
		}()
	}
}

func peerOf(conn net.Conn) (peer unix.Ucred, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return peer, err
	}
	e := raw.Control(func(fd uintptr) {
		var p *unix.Ucred
		if p, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			peer = *p
		}
	})
	if err == nil {
		err = e
	}
	return peer, err
}
