package grant

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"strings"
)

// ID is the public name of a grant, in logs, metrics and labels: "g-" and 12 lower-case letters.
type ID string

// Reference is what a container presents to use a grant: the id alone for a pod's grant, id and
// secret for a bearer's or a claim's.
type Reference struct {
	ID     ID
	Secret string // 32 hexadecimal digits, or empty
}

// ReferenceEnv is the environment variable with which a container presents a reference.
const ReferenceEnv = "GPULEDGER_GRANT"

// AdoptMark is in the place of a reference, in the annotation gpuledger.dev/grant, if the container
// must adopt what a scheduler allocates to it. The device plugin sets it where a scheduler places.
const AdoptMark = "adopt"

// GivenPrefix begins the annotations with the id of the grant that the device plugin gives to a
// container. The rest is the name of the resource. If a container has several resources, the
// kubelet takes the variable and the annotation with the reference from any one of them.
const GivenPrefix = "gpuledger.dev/grant-of."

const (
	idPrefix    = "g-"
	idLetters   = 12
	secretBytes = 16
)

// NewID makes an id from 16 random bytes.
func NewID(random [16]byte) ID {
	id := []byte(idPrefix)
	for _, b := range random[:idLetters] {
		id = append(id, 'a'+b%26)
	}
	return ID(id)
}

// IDBySecret makes the id of a grant whose request has a secret and whose owner has none. The
// request finds its grant by it when it is sent again. The id does not reveal the secret.
func IDBySecret(secret string) ID {
	sum := sha256.Sum256([]byte("gpuledger grant id\x00" + secret))
	return NewID([16]byte(sum[:16]))
}

// NewSecret makes a secret from 16 random bytes.
func NewSecret(random [16]byte) string { return hex.EncodeToString(random[:]) }

// SecretHash returns the hash of a secret that the ledger stores. A reader of the ledger's files
// cannot use the grant with it.
func SecretHash(secret string) string {
	sum := sha256.Sum256([]byte("gpuledger grant secret\x00" + secret))
	return hex.EncodeToString(sum[:])
}

// ParseID parses an id.
func ParseID(text string) (ID, error) {
	letters, found := strings.CutPrefix(text, idPrefix)
	ok := found && len(letters) == idLetters
	for _, c := range []byte(letters) {
		ok = ok && 'a' <= c && c <= 'z'
	}
	if !ok {
		return "", fmt.Errorf("cannot read grant id %q: want g- and %d lower-case letters", text, idLetters)
	}
	return ID(text), nil
}

// ParseReference parses ID or ID.SECRET. Its error does not repeat the text, which may contain a
// mistyped secret.
func ParseReference(text string) (Reference, error) {
	name, secret, hasSecret := strings.Cut(text, ".")
	id, err := ParseID(name)
	if err != nil {
		return Reference{},
			fmt.Errorf("cannot read grant reference: want ID or ID.SECRET as `gpuledger grant` printed it")
	}
	if hasSecret && !IsSecret(secret) {
		return Reference{}, fmt.Errorf(
			"cannot read grant reference %s: the secret after the dot is not %d hexadecimal digits", id,
			2*secretBytes)
	}
	return Reference{ID: id, Secret: secret}, nil
}

// IsSecret reports whether a text has the form of a reference's secret: 32 lower-case hexadecimal
// digits.
func IsSecret(text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == secretBytes && strings.ToLower(text) == text
}

// String returns the reference as a container presents it, with its secret. Never log it; log the
// ID.
func (r Reference) String() string {
	if r.Secret == "" {
		return string(r.ID)
	}
	return string(r.ID) + "." + r.Secret
}

// Opens reports whether the reference is proof for a grant whose secret has this hash.
func (r Reference) Opens(hash string) bool {
	return r.Secret != "" && subtle.ConstantTimeCompare([]byte(SecretHash(r.Secret)), []byte(hash)) == 1
}
