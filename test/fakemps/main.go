// Command fakemps stands in for NVIDIA's Multi-Process Service where there is no GPU. By the name
// it is called it is the control daemon and what asks it (nvidia-cuda-mps-control), its server
// (nvidia-cuda-mps-server), or a client. It speaks the commands that NVIDIA documents
// (docs.nvidia.com/deploy/mps, "Tools and Interface Reference"), as far as the driver knows them
// below whose root it lies (release.go). It allocates nothing, and has the real one's traps:
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
// What NVIDIA's programs of drivers 535, 550 and 580 were seen to do, it does too:
//
//   - the process that -f keeps in the foreground listens itself, on SOCK_SEQPACKET sockets:
//     control (0666), and control_privileged (0755), to which root's program connects first;
//   - beside them it has a FIFO named log (0777); with -f the log directory stays empty, and all is
//     printed;
//   - quit leaves the sockets where they are, and only root may ask for it;
//   - errors are printed to the standard output, and the exit status is 0;
//   - a limit of 1 GiB or more is printed as whole GiB, without the rest;
//   - the server's program is found by PATH.
//
// Words in the file fakemps.moods beside the program make it behave badly: deaf (it takes no
// limits), initializing and fault (its servers take no clients), failing (its servers do not
// start), stillborn (it ends at once), blind (it has no GPU, and ends without a word), mute (it
// does not answer), narrow (its socket is open to its own user alone), foreign (it names another's
// process among its servers).
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

// The names of NVIDIA's programs.
const (
	controlProgram = "nvidia-cuda-mps-control"
	serverProgram  = "nvidia-cuda-mps-server"
)

func main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case controlProgram:
		if err = runControl(os.Args[1:]); err != nil {
			fmt.Println(err)
		}
		return
	case serverProgram:
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
	conn, err := net.Dial("unixpacket", name)
	if err != nil {
		return nil, nil, err
	}
	return conn, bufio.NewReader(conn), nil
}

// handler serves a connection whose first line was read.
type handler func(conn net.Conn, lines *bufio.Reader, line string, peer unix.Ucred)

// listen listens on a socket in the pipe directory, in place of one that an earlier daemon left.
func listen(name string, mode os.FileMode) (net.Listener, error) {
	if err := os.Chdir(pipes()); err != nil {
		return nil, err
	}
	_ = os.Remove(name)
	listener, err := net.Listen("unixpacket", name)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(name, mode)
}

// accept passes the first line of every connection to serve, with the credentials of its peer.
func accept(listener net.Listener, serve handler) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			peer, err := peerOf(conn)
			lines := bufio.NewReader(conn)
			if line, e := lines.ReadString('\n'); err == nil && e == nil && strings.TrimSpace(line) != "" {
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
