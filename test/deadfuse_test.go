package test

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/rig"
)

// countingFUSE is a file system at a directory that counts the requests about files and answers
// with an error. A dead file system would block each of these for ever, so a test that no request
// arrives shows that nothing waits.
func countingFUSE(t *testing.T, dir string) (asked *atomic.Int32) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("misses FUSE, so it does not show that nothing waits for a dead file system: %v", err)
	}
	rig.Mount(t, "fuse", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
		fd))
	asked = new(atomic.Int32)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		serveFUSE(fd, stop, asked)
	}()
	t.Cleanup(func() { close(stop); <-ended; _ = unix.Close(fd) }) // and then it is unmounted, unasked
	return asked
}

// serveFUSE answers FUSE_INIT (include/uapi/linux/fuse.h), and ENOTCONN to everything else.
func serveFUSE(fd int, stop chan struct{}, asked *atomic.Int32) {
	const header, hello, forget, init, forgetMany = 16, 64, 2, 26, 42
	for in := make([]byte, 1<<17); ; {
		select {
		case <-stop:
			return
		default:
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n, err := unix.Read(fd, in); err != nil || n < header {
			continue
		}
		out := make([]byte, header, header+hello)
		copy(out[8:16], in[8:16]) // the question's number
		switch opcode := binary.NativeEndian.Uint32(in[4:]); opcode {
		case forget, forgetMany:
			continue // they want no answer
		case init:
			out = out[:header+hello]
			binary.NativeEndian.PutUint32(out[16:], 7)
			binary.NativeEndian.PutUint32(out[20:], 31)
			binary.NativeEndian.PutUint32(out[36:], 4096)
		default:
			asked.Add(1)
			binary.NativeEndian.PutUint32(out[4:], ^uint32(unix.ENOTCONN)+1)
		}
		binary.NativeEndian.PutUint32(out, uint32(len(out)))
		_, _ = unix.Write(fd, out)
	}
}

// TestNoCreateWaitsForANeighboursFileSystem: sockets have names that lead into a neighbour's FUSE,
// also by a link. Containers that mount other directories, its parent among them, start, and send
// it no request.
func TestNoCreateWaitsForANeighboursFileSystem(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	dead := n.Dir + "/shared/dead"
	must(t, os.MkdirAll(dead+"/sub", 0o755), os.Mkdir(n.Dir+"/shared/mine", 0o755),
		os.Mkdir(n.Dir+"/data", 0o755), os.Symlink(dead, n.Dir+"/data/link"))
	listen(t, dead+"/control")
	listen(t, n.Dir+"/data/link/sub/control")
	asked := countingFUSE(t, dead)
	if _, err := os.Stat(dead + "/control"); err == nil || asked.Load() == 0 {
		t.Fatalf("the file system counts nothing: %v", err)
	}
	for id, source := range map[string]string{"elsewhere": n.Dir + "/data", "beside": n.Dir + "/shared/mine",
		"parent": n.Dir + "/shared"} {
		b := n.Bundle(id, mount(specs.Mount{Type: "bind", Source: source, Destination: "/data",
			Options: []string{"bind"}}), rig.Shell("exit 0"))
		before := asked.Load()
		if r := b.Run(); r.Code != 0 || r.Stderr != "" {
			t.Errorf("%s: %+v", id, r)
		}
		if more := asked.Load() - before; more != 0 {
			t.Errorf("%s: the file system got %d requests", id, more)
		}
	}
	if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit,
		"mount:/data has what may be an MPS daemon's socket in "+dead) {
		t.Errorf("the parent's container is not recorded: %s", audit)
	}
}
