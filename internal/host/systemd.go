package host

import (
	"time"

	"golang.org/x/sys/unix"
)

// UnitExists reports whether systemd has a unit of this name that was made by a call, as all scopes
// are. Such a unit has a file from its start until systemd forgets it (systemd.unit(5)).
func UnitExists(name string) bool {
	var st unix.Stat_t
	return unix.Lstat("/run/systemd/transient/"+name, &st) == nil
}

// ResetFailed has systemd forget a unit if it has failed, as `systemctl reset-failed` does, and
// reports whether the unit is gone. It starts no program and uses no library of D-Bus, because the
// wrapper must stay small.
func ResetFailed(name string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	// for root alone, without a bus between
	if unix.Connect(fd, &unix.SockaddrUnix{Name: "/run/systemd/private"}) != nil {
		return false
	}
	message := []byte("\x00AUTH EXTERNAL 30\r\nBEGIN\r\n")
	answer := make([]byte, 512)
	for range resetTries {
		_, err := unix.Write(fd, message)
		if err == nil {
			_, err = unix.Read(fd, answer) // what it says shows in the unit
		}
		if err != nil && err != unix.EINTR || !UnitExists(name) {
			break
		}
		// systemd reads a call only after its answer to the first line, and forgets the unit some
		// turns of its loop after the answer to the call.
		message = []byte("l\x01\x00\x01" + size(len(name)+5) + resetFailed + size(len(name)) + name + "\x00")
		time.Sleep(time.Millisecond)
	}
	return !UnitExists(name)
}

// resetTries is how often systemd is called, a millisecond after the other, before a unit counts as
// one that runs.
const resetTries = 100

// size is a length as D-Bus writes it on little-endian machines. Names of units have 255 bytes at
// most.
func size(n int) string { return string([]byte{byte(n), byte(n >> 8), 0, 0}) }

// resetFailed is the header of a call of org.freedesktop.systemd1.Manager(5), from its serial
// number on, by D-Bus' specification, "Message Format". Each field begins at a multiple of eight,
// with its code and its type.
const resetFailed = "\x01\x00\x00\x00\x77\x00\x00\x00" +
	"\x01\x01o\x00\x19\x00\x00\x00/org/freedesktop/systemd1\x00\x00\x00\x00\x00\x00\x00" +
	"\x02\x01s\x00\x20\x00\x00\x00org.freedesktop.systemd1.Manager\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\x03\x01s\x00\x0f\x00\x00\x00ResetFailedUnit\x00" +
	"\x08\x01g\x00\x01s\x00\x00"
