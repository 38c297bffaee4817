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

// Listening says which process listens on the port of [daemon].listen.
type Listening struct {
	Ours   bool     // gpuledgerd listens there
	Others []uint32 // the users of sockets that listen there and are not gpuledgerd's
}

// listening looks for a listener at the address in the kernel's list of sockets, in the network
// namespace of process pid; 0 is this process. The kernel says whose socket it is, so the
// listener's own answer does not matter. Only root can listen on a path.
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
		// the file has some megabytes if there are ten thousands of connections
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

// lookupTime is the time limit for the look-up of a name.
const lookupTime = 2 * time.Second

// addressesOf are the addresses of a host. None means all addresses: for an empty host, or a name
// without an address.
func addressesOf(host string) (all []netip.Addr) {
	ctx, done := context.WithTimeout(context.Background(), lookupTime)
	defer done()
	found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // also parses an address
	for _, a := range found {
		if a = a.Unmap(); a.IsUnspecified() {
			return nil
		}
		all = append(all, a) // without its zone
	}
	return all
}

// listens parses a line of /proc/PID/net/tcp (Documentation/networking/proc_net_tcp.rst); state 0A
// is LISTEN. A listener at another address of the machine does not conflict with the daemon's.
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

// reaches reports whether a listener at a local address gets connections to one of the addresses.
// The kernel prints an address as numbers of 32 bits, each in the machine's byte order. A listener
// at :: also gets IPv4 unless its socket excludes that, which the kernel does not print.
func reaches(local string, addresses []netip.Addr) bool {
	bytes, err := hex.DecodeString(local)
	for word := bytes; len(word) >= 4; word = word[4:] {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	at, known := netip.AddrFromSlice(bytes)
	if err != nil || !known || len(addresses) == 0 {
		return true // an address that cannot be parsed may be the one
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

// listener reports whether the listener at the address is another program than gpuledgerd.
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
