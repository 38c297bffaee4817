// Package nodeacl lets users of the node open the device nodes of the GPUs that they are granted,
// by POSIX ACLs, for as long as the grants live (docs/adr/0095).
package nodeacl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Manager is the manager of the users' access to device nodes.
type Manager struct {
	Node   func() *node.Node
	Ledger func(*node.Node) (grants.Overview, error)

	mu sync.Mutex // of a pass
}

// Name returns the manager's name.
func (m *Manager) Name() string { return "user nodes" }

// Stop leaves the access lists as they are: users go on while gpuledgerd restarts.
func (m *Manager) Stop() {}

// Ensure gives each user with a grant access to the nodes of its GPUs, and takes back what has been
// given for grants that are over.
func (m *Manager) Ensure(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.Node()
	if n.Policy.Enforcement.UserNodes != grant.UserNodesACL {
		return Close(n)
	}
	o, err := m.Ledger(n)
	if err != nil {
		return err
	}
	want, problem := wanted(o, n.Host), error(nil)
	if o.Problem != nil { // by what the inventory says nothing is given, but what is over is taken back
		problem = errors.New(o.Problem.Message)
		if want, err = stillGiven(n.Policy.RunDir, o, want); err != nil {
			return errors.Join(problem, err)
		}
	}
	return errors.Join(problem, apply(n.Policy.RunDir, want), opened(n.Host))
}

// stillGiven returns what has been given of the access that is wanted by an unusable inventory. If
// that lacks a device of a user's grants, it is all that the user was given.
func stillGiven(runDir string, o grants.Overview, want []access) ([]access, error) {
	ours, err := recorded(recordOf(runDir))
	return slices.DeleteFunc(ours, func(a access) bool {
		return !slices.Contains(want, a) && !slices.ContainsFunc(o.Grants, func(g grant.Grant) bool {
			return g.User == a.User && gives(g, o.Now) && !knows(o.Inventory, g)
		})
	}), err
}

// knows reports whether the inventory has all devices of a grant.
func knows(inv grant.Inventory, g grant.Grant) bool {
	return !slices.ContainsFunc(g.GPUs, func(s grant.Share) bool {
		_, known := inv.Device(s.UUID)
		return !known
	})
}

// gives reports whether a grant gives its user access. One that is over goes on for a program that
// has a GPU open already, and opens nothing new.
func gives(g grant.Grant, now time.Time) bool {
	return g.User != 0 && !g.Draining && !g.Expired(now) && g.Live(now)
}

// opened says that the driver opens its nodes to users again.
func opened(h host.Host) error {
	given, sets := h.DriverNodePermissions()
	if !sets || !given.OpenToUsers() {
		return nil
	}
	return fmt.Errorf("cannot keep users from GPUs that they are not granted: the driver gives its nodes "+
		"%s whenever a program of root uses a GPU; set options nvidia NVreg_DeviceFileMode=0660 "+
		"NVreg_DeviceFileUID=0 NVreg_DeviceFileGID=0 in /etc/modprobe.d and load the driver anew", given)
}

// Close takes back all access that has been given.
func Close(n *node.Node) error { return apply(n.Policy.RunDir, nil) }

// access is what a user has been given: a node, by its path and its number.
type access struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	User  uint32 `json:"user"`
}

// wanted returns the access that the ledger's grants give.
func wanted(o grants.Overview, h host.Host) (all []access) {
	for _, g := range o.Grants {
		if !gives(g, o.Now) {
			continue
		}
		nodes := admission.ControlNodes(o.Inventory)
		for _, s := range g.GPUs {
			if d, known := o.Inventory.Device(s.UUID); known {
				nodes = append(nodes, admission.DeviceNodes(o.Inventory, d)...)
			}
		}
		for _, d := range nodes {
			a := access{Path: filepath.Join(h.Dev, strings.TrimPrefix(d.Path, "/dev/")),
				Major: uint32(d.Major), Minor: uint32(d.Minor), User: g.User}
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

func recordOf(runDir string) string { return filepath.Join(runDir, "user-nodes.json") }

// apply gives the access that is wanted, and takes back what is recorded and not wanted. It records
// an entry before it writes it, and until it has removed it, so none of ours is forgotten. A node
// that fails keeps its record and stops no other; nor does a record that cannot be written, as
// without space, stop what is taken back.
func apply(runDir string, want []access) error {
	file := recordOf(runDir)
	before, err := recorded(file)
	if err != nil {
		return err
	}
	var failed []error
	ours := slices.DeleteFunc(slices.Clone(before), func(a access) bool {
		if slices.Contains(want, a) {
			return false
		}
		err := take(a)
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot take uid %d off %s: %w", a.User, a.Path, err))
		}
		return err == nil
	})
	if len(ours) < len(before) {
		if err := write(file, ours); err != nil {
			failed = append(failed, err)
		}
	}
	for _, a := range want {
		give := func() error { // only if it is to be written
			if slices.Contains(ours, a) {
				return nil
			}
			ours = append(ours, a)
			return write(file, ours)
		}
		if err := ensure(a, slices.Contains(ours, a), give); err != nil {
			failed = append(failed, fmt.Errorf("cannot let uid %d open %s: %w", a.User, a.Path, err))
		}
	}
	return errors.Join(failed...)
}

// ensure gives the access, after record. An entry for the user that is not ours stays as it is.
func ensure(a access, ours bool, record func() error) error {
	fd, list, err := open(a)
	if errors.Is(err, fs.ErrNotExist) { // the driver is not loaded, or makes the node when it is used
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if list.lets(a.User) || list.opensAll() || !ours && list.of(userTag, a.User) >= 0 {
		return nil
	}
	if err := record(); err != nil {
		return err
	}
	return list.with(a.User).write(fd)
}

// take removes the user's entry from a node that is still there.
func take(a access) error {
	fd, list, err := open(a)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errOther) { // its entry went with it
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if list.of(userTag, a.User) < 0 {
		return nil
	}
	return list.without(a.User).write(fd)
}

// errOther says that a path leads to something else than the node.
var errOther = errors.New("it is another file, and no device node of that number")

// open opens the node itself, not what a link at its path leads to.
func open(a access) (fd int, list acl, err error) {
	if fd, err = unix.Open(a.Path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return -1, nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil &&
		(st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(a.Major, a.Minor)) {
		err = errOther
	}
	if err == nil {
		list, err = readACL(fd, st.Mode)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, list, nil
}

func recorded(file string) (all []access, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which nodes are open to users: %w", err)
	}
	return all, nil
}

func write(file string, all []access) error {
	data, err := json.Marshal(all)
	if err == nil {
		err = host.ReplaceFile(file, data, 0o600, host.Volatile)
	}
	if err != nil {
		return fmt.Errorf("cannot record which nodes are open to users: %w", err)
	}
	return nil
}
