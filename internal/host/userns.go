package host

import (
	"errors"
	"io/fs"
)

// initialUserNamespace is the inode of the user namespace that a machine boots with (USER_NS_INIT_INO,
// include/uapi/linux/nsfs.h; the same number since Linux 3.8). A map of ids tells less: that of a nested namespace can be
// the identity.
const initialUserNamespace = 0xeffffffd

// InitialUserNamespace reports whether the caller is in the machine's first user namespace. In any other the kernel lets
// no runtime set device rules. A kernel without user namespaces has only this one. Where it cannot be told, it is another.
func (h Host) InitialUserNamespace() bool {
	ns, err := h.namespace("user")
	return err == nil && ns == initialUserNamespace || errors.Is(err, fs.ErrNotExist)
}

// IsRoot reports whether the caller is the machine's root, and not that of a user namespace.
func (h Host) IsRoot() bool { return h.UID == 0 && h.InitialUserNamespace() }
