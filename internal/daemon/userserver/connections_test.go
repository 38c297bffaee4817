package userserver

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
)

// connects enters a connection of a user, whose client is gone already.
func (b *bounded) connects(uid uint32) *counted {
	client, conn := net.Pipe()
	_ = client.Close()
	return b.enter(conn, uid)
}

// served reports whether a connection is read from.
func (c *counted) served() bool {
	if c == nil {
		return false
	}
	_, err := c.Read(make([]byte, 1))
	return err == io.EOF
}

// firstUID is the first of those of a run of TestUsersOfADirectory: answers about users are kept.
var firstUID uint32 = 4_000_000_000

// TestUsersOfADirectory: a user whom only a directory service knows has connections of its own,
// however many the uids without a name have, and while the service does not answer all others have
// theirs.
func TestUsersOfADirectory(t *testing.T) {
	firstUID += 1000
	erna, otto := firstUID, firstUID+1
	daemontest.Directory(t, "exit 1", fmt.Sprintf(
		"case $2 in %d) echo erna:x:$2:;; %d) echo otto:x:$2:;; *) exit 2;; esac", erna, otto))
	b := &bounded{open: map[pool]int{}}
	var all []*counted
	for i := range uint32(maxOfStrangers) {
		c := b.connects(firstUID + 2 + i)
		if all = append(all, c); !c.served() {
			t.Fatalf("connection %d of uids without a name is not served", i+1)
		}
	}
	c := b.connects(firstUID + 900)
	if c.served() {
		t.Error("too many uids without a name are served")
	}
	_ = c.Close()
	for i := range maxOfUser {
		c := b.connects(erna)
		if all = append(all, c); !c.served() {
			t.Fatalf("connection %d of a user of the directory is not served", i+1)
		}
	}
	if c := b.connects(erna); c != nil {
		t.Error("a user of the directory has too many connections")
	}
	for i := range uint32(maxOfUnresolved) { // none of them is read from yet
		c := b.connects(firstUID + 901 + i)
		if all = append(all, c); c == nil {
			t.Fatalf("connection %d of an unknown uid is closed", i+1)
		}
	}
	if c := b.connects(otto); c != nil {
		t.Error("too many wait for the directory")
	}
	for _, uid := range []uint32{0, 2} { // of /etc/passwd
		c := b.connects(uid)
		if all = append(all, c); !c.served() {
			t.Errorf("uid %d is not served", uid)
		}
	}
	for _, c := range append(all, all...) {
		_ = c.Close()
	}
	if b.all != 0 || len(b.open) != 0 {
		t.Errorf("%d connections are counted: %v", b.all, b.open)
	}
	if !b.connects(otto).served() {
		t.Error("a user of the directory is not served after the flood")
	}
}
