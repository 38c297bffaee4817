package inject

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// packaging/hook.sh tests the same with systemd itself.

func TestScopeOf(t *testing.T) {
	for _, c := range []struct {
		path        string
		told        bool
		name, above string
		fails       bool
	}{
		{"/machine.slice/libpod-1.scope", true, "libpod-1.scope", "/machine.slice/libpod-1.scope", false},
		{"/machine.slice/libpod-1.scope", false, "libpod-1.scope", "/machine.slice/libpod-1.scope", false},
		{"/machine.slice/libpod-1.scope/container", true, "libpod-1.scope", "/machine.slice/libpod-1.scope", false},
		{"/docker-1.scope/2", false, "", "", false}, // of an engine in a container
		{"/a-1.scope/b-2.scope", true, "b-2.scope", "/a-1.scope/b-2.scope", false},
		{"/pods/1", false, "", "", false},
		{"/pods/1", true, "", "", true},
		{"/machine.slice/libpod-1.scope/a/b", true, "", "", true},
		{"/system.slice/x.service", false, "", "", true},
		{"/system.slice/x.service/container", true, "", "", true},
		{"/init.scope", false, "", "", false},
		{"/init.scope/container", true, "", "", true},
		{"/a.slice/o'dd.scope", true, "", "", true},
		{"/a.slice/" + strings.Repeat("x", 256) + ".scope", true, "", "", true},
	} {
		name, above, err := scopeOf(c.path, c.told)
		if name != c.name || above != c.above || (err != nil) != c.fails {
			t.Errorf("%s, told %v: %q %q %v", c.path, c.told, name, above, err)
		}
	}
}

func TestBusLabel(t *testing.T) {
	for name, want := range map[string]string{"libpod-1a.scope": "libpod_2d1a_2escope", "1x": "_31x",
		`a\x2d@:_Z`: "a_5cx2d_40_3a_5fZ"} {
		if got := busLabel(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestUnitDevices(t *testing.T) {
	has := []unitDevice{{"char-pts", "rwm"}, {"/dev/char/195:1", "m"}, {"/dev/char/195:255", "r"}}
	got := unitDevices(has, rulesOf(true, "c 195:1 rw", "c 195:255 rw", "c 508:0 rw"))
	want := []unitDevice{{"/dev/char/195:1", "rwm"}, {"/dev/char/195:255", "rw"}, {"/dev/char/508:0", "rw"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// manager answers as systemd does; odd changes its answers.
type manager struct {
	group, policy string
	allow         []unitDevice
	programs      int
	set           []unitDevice
	odd           func(answer message) message
}

// serve answers one connection.
func (m *manager) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || line != "\x00AUTH EXTERNAL 30\r\n" {
		return
	}
	_, _ = conn.Write([]byte("OK 0123456789abcdef\r\n"))
	if line, err := in.ReadString('\n'); err != nil || line != "BEGIN\r\n" {
		return
	}
	for {
		data := make([]byte, 16)
		if _, err := io.ReadFull(in, data); err != nil {
			return
		}
		size, fields := binary.LittleEndian.Uint32(data[4:]), (binary.LittleEndian.Uint32(data[12:])+7)/8*8
		rest := make([]byte, fields+size)
		if _, err := io.ReadFull(in, rest); err != nil {
			return
		}
		body := &reply{data: rest[fields:]}
		var answer message
		if body.text(); strings.Contains(string(rest), "SetUnitProperties") {
			body.word()
			body.word()
			body.align(8)
			body.text()
			body.signature()
			body.word()
			for body.align(8); body.at < len(body.data); body.align(8) {
				m.set = append(m.set, unitDevice{body.text(), body.text()})
			}
			m.allow = append(m.allow, m.set...)
		} else {
			m.property(body.text(), &answer)
		}
		signal := message{'l', 4, 0, 1} // as systemd sends them between its answers
		signal.word(0)
		signal.word(7)
		signal.array(func() { signal.field(fieldPath, "o", "/") })
		signal.align(8)
		head := message{'l', methodReturn, 0, 1}
		head.word(uint32(len(answer)))
		head.word(9)
		head.array(func() {
			head = append(head, fieldReplySerial)
			head.signature("u")
			head.word(binary.LittleEndian.Uint32(data[8:]))
		})
		head.align(8)
		all := append(append(signal, head...), answer...)
		if m.odd != nil {
			all = m.odd(all)
		}
		if _, err := conn.Write(all); err != nil {
			return
		}
	}
}

func (m *manager) property(name string, to *message) {
	list := func(devices []unitDevice) {
		to.signature("a(ss)")
		to.array(func() {
			for _, d := range devices {
				to.align(8)
				to.text(d.path)
				to.text(d.access)
			}
		})
	}
	switch name {
	case "ControlGroup":
		to.signature("s")
		to.text(m.group)
	case "DevicePolicy":
		to.signature("s")
		to.text(m.policy)
	case "DeviceAllow":
		list(m.allow)
	case "BPFProgram":
		list(make([]unitDevice, m.programs))
	}
}

func (m *manager) listen(t *testing.T) (socket string) {
	socket = filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			m.serve(conn)
		}
	}()
	return socket
}

const itsScope = "/a.slice/x-1.scope"

// TestAllowInUnit: a unit that opens only what it lists gets the grant's devices and no others, and
// one that lists nothing stays as it is: with a list, it would close everything else.
func TestAllowInUnit(t *testing.T) {
	change := Change{Allow: rulesOf(true, "c 195:1 rw")}
	for _, c := range []struct {
		name   string
		policy string
		allow  []unitDevice
		want   int
	}{
		{"runc's", "strict", []unitDevice{{"char-pts", "rwm"}}, 1},
		{"strict, and nothing", "strict", nil, 1},
		{"crun's", "auto", nil, 0},
		{"auto, and a list", "auto", []unitDevice{{"char-pts", "rwm"}}, 1},
	} {
		m := &manager{group: itsScope, policy: c.policy, allow: c.allow}
		con := &container{Target: Target{Systemd: true, Socket: m.listen(t)}, proc: -1, rootfs: -1, dev: -1}
		above, err := con.findUnit(itsScope+"/container", true, change)
		if err == nil {
			err = con.allowInUnit(change)
		}
		if err != nil || above != itsScope || len(m.set) != c.want ||
			c.want > 0 && m.set[0] != (unitDevice{"/dev/char/195:1", "rw"}) {
			t.Errorf("%s: %q %v %v", c.name, above, m.set, err)
		}
		con.close()
	}
}

func TestUnitsThatCannotBeTold(t *testing.T) {
	allow, closing := Change{Allow: rulesOf(true, "c 195:1 rw")}, Change{Close: rulesOf(false, "c 195:* rw")}
	odd := func(at int, to byte) func(message) message {
		return func(m message) message {
			m[at] = to
			return m
		}
	}
	for _, c := range []struct {
		name   string
		m      manager
		v2     bool
		change Change
		fails  string
	}{
		{"as it should be", manager{group: itsScope, policy: "strict"}, true, allow, ""},
		{"another's cgroup", manager{group: "/b.slice/x-1.scope", policy: "strict"}, true, allow, "/b.slice"},
		{"no such unit", manager{policy: "auto"}, true, allow, "at \"\""},
		{"programs that systemd attaches", manager{group: itsScope, policy: "auto", programs: 1}, true, allow,
			"BPFProgram"},
		{"closing on v1", manager{group: itsScope, policy: "auto"}, false, closing, "cgroup v1"},
		{"closing on v2", manager{group: itsScope, policy: "auto"}, true, closing, ""},
		{"nothing listens", manager{}, true, allow, "cannot be told"},
		// its answers begin with a signal of 32 bytes
		{"an error", manager{odd: odd(33, methodError)}, true, allow, "systemd says"},
		{"another byte order", manager{odd: odd(0, 'B')}, true, allow, "cannot be read"},
		{"a length that is none", manager{odd: odd(15, 0x7f)}, true, allow, "cannot be read"},
		{"a text that goes on behind the end", manager{group: itsScope, odd: odd(60, 0xff)}, true, allow,
			"systemd has the unit"},
	} {
		m := c.m
		socket := m.listen(t)
		if c.name == "nothing listens" {
			socket += "-that-is-not-there"
		}
		con := &container{Target: Target{Systemd: true, Socket: socket}, proc: -1, rootfs: -1, dev: -1}
		_, err := con.findUnit(itsScope, c.v2, c.change)
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v", c.name, err)
		}
		con.close()
	}
}

// FuzzAnswer: whatever is read, it is read to its end.
func FuzzAnswer(f *testing.F) {
	var property message
	(&manager{allow: []unitDevice{{"char-pts", "rwm"}}}).property("DeviceAllow", &property)
	f.Add([]byte(property))
	f.Fuzz(func(t *testing.T, data []byte) {
		a := &reply{data: data}
		a.signature()
		end := int(a.word())
		for a.align(8); a.at < end && !a.bad; a.align(8) {
			at := a.at
			if a.text(); a.at <= at && !a.bad {
				t.Fatal("it reads the same again")
			}
		}
		if a.at > len(data) {
			t.Error("it is behind the end")
		}
	})
}
