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
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// The names of files as CDI's own library makes them: from a kind, or from a kind and the id of a
// grant.
const (
	gpuFile     = "gpuledger.dev-gpu.json"
	askFile     = "gpuledger.dev-ask.json"
	grantPrefix = "gpuledger.dev-grant_"
	suffix      = ".json"

	gpuMode   = 0o644
	grantMode = 0o600 // it contains a secret; engines read it as root

	maxFile = 4 << 20
)

// Path is the path of the GPUs' file.
func (f Files) Path() string { return filepath.Join(f.Node.Policy.CDI.Dir, gpuFile) }

// askPath is the path of the file of sizes.
func (f Files) askPath() string { return filepath.Join(f.Node.Policy.CDI.Dir, askFile) }

// GrantPath is the path of a grant's file.
func (f Files) GrantPath(id grant.ID) string {
	return filepath.Join(f.Node.Policy.CDI.Dir, grantPrefix+string(id)+suffix)
}

// Ready makes the directory if it is missing. It refuses a directory that others may write into:
// engines run as root the hooks that they find there, and another user could replace a file.
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
			"cannot write CDI files: others than root may write into %s, and engines run what they find "+
				"there as root", dir)
	}
	return nil
}

// Expose writes the file of a grant and returns its path.
func (f Files) Expose(r grant.Reference) (string, error) {
	return f.ExposeWith(r, func(id grant.ID) error { return grants.Prepare(f.Node, id) })
}

// ExposeWith is Expose with another function in place of grants.Prepare, for a caller that prepares
// several grants at once.
func (f Files) ExposeWith(r grant.Reference, prepare func(grant.ID) error) (string, error) {
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
	if err := prepare(r.ID); err != nil {
		return "", err
	}
	path := f.GrantPath(r.ID)
	return path, host.ReplaceFile(path, content, grantMode, host.Durable)
}

// Forget removes the file of a grant, if it has one.
func (f Files) Forget(id grant.ID) error {
	if err := os.Remove(f.GrantPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the grant's CDI file: %w", err)
	}
	return nil
}

// Sweep removes drafts of grants' files that killed writers have left, if they were last written
// before since. A draft contains a secret.
func (f Files) Sweep(since time.Time) error {
	if err := host.RemoveDrafts(f.Node.Policy.CDI.Dir, grantPrefix, since); err != nil {
		return fmt.Errorf("cannot remove drafts of CDI files: %w", err)
	}
	return nil
}

// Encode returns a spec as JSON, which is also YAML.
func Encode(spec *cdispec.Spec) ([]byte, error) {
	content, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot write a CDI file: %w", err)
	}
	return append(content, '\n'), nil
}

// cdiFile is a CDI file of gpuledger's with its current and its intended content.
type cdiFile struct {
	path      string
	grant     grant.ID // its grant; "": the file of the GPUs or of sizes
	mode      os.FileMode
	have      []byte // nil: the file does not exist
	want      []byte // nil: the file should not exist
	unchanged bool
	info      fs.FileInfo   // when have was read; nil: the file did not exist
	spec      *cdispec.Spec // have, parsed; nil if it cannot be parsed
}

// plan inspects all files and determines their intended content.
func (f Files) plan() (files []cdiFile, notes []string, err error) {
	spec, notes, err := f.GPUs()
	if err != nil {
		return nil, nil, err
	}
	gpus := inspect(f.Path(), gpuMode)
	if spec != nil {
		if gpus.want, err = Encode(spec); err != nil {
			return nil, nil, err
		}
	}
	files = append(files, gpus)
	asks := inspect(f.askPath(), gpuMode)
	asked, err := f.Asks()
	if err != nil {
		return nil, nil, err
	}
	if asked != nil {
		if asks.want, err = Encode(asked); err != nil {
			return nil, nil, err
		}
	}
	if asks.want != nil || asks.have != nil {
		files = append(files, asks)
	}
	ids, err := f.exposed()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		g := inspect(f.GrantPath(id), grantMode)
		g.grant = id
		if g.want, err = f.rebuilt(id, g); err != nil {
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

// inspect reads a file. An existing file that cannot be read is replaced later.
func inspect(path string, mode os.FileMode) cdiFile {
	l := cdiFile{path: path, mode: mode}
	info, err := os.Lstat(path)
	if err != nil {
		l.unchanged = true // it does not exist
		return l
	}
	l.info, l.unchanged = info, info.Mode() == mode
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

// rebuilt returns the new content of a grant's file, because device numbers may have changed. The
// secret is only in the file itself. The content is nil if the grant has ended, or if gpuledger did
// not write the file for it. With an error the file stays as it is.
func (f Files) rebuilt(id grant.ID, l cdiFile) ([]byte, error) {
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

// reference returns the reference that names the device in a grant's file.
func (l cdiFile) reference() (grant.Reference, bool) {
	if l.spec == nil || len(l.spec.Devices) != 1 {
		return grant.Reference{}, false
	}
	r, err := grant.ParseReference(l.spec.Devices[0].Name)
	return r, err == nil
}
