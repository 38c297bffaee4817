package filetree

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
)

// FileContent is what a name holds: nothing, a file or a link.
type FileContent struct {
	Kind   ContentKind `json:"kind"`
	Target string      `json:"target,omitempty"` // for a link
	SHA256 string      `json:"sha256,omitempty"` // for a file
	Mode   os.FileMode `json:"mode,omitempty"`
	UID    int         `json:"uid,omitempty"`
	GID    int         `json:"gid,omitempty"`
	ACL    []byte      `json:"acl,omitempty"` // value of the attribute ACLName

	Data []byte `json:"-"` // for a file
}

// ACLName is the extended attribute of a file's POSIX ACL. In the mode of a file that has one, the
// group's bits are the ACL's mask, and not what the owning group may do.
const ACLName = "system.posix_acl_access"

// ContentKind is one of the constants below.
type ContentKind string

const (
	Nothing ContentKind = "nothing"
	Regular ContentKind = "file"
	Link    ContentKind = "link"
)

// Same compares kind, target and hash. It leaves out owner and mode, because an administrator may
// change those.
func (c FileContent) Same(o FileContent) bool {
	return c.Kind == o.Kind && c.Target == o.Target && c.SHA256 == o.SHA256
}

// SameAll compares owner, mode and ACL, too.
func (c FileContent) SameAll(o FileContent) bool {
	return c.Same(o) && c.Mode == o.Mode && c.UID == o.UID && c.GID == o.GID && bytes.Equal(c.ACL, o.ACL)
}

// NewFile is a file with this content, and with the mode, owner and ACL of like if that is a file.
func NewFile(data []byte, like FileContent) FileContent {
	c := FileContent{Kind: Regular, Mode: 0o644, Data: data, SHA256: Hash(data)}
	if like.Kind == Regular {
		c.Mode, c.UID, c.GID, c.ACL = like.Mode, like.UID, like.GID, like.ACL
	}
	return c
}

// AsClosedAs is c with no more permissions than o has. If only o's group and its ACL may read o,
// c gets both.
func (c FileContent) AsClosedAs(o FileContent) FileContent {
	if o.Kind != Regular {
		return c
	}
	c.Mode &= o.Mode
	if c.Mode&0o070 != 0 && o.Mode&0o004 == 0 {
		c.GID, c.ACL = o.GID, o.ACL
	}
	return c
}

// Hash is the SHA-256 of a content, in hexadecimal digits.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
