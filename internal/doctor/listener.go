package doctor

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Listening is who has the port of [daemon].listen.
type Listening struct {
	Ours   bool     // gpuledgerd listens there
	Others []uint32 // the users of sockets that listen there and are not gpuledgerd's
}

// listening looks for who answers at the address in the kernel's list of sockets, as a process sees
// it: 0 is this one. Whose they are the kernel says, and not who answers. A path is nobody's but
// root's.
func listening(address string, pid int, h host.Host) (l Listening) {
	where, name, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, "unix:") {
		return l
	}
	port, err := net.LookupPort("tcp", name)
	if err != nil {
		return l
	}
	addresses := addressesOf(where)
	of := "self"
	if pid != 0 {
		of = strconv.Itoa(pid)
	}
	held := socketsOf(filepath.Join(h.Proc, of, "fd"))
	for _, file := range []string{"tcp", "tcp6"} {
		// some megabytes where there are ten thousands of connections
		text, err := os.ReadFile(filepath.Join(h.Proc, of, "net", file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			inode, uid, found := listens(line, addresses, port)
			switch {
			case !found:
			case pid != 0 && slices.Contains(held, inode):
				l.Ours = true
			default:
				l.Others = append(l.Others, uid)
			}
		}
	}
	return l
}

// lookupTime is how long names may take to be looked up.
const lookupTime = 2 * time.Second

// addressesOf are those of a host; none: all, as where it is none or a name that nobody knows.
func addressesOf(host string) (all []netip.Addr) {
	ctx, done := context.WithTimeout(context.Background(), lookupTime)
	defer done()
	found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // one that is an address, too
	for _, a := range found {
		if a = a.Unmap(); a.IsUnspecified() {
			return nil
		}
		all = append(all, a) // without its zone
	}
	return all
}

// listens reads a line of /proc/PID/net/tcp (Documentation/networking/proc_net_tcp.rst): state 0A
// is LISTEN. Who listens at another address of the machine does so beside the daemon.
func listens(line string, addresses []netip.Addr, port int) (inode string, uid uint32, found bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != "0A" {
		return "", 0, false
	}
	local, number, _ := strings.Cut(fields[1], ":")
	at, err := strconv.ParseUint(number, 16, 16)
	if err != nil || int(at) != port || !reaches(local, addresses) {
		return "", 0, false
	}
	user, err := strconv.ParseUint(fields[7], 10, 32)
	return fields[9], uint32(user), err == nil
}

// reaches reports whether a listener at a local address is found at one of the addresses. The
// kernel writes it as numbers of 32 bits, each in its own byte order. One at :: has IPv4, too,
// unless it wants not to, which is not told.
func reaches(local string, addresses []netip.Addr) bool {
	bytes, err := hex.DecodeString(local)
	for word := bytes; len(word) >= 4; word = word[4:] {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	at, known := netip.AddrFromSlice(bytes)
	if err != nil || !known || len(addresses) == 0 {
		return true // what cannot be read may be he
	}
	at = at.Unmap()
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return a == at || at.IsUnspecified() && (at.Is6() || a.Is4())
	})
}

// socketsOf are the inodes of the sockets that a process has open.
func socketsOf(dir string) (inodes []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(dir, e.Name()))
		if inode, isSocket := strings.CutPrefix(target, "socket:["); isSocket {
			inodes = append(inodes, strings.TrimSuffix(inode, "]"))
		}
	}
	return inodes
}

// listener says where what answers at the address is not gpuledgerd.
func listener(f Facts) []Line {
	address, hint := f.Policy.Daemon.Listen,
		"find it with `ss -ltnp`; where programs of others run on the node, set daemon.listen = "+
			"\"unix:/run/gpuledger/status.sock\""
	_, _, err := net.SplitHostPort(address)
	switch {
	case err != nil || strings.HasPrefix(address, "unix:"):
		return nil
	case len(f.Listening.Others) > 0 && !f.Listening.Ours:
		return []Line{{Status: Problem,
			Message: fmt.Sprintf("a program of user %d listens on %s, which is gpuledgerd's: what is "+
				"scraped and seen there comes from it", f.Listening.Others[0], address), Hint: hint}}
	case f.Daemon != 0 && !f.Listening.Ours:
		return []Line{{Status: Warning, Message: "gpuledgerd runs and does not listen on " + address +
			": there are no metrics and no status page", Hint: "its log says why"}}
	}
	return nil
}
