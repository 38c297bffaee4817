package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// This file implements the part of D-Bus ("D-Bus Specification", Message Protocol) that the hook
// needs, on systemd's own socket, where there is no bus daemon (docs/adr/0085).

// systemdSocket is the socket on which systemd accepts calls of root.
const systemdSocket = "/run/systemd/private"

// The largest message that is read, in bytes, and the time that an answer may take, in seconds.
const (
	maxAnswer  = 1 << 20
	answerTime = 5
)

// bus is a connection to systemd.
type bus struct {
	fd     int
	serial uint32
	read   []byte // received and not used yet
}

func dialSystemd(path string) (*bus, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	b := &bus{fd: fd}
	wait := unix.Timeval{Sec: answerTime}
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &wait)
	}
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = b.authenticate()
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

func (b *bus) close() { _ = unix.Close(b.fd) }

// authenticate sends the caller's uid, which systemd compares with what the kernel reports.
func (b *bus) authenticate() error {
	if err := b.write([]byte("\x00AUTH EXTERNAL 30\r\n")); err != nil { // "0" in hexadecimal: root
		return err
	}
	line := []byte{}
	for len(line) < 2 || line[len(line)-1] != '\n' {
		next, err := b.take(1)
		if line = append(line, next...); err != nil || len(line) > maxLine {
			return errors.Join(err, errors.New("no answer to the first line"))
		}
	}
	if string(line[:2]) != "OK" {
		return fmt.Errorf("it says %q", line)
	}
	return b.write([]byte("BEGIN\r\n"))
}

// maxLine bounds the answer to the first line, in bytes.
const maxLine = 512

func (b *bus) write(data []byte) error {
	for len(data) > 0 {
		n, err := unix.SendmsgN(b.fd, data, nil, nil, unix.MSG_NOSIGNAL)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// take returns the next n bytes.
func (b *bus) take(n int) ([]byte, error) {
	for len(b.read) < n {
		more := make([]byte, 4096)
		got, err := unix.Read(b.fd, more)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case got == 0:
			return nil, errors.New("it has closed the connection")
		default:
			b.read = append(b.read, more[:got]...)
		}
	}
	data := b.read[:n:n]
	b.read = b.read[n:]
	return data, nil
}

// The kinds of messages, and the codes of header fields.
const (
	methodCall, methodReturn, methodError = 1, 2, 3

	fieldPath, fieldInterface, fieldMember, fieldReplySerial, fieldSignature = 1, 2, 3, 5, 8
)

// call calls a method and returns the body of the answer.
func (b *bus) call(object, in, method, signature string, body message) (message, error) {
	b.serial++
	head := message{'l', methodCall, 0, 1}
	head.word(uint32(len(body)))
	head.word(b.serial)
	head.array(func() {
		head.field(fieldPath, "o", object)
		head.field(fieldInterface, "s", in)
		head.field(fieldMember, "s", method)
		head.align(8)
		head = append(head, fieldSignature)
		head.signature("g")
		head.signature(signature)
	})
	head.align(8)
	if err := b.write(append(head, body...)); err != nil {
		return nil, err
	}
	// systemd also sends every change of a unit to each connection: these messages are skipped
	for until := time.Now().Add(answerTime * time.Second); time.Now().Before(until); {
		kind, to, body, err := b.next()
		if err != nil || to == b.serial && kind == methodReturn {
			return body, err
		}
		if to == b.serial && kind == methodError {
			return nil, fmt.Errorf("systemd says: %s", (&reply{data: body}).text())
		}
	}
	return nil, errors.New("it does not answer in time")
}

// next reads a message: its kind, the serial number of the call that it answers, and its body.
func (b *bus) next() (kind byte, to uint32, body message, err error) {
	head, err := b.take(16)
	if err != nil {
		return 0, 0, nil, err
	}
	size, fields := binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[12:])
	if head[0] != 'l' || size > maxAnswer || fields > maxAnswer {
		return 0, 0, nil, errors.New("its answer cannot be read")
	}
	rest, err := b.take(int(fields+7)/8*8 + int(size))
	if err != nil {
		return 0, 0, nil, err
	}
	a := reply{data: rest[:fields]}
	for a.align(8); a.at < len(a.data) && !a.bad; a.align(8) {
		code := a.byte()
		switch value := a.signature(); value {
		case "u", "h":
			if n := a.word(); code == fieldReplySerial {
				to = n
			}
		case "s", "o":
			a.text()
		case "g":
			a.signature()
		default:
			a.bad = true
		}
	}
	if a.bad {
		return 0, 0, nil, errors.New("its answer cannot be read")
	}
	return head[1], to, rest[int(fields+7)/8*8:], nil
}

// message is a message, or its body, as far as it has been written.
type message []byte

func (m *message) align(to int) {
	for len(*m)%to != 0 {
		*m = append(*m, 0)
	}
}

func (m *message) word(n uint32) {
	m.align(4)
	*m = binary.LittleEndian.AppendUint32(*m, n)
}

func (m *message) text(s string) {
	m.word(uint32(len(s)))
	*m = append(append(*m, s...), 0)
}

func (m *message) signature(s string) { *m = append(append(append(*m, byte(len(s))), s...), 0) }

// field writes a field of a header.
func (m *message) field(code byte, kind, value string) {
	m.align(8)
	*m = append(*m, code)
	m.signature(kind)
	m.text(value)
}

// array writes an array of structures, which fill writes. Its length does not count the padding
// before the first structure.
func (m *message) array(fill func()) {
	m.word(0)
	at := len(*m) - 4
	m.align(8)
	start := len(*m)
	fill()
	binary.LittleEndian.PutUint32((*m)[at:], uint32(len(*m)-start))
}

// reply is a body that is being read. A value behind its end reads as zero, and sets bad.
type reply struct {
	data []byte
	at   int
	bad  bool
}

func (a *reply) take(n int) []byte {
	if a.bad || n < 0 || n > len(a.data)-a.at {
		a.bad = true
		return nil
	}
	a.at += n
	return a.data[a.at-n : a.at]
}

func (a *reply) align(to int) { a.at = min((a.at+to-1)/to*to, len(a.data)) }

func (a *reply) byte() byte {
	if data := a.take(1); data != nil {
		return data[0]
	}
	return 0
}

func (a *reply) word() uint32 {
	a.align(4)
	if data := a.take(4); data != nil {
		return binary.LittleEndian.Uint32(data)
	}
	return 0
}

func (a *reply) text() string {
	s := string(a.take(int(a.word())))
	a.take(1)
	return s
}

func (a *reply) signature() string {
	s := string(a.take(int(a.byte())))
	a.take(1)
	return s
}
