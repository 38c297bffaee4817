package test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// unit is a stand-in for systemd with one unit, which opens only the devices that it lists. It
// writes no device rules. packaging/hook.sh tests the same with systemd itself.
type unit struct {
	group string // of its cgroup
	sync.Mutex
	listed []string // "195:1 rw"
}

// listenAsSystemd has a stand-in answer at systemd's socket, in the tests' namespace.
func listenAsSystemd(t *testing.T, u *unit) {
	t.Helper()
	rig.Mount(t, "tmpfs", "/run", "tmpfs", 0, "")
	must(t, os.MkdirAll("/run/systemd", 0o755))
	l, err := net.Listen("unix", "/run/systemd/private")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			u.serve(conn)
		}
	}()
}

// serve answers the calls of one connection, each with its body alone.
func (u *unit) serve(conn net.Conn) {
	defer conn.Close()
	const greeting = "\x00AUTH EXTERNAL 30\r\n"
	if _, err := io.ReadFull(conn, make([]byte, len(greeting))); err != nil {
		return
	}
	fmt.Fprint(conn, "OK 0\r\n")
	_, err := io.ReadFull(conn, make([]byte, len("BEGIN\r\n")))
	for err == nil {
		head := make([]byte, 16) // D-Bus Specification, Message Format
		if _, err = io.ReadFull(conn, head); err != nil {
			return
		}
		rest := make([]byte, (word(head[12:])+7)/8*8+word(head[4:]))
		if _, err = io.ReadFull(conn, rest); err != nil {
			return
		}
		body := u.answer(rest)
		answer := []byte{'l', 2, 0, 1}
		for _, n := range []int{len(body), 1, 8} { // its length, serial number, and the fields' length
			answer = binary.LittleEndian.AppendUint32(answer, uint32(n))
		}
		answer = append(answer, 5, 1, 'u', 0) // the call that it answers
		_, err = conn.Write(slices.Concat(answer, head[8:12], body))
	}
}

func word(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// entry is a device in the call that sets DeviceAllow.
var entry = regexp.MustCompile(`/dev/char/(\d+:\d+)\x00+[\x01-\x03]\x00\x00\x00([rwm]+)\x00`)

func (u *unit) answer(call []byte) []byte {
	u.Lock()
	defer u.Unlock()
	switch {
	case bytes.Contains(call, []byte("SetUnitProperties")):
		for _, m := range entry.FindAllSubmatch(call, -1) {
			u.listed = append(u.listed, string(m[1])+" "+string(m[2]))
		}
		return nil
	case bytes.Contains(call, []byte("ControlGroup")):
		return text([]byte("\x01s\x00"), u.group)
	case bytes.Contains(call, []byte("DevicePolicy")):
		return text([]byte("\x01s\x00"), "strict")
	}
	list := append([]byte("\x05a(ss)"), make([]byte, 10)...) // its length is at byte 8, its first entry at 16
	if bytes.Contains(call, []byte("DeviceAllow")) {
		for _, device := range u.listed {
			numbers, access, _ := strings.Cut(device, " ")
			list = append(list, make([]byte, -len(list)&7)...)
			list = text(text(list, "/dev/char/"+numbers), access)
		}
	}
	binary.LittleEndian.PutUint32(list[8:], uint32(len(list)-16))
	return list
}

// text appends a string, aligned.
func text(to []byte, s string) []byte {
	to = append(to, make([]byte, -len(to)&3)...)
	return append(append(binary.LittleEndian.AppendUint32(to, uint32(len(s))), s...), 0)
}

// hookListsInTheUnit: at its next reload systemd closes what a unit does not list, whichever
// program has opened it. So all devices of a grant are listed, also those that the spec opens.
func hookListsInTheUnit(t *testing.T, runtime string) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB", "--gpu", "1")
	u := &unit{}
	listenAsSystemd(t, u)
	var edited specs.Spec
	wrapped := n.Bundle("wrapped", with(reference))
	dynamic(t, wrapped)
	if r := wrapped.Create(); r.Code != 0 { // which edits the spec
		t.Fatalf("%+v", r)
	}
	must(t, json.Unmarshal(wrapped.Config(), &edited))
	wrapped.End()
	if !slices.ContainsFunc(edited.Mounts, isDriver) {
		t.Fatalf("none of its mounts is the driver's: %+v", edited.Mounts)
	}
	becomesFree(t, n, reference.ID)
	of := func(path string) func(specs.LinuxDevice) bool {
		return func(d specs.LinuxDevice) bool { return d.Path == path }
	}
	control := edited.Linux.Devices[slices.IndexFunc(edited.Linux.Devices, of("/dev/nvidiactl"))]
	var all []string
	for _, d := range edited.Linux.Devices {
		all = append(all, fmt.Sprintf("%d:%d rw", d.Major, d.Minor))
	}
	slices.Sort(all)
	for i, c := range []struct {
		name  string
		lacks func(*specs.Spec)
	}{
		{"all of it", func(s *specs.Spec) {
			s.Linux.Devices, s.Linux.Resources.Devices = nil, s.Linux.Resources.Devices[:1]
			s.Mounts = slices.DeleteFunc(s.Mounts, isDriver)
		}},
		{"nothing", func(*specs.Spec) {}},
		{"the driver's files", func(s *specs.Spec) { s.Mounts = slices.DeleteFunc(s.Mounts, isDriver) }},
		{"a node", func(s *specs.Spec) {
			s.Linux.Devices = slices.DeleteFunc(s.Linux.Devices, of(control.Path))
		}},
		{"a rule", func(s *specs.Spec) {
			s.Linux.Resources.Devices = slices.DeleteFunc(s.Linux.Resources.Devices,
				func(r specs.LinuxDeviceCgroup) bool { return r.Minor != nil && *r.Minor == control.Minor })
		}},
	} {
		b := n.Bundle(fmt.Sprint("c", i), n.Hooked, func(s *specs.Spec) {
			s.Linux.Devices = slices.Clone(edited.Linux.Devices)
			s.Linux.Resources.Devices = slices.Clone(edited.Linux.Resources.Devices)
			s.Mounts, s.Process.Env = slices.Clone(edited.Mounts), edited.Process.Env
			s.Linux.CgroupsPath += ".scope"
			u.group, u.listed = s.Linux.CgroupsPath, nil
		}, with(reference), rig.Shell(probe), c.lacks)
		dynamic(t, b)
		if got := b.RealRun(); got.Stdout != exactlyOne || got.Code != 0 {
			t.Errorf("the spec lacks %s: %+v", c.name, got)
		}
		if slices.Sort(u.listed); !slices.Equal(u.listed, all) {
			t.Errorf("the spec lacks %s: the unit lists %v, want %v", c.name, u.listed, all)
		}
		becomesFree(t, n, reference.ID)
	}
}

func isDriver(m specs.Mount) bool { return strings.Contains(m.Source, "/driver/") }
