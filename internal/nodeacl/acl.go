package nodeacl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// The tags of entries and the version of a POSIX ACL as the kernel keeps it in an extended
// attribute (include/uapi/linux/posix_acl.h, posix_acl_xattr.h).
const (
	attribute  = "system.posix_acl_access"
	aclVersion = 2

	ownerTag = 0x01
	userTag  = 0x02
	groupTag = 0x04
	maskTag  = 0x10
	otherTag = 0x20
	noID     = ^uint32(0)

	readWrite = 0o6
)

// aclEntry is an entry as the kernel writes it.
type aclEntry struct {
	Tag, Perm uint16
	ID        uint32
}

// acl is a file's access list, sorted by tag and id.
type acl []aclEntry

// minimal returns the list that a mode stands for.
func minimal(mode uint32) acl {
	return acl{{ownerTag, uint16(mode >> 6 & 7), noID}, {groupTag, uint16(mode >> 3 & 7), noID},
		{otherTag, uint16(mode & 7), noID}}
}

func decode(data []byte) (a acl, err error) {
	if len(data) < 4 || (len(data)-4)%8 != 0 || binary.LittleEndian.Uint32(data) != aclVersion {
		return nil, errors.New("the kernel returned an access list of another form")
	}
	for data = data[4:]; len(data) > 0; data = data[8:] {
		a = append(a, aclEntry{binary.LittleEndian.Uint16(data), binary.LittleEndian.Uint16(data[2:]),
			binary.LittleEndian.Uint32(data[4:])})
	}
	return a, nil
}

func (a acl) encode() []byte {
	data := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range a {
		data = binary.LittleEndian.AppendUint16(data, e.Tag)
		data = binary.LittleEndian.AppendUint16(data, e.Perm)
		data = binary.LittleEndian.AppendUint32(data, e.ID)
	}
	return data
}

// of returns the index of an entry, -1 without one.
func (a acl) of(tag uint16, id uint32) int {
	return slices.IndexFunc(a, func(e aclEntry) bool { return e.Tag == tag && e.ID == id })
}

// with returns the list with a user who may read and write. Entries of others keep what they allow:
// those that the mask had narrowed are written as narrow before the mask is widened.
func (a acl) with(user uint32) acl {
	next := a.without(user)
	named := func(e aclEntry) bool { return e.Tag != ownerTag && e.Tag != otherTag && e.Tag != maskTag }
	mask := aclEntry{maskTag, readWrite, noID}
	if i := next.of(maskTag, noID); i >= 0 {
		for k := range next {
			if named(next[k]) {
				next[k].Perm &= next[i].Perm
			}
		}
		mask.Perm |= next[i].Perm
		next = slices.Delete(next, i, i+1)
	}
	for _, e := range next {
		if named(e) {
			mask.Perm |= e.Perm
		}
	}
	next = append(next, aclEntry{userTag, readWrite, user}, mask)
	slices.SortStableFunc(next, func(x, y aclEntry) int {
		return cmp.Or(cmp.Compare(x.Tag, y.Tag), cmp.Compare(x.ID, y.ID))
	})
	return next
}

// without returns the list without a user. With the last named entry goes the mask, so that the
// mode says again what the group may.
func (a acl) without(user uint32) acl {
	next := slices.DeleteFunc(slices.Clone(a),
		func(e aclEntry) bool { return e.Tag == userTag && e.ID == user })
	if !slices.ContainsFunc(next, func(e aclEntry) bool { return e.ID != noID }) {
		next = slices.DeleteFunc(next, func(e aclEntry) bool { return e.Tag == maskTag })
	}
	return next
}

// lets reports whether the list lets a user read and write by an entry of its own.
func (a acl) lets(user uint32) bool {
	i, mask := a.of(userTag, user), a.of(maskTag, noID)
	return i >= 0 && a[i].Perm&readWrite == readWrite && (mask < 0 || a[mask].Perm&readWrite == readWrite)
}

// opensAll reports whether everybody may read and write: then an entry changes nothing.
func (a acl) opensAll() bool {
	i := a.of(otherTag, noID)
	return i >= 0 && a[i].Perm&readWrite == readWrite
}

// The node is open with O_PATH, which takes no fgetxattr(2). The link in /proc leads to the same
// inode, whatever has been put at its path since.
func linkOf(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func readACL(fd int, mode uint32) (acl, error) {
	data := make([]byte, 4+8*1024)
	n, err := unix.Getxattr(linkOf(fd), attribute, data)
	if errors.Is(err, unix.ENODATA) {
		return minimal(mode), nil
	}
	if err != nil {
		return nil, err
	}
	return decode(data[:n])
}

func (a acl) write(fd int) error { return unix.Setxattr(linkOf(fd), attribute, a.encode(), 0) }
