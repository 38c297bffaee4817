package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// The files' names are those that CDI's own library makes of a kind, and of a kind and what its
// file lives with.
const (
	gpuFile     = "gpuledger.dev-gpu.json"
	grantPrefix = "gpuledger.dev-grant_"
	suffix      = ".json"

	gpuMode   = 0o644
	grantMode = 0o600 // it holds a secret; engines read it as root

	maxFile = 4 << 20
)

// Path is where the file of the GPUs lies.
func (f Files) Path() string { return filepath.Join(f.Node.Policy.CDI.Dir, gpuFile) }

// GrantPath is where a grant's file lies.
func (f Files) GrantPath(id grant.ID) string {
	return filepath.Join(f.Node.Policy.CDI.Dir, grantPrefix+string(id)+suffix)
}

// Ready makes the directory where there is none, and refuses one that others may write into:
// engines run the hooks that they find there as root, and a file of ours could be replaced.
func (f Files) Ready() error {
	dir := f.Node.Policy.CDI.Dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot write CDI files: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cannot write CDI files: %w", err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if info.Mode().Perm()&0o022 != 0 || owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf(
			"cannot write CDI files: others than root may write into %s, and engines run what they find there as root", dir)
	}
	return nil
}

// Expose writes the file of a grant and returns its path.
func (f Files) Expose(r grant.Reference) (string, error) {
	if err := f.Ready(); err != nil {
		return "", err
	}
	spec, err := f.Grant(r)
	if err != nil {
		return "", err
	}
	content, err := Encode(spec)
	if err != nil {
		return "", err
	}
	if err := f.Node.Prepare(r.ID); err != nil {
		return "", err
	}
	path := f.GrantPath(r.ID)
	return path, host.ReplaceFile(path, content, grantMode, host.Durable)
}

// Forget removes the file of a grant, where it has one.
func (f Files) Forget(id grant.ID) error {
	if err := os.Remove(f.GrantPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the grant's CDI file: %w", err)
	}
	return nil
}

// Sweep removes what a killed writer has left of grants' files: drafts, with a secret in them, that
// nobody has written to since then.
func (f Files) Sweep(since time.Time) error {
	if err := host.RemoveDrafts(f.Node.Policy.CDI.Dir, grantPrefix, since); err != nil {
		return fmt.Errorf("cannot remove drafts of CDI files: %w", err)
	}
	return nil
}

// Encode writes a spec as JSON, which is YAML too.
func Encode(spec *cdispec.Spec) ([]byte, error) {
	content, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot write a CDI file: %w", err)
	}
	return append(content, '\n'), nil
}

// file is one of our files as it is and as it should be.
type file struct {
	path      string
	grant     grant.ID // whose it is; "" for the GPUs'
	mode      os.FileMode
	have      []byte // nil: it is not there
	want      []byte // nil: it should not be
	unchanged bool
	spec      *cdispec.Spec // what stands in it; nil where that can't be read
}

// plan looks at all of our files and says what each should be.
func (f Files) plan() (files []file, notes []string, err error) {
	spec, notes, err := f.GPUs()
	if err != nil {
		return nil, nil, err
	}
	gpus := look(f.Path(), gpuMode)
	if spec != nil {
		if gpus.want, err = Encode(spec); err != nil {
			return nil, nil, err
		}
	}
	files = append(files, gpus)
	ids, err := f.exposed()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		g := look(f.GrantPath(id), grantMode)
		g.grant = id
		if g.want, err = f.again(id, g); err != nil {
			notes = append(notes, fmt.Sprintf("%s is left as it is: %v", g.path, err))
			g.want = g.have
		}
		files = append(files, g)
	}
	for i := range files {
		files[i].unchanged = files[i].unchanged && bytes.Equal(files[i].have, files[i].want)
	}
	return files, notes, nil
}

// look reads a file of ours. One that is there and can't be read is to be replaced.
func look(path string, mode os.FileMode) file {
	l := file{path: path, mode: mode}
	info, err := os.Lstat(path)
	if err != nil {
		l.unchanged = true // nothing there
		return l
	}
	l.unchanged = info.Mode() == mode
	l.have = []byte{}
	if info.Mode().IsRegular() {
		if content, err := host.ReadFile(path, maxFile); err == nil {
			l.have = content
		}
	}
	var spec cdispec.Spec
	if json.Unmarshal(l.have, &spec) == nil {
		l.spec = &spec
	}
	return l
}

// exposed lists the grants that have a file.
func (f Files) exposed() ([]grant.ID, error) {
	entries, err := os.ReadDir(f.Node.Policy.CDI.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list CDI files: %w", err)
	}
	var ids []grant.ID
	for _, e := range entries {
		name, found := strings.CutPrefix(e.Name(), grantPrefix)
		if id, err := grant.ParseID(strings.TrimSuffix(name, suffix)); found &&
			strings.HasSuffix(name, suffix) && err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// again makes a grant's file anew: device numbers may be others by now. The secret stands nowhere
// but in the file. Nil is the content where the grant's time is over, or the file is not one that
// we wrote for it. An error leaves it as it is.
func (f Files) again(id grant.ID, l file) ([]byte, error) {
	reference, found := l.reference()
	if !found || reference.ID != id {
		return nil, nil
	}
	spec, err := f.Grant(reference)
	var (
		notFound *grant.NotFoundError
		refusal  *grant.Refusal
		damaged  *ledger.DamagedError
	)
	switch {
	case errors.As(err, &damaged):
		return nil, err
	case errors.As(err, &notFound):
		return nil, nil
	case errors.As(err, &refusal) && refusal.Code == grant.GrantExpired:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return Encode(spec)
}

// reference is what a grant's file is named by inside.
func (l file) reference() (grant.Reference, bool) {
	if l.spec == nil || len(l.spec.Devices) != 1 {
		return grant.Reference{}, false
	}
	r, err := grant.ParseReference(l.spec.Devices[0].Name)
	return r, err == nil
}
