package test

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestAHangingVolumeBlocksNoOtherCreate: a process that accesses a file system that never answers,
// such as FUSE with a dead server, cannot even be killed. A tenant that mounts one into its
// container blocks its own create, at any access, and the ledger goes on.
func TestAHangingVolumeBlocksNoOtherCreate(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	nothing := n.Write("nothing", "#!/bin/sh\nexit 0\n")
	must(t, os.Chmod(nothing, 0o755))
	setRuntime(t, n, nothing) // it accesses no volume
	tenant, other := n.Grant("--memory", "1GiB"), n.Grant("--memory", "1GiB")
	neighbour := n.Bundle("neighbour", with(other))
	for looks := 0; looks < 100; looks++ {
		volume := newHangingVolume(t, n, looks)
		b := n.Bundle("tenant", with(tenant), mount(specs.Mount{
			Type: "bind", Source: volume.dir, Destination: "/data", Options: []string{"rbind"}}))
		create := n.Wrapper("create", "--bundle", b.Dir, b.ID)
		must(t, create.Start())
		ended := make(chan error, 1)
		go func() { ended <- create.Wait() }()
		select {
		case err := <-ended:
			if volume.end(); err != nil || looks == 0 {
				t.Errorf("after %d accesses: %v", looks, err)
			}
			return
		case <-volume.silent:
		case <-time.After(time.Minute):
			t.Fatal("the create neither ends nor accesses the volume")
		}
		if r := neighbour.Create(); r.Code != 0 {
			t.Errorf("while another's create hangs at access %d: %+v", looks+1, r)
		}
		volume.end()
		<-ended
		if t.Failed() {
			return
		}
	}
	t.Error("the create never ends")
}

// hangingVolume is a FUSE file system of an empty directory.
type hangingVolume struct {
	dir    string
	fd     int
	silent chan struct{} // closed where it answers no more
	ended  chan struct{} // closed when nothing reads requests any more
}

// The requests of linux/fuse.h that it supports.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseInit, fuseBatchForget = 1, 2, 3, 26, 42
)

// newHangingVolume answers this many requests for the directory's attributes.
func newHangingVolume(t *testing.T, n *rig.Node, answers int) *hangingVolume {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this machine has no FUSE (%v): what a dead file system holds up is not tested", err)
	}
	v := &hangingVolume{dir: n.Dir + "/volume", fd: fd, silent: make(chan struct{}),
		ended: make(chan struct{})}
	must(t, os.MkdirAll(v.dir, 0o755))
	if err := syscall.Mount("fuse", v.dir, "fuse", 0,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		_ = unix.Close(fd)
		t.Skipf("FUSE cannot be mounted here (%v): what a dead file system holds up is not tested", err)
	}
	t.Cleanup(v.end)
	go v.serve(fd, answers)
	return v
}

// end releases all waiting processes, by the end of the connection. The descriptor's number is not
// given up before serve has ended: it could be another file's by the time that serve reads from it.
func (v *hangingVolume) end() {
	if v.fd >= 0 {
		_ = syscall.Unmount(v.dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
		select {
		case <-v.ended:
			_ = unix.Close(v.fd)
		case <-time.After(time.Minute): // it is not unmounted, and the number stays in use
		}
		v.fd = -1
	}
}

func (v *hangingVolume) serve(fd, answers int) {
	defer close(v.ended)
	request := make([]byte, 1<<17)
	for {
		if n, err := unix.Read(fd, request); err != nil || n < 16 {
			return
		}
		id := binary.LittleEndian.Uint64(request[8:])
		switch binary.LittleEndian.Uint32(request[4:]) {
		case fuseInit:
			reply := make([]byte, 64)
			// the protocol's version, the largest write
			for at, value := range map[int]uint32{0: 7, 4: 31, 20: 4096} {
				binary.LittleEndian.PutUint32(reply[at:], value)
			}
			answer(fd, id, 0, reply)
		case fuseGetattr:
			if answers--; answers < 0 {
				close(v.silent)
				return
			}
			reply := make([]byte, 104) // valid for no time
			binary.LittleEndian.PutUint64(reply[16:], 1)
			binary.LittleEndian.PutUint32(reply[76:], syscall.S_IFDIR|0o755)
			binary.LittleEndian.PutUint32(reply[80:], 2)
			answer(fd, id, 0, reply)
		case fuseForget, fuseBatchForget: // want no answer
		case fuseLookup:
			answer(fd, id, syscall.ENOENT, nil)
		default:
			answer(fd, id, syscall.ENOSYS, nil)
		}
	}
}

func answer(fd int, id uint64, errno syscall.Errno, body []byte) {
	head := make([]byte, 16, 16+len(body))
	binary.LittleEndian.PutUint32(head, uint32(16+len(body)))
	binary.LittleEndian.PutUint32(head[4:], uint32(-int32(errno)))
	binary.LittleEndian.PutUint64(head[8:], id)
	_, _ = unix.Write(fd, append(head, body...))
}
