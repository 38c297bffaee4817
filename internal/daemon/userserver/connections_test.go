package userserver

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

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
	return err == io.EOF && !c.tooMany
}

// firstUID is the first of those of a run of TestUsersOfADirectory: answers about users are kept.
var firstUID uint32 = 4_000_000_000

// TestUsersOfADirectory: a user whom only a directory service knows has connections of its own,
// however many the uids without a name have, and while the service does not answer all others have
// theirs.
func TestUsersOfADirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while a program runs
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
	})
}

// TestDirectoryThatFails: a user whom it knew before has the connections of a user. Those of others
// stay unresolved.
func TestDirectoryThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while a program runs
		firstUID += 1000
		erna, otto := firstUID, firstUID+1
		daemontest.Directory(t, "exit 1",
			fmt.Sprintf("case $2 in %d) echo erna:x:$2:;; *) exit 1;; esac", erna))
		b := &bounded{open: map[pool]int{}}
		if !b.connects(erna).served() || !b.connects(otto).served() {
			t.Error("a first connection is not served")
		}
		if b.open[pool(erna)] != 1 || b.open[unresolved] != 1 || b.all != 2 {
			t.Errorf("%d connections are counted: %v", b.all, b.open)
		}
	})
}

// TestTooManyConnectionsAreClosed without an answer, also if the user's name is known only when the
// request is read.
func TestTooManyConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while a program runs
		firstUID += 1000
		erna := firstUID
		daemontest.Directory(t, "exit 1", "echo erna:x:$2:")
		b := &bounded{open: map[pool]int{pool(erna): maxOfUser}, all: maxOfUser}
		client, conn := net.Pipe()
		accepted := make(oneConnection, 1)
		accepted <- b.enter(conn, erna)
		close(accepted)
		go func() { _ = (&http.Server{Handler: http.NotFoundHandler()}).Serve(accepted) }()
		go func() { _, _ = client.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }()
		if text, err := io.ReadAll(client); len(text) > 0 || err != nil {
			t.Errorf("the client reads %q, %v", text, err)
		}
	})
}

// oneConnection is a listener that accepts one connection.
type oneConnection chan net.Conn

func (l oneConnection) Accept() (net.Conn, error) {
	if c, is := <-l; is {
		return c, nil
	}
	return nil, io.EOF
}

func (l oneConnection) Close() error   { return nil }
func (l oneConnection) Addr() net.Addr { return &net.UnixAddr{} }
