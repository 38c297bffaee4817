package configure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// engineRecord is what configure has done, or is about to do, for one engine. It lies below the
// state directory:
//
//	configure/lock
//	configure/<engine>/record.json    which files, with hashes, mode and owner before and after
//	configure/<engine>/<hash>         their contents before and after
type engineRecord struct {
	Version int          `json:"version"`
	Engine  grant.Engine `json:"engine"`
	// the engine's main configuration file; "" for the usual one, if there is no distribution's
	Main string `json:"main,omitempty"`
	// Found says that configure found Main by the process that ran; the user did not name it.
	Found       bool         `json:"found,omitempty"`
	Default     string       `json:"default,omitempty"`     // the former default handler, if a file named it
	Files       []fileRecord `json:"files"`                 // in the order in which they are changed
	Directories []string     `json:"directories,omitempty"` // that configure made

	// Unread are daemons of the engine that have run since before configure, so they do not call
	// gpuledger.
	Unread []grant.Process `json:"unread,omitempty"`
	// Older are daemons of the engine that ran when configure changed the engine's files the last
	// time, so they have not read them.
	Older []grant.Process `json:"older,omitempty"`
	// Undone are daemons that call gpuledger until their restart, after the engine's files were
	// restored.
	Undone []grant.Process `json:"undone,omitzero"`
}

// isOver reports whether nothing is left to undo: no file, and no daemon that calls gpuledger.
func (r engineRecord) isOver() bool { return len(r.Files) == 0 && len(r.Undone) == 0 }

// startedWith is replaced in tests.
var startedWith = engines.Installation.StartedWith

// mainFile is the engine's main file; see Installation.FindFile. One that was found by the process
// that ran then counts until the engine is started with another one.
func (r engineRecord) mainFile(in engines.Installation) (string, error) {
	if r.Found && in.File == "" {
		if file, runs := startedWith(in); runs {
			return file, nil
		}
	}
	return in.FindFile(r.Main)
}

// fileRecord is one file of a record.
type fileRecord struct {
	Path   string               `json:"path"`
	Name   string               `json:"name"` // Path without symbolic links
	Before filetree.FileContent `json:"before"`
	After  filetree.FileContent `json:"after"`
	// the content that the file has while dockerd reads it; see Reload
	Reload filetree.FileContent `json:"reload,omitzero"`
	// Before also has lines of gpuledger's, which could not be told apart from others'
	Mixed bool `json:"mixed,omitempty"`
	// gpuledger's own configuration: every engine that is configured needs it
	Shared bool `json:"shared,omitempty"`
	// gpuledger's own file with a copy of what other files of the engine say; see sectionSource
	Copies bool `json:"copies,omitempty"`
}

// isCopy reports whether the file would not exist without gpuledger, and copies other files of the
// engine. containerd 1.x takes the last file's section alone, so a part of the copy, such as a
// value that others have changed there since, would replace the whole section of those files.
func (e fileRecord) isCopy() bool { return e.Copies && e.Before.Kind == filetree.Nothing }

// store is the directory of the records, under a lock.
type store struct {
	system filetree.System
	dir    string // on this machine
	lock   int
}

// openStore locks the records below the state directory, because two calls at once would undo each
// other's work.
func openStore(s filetree.System, stateDir string) (*store, error) {
	resolved, err := s.Resolve(stateDir)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.Host(resolved), "configure")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot keep what is there now: %w", err)
	}
	lock, err := unix.Open(filepath.Join(dir, "lock"),
		unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(lock)
		return nil, fmt.Errorf("cannot lock %s: another `gpuledger configure` runs", dir)
	}
	return &store{system: s, dir: dir, lock: lock}, nil
}

func (s *store) close() { _ = unix.Close(s.lock) }

func (s *store) engineDir(engine grant.Engine) string {
	return filepath.Join(s.dir, engines.Of(engine).Name)
}

// load reads an engine's record with the contents that it names. The error is fs.ErrNotExist if
// there is no record.
func (s *store) load(engine grant.Engine) (engineRecord, error) {
	var r engineRecord
	dir := s.engineDir(engine)
	text, err := host.ReadFile(filepath.Join(dir, "record.json"), filetree.MaxSize)
	if err != nil {
		return r, fmt.Errorf("cannot read the record of %s: %w", engines.Of(engine).Name, err)
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Version != 1 {
		return r,
			fmt.Errorf("cannot read %s/record.json: version %d, %v; the original files lie beside it, by "+
				"their SHA-256", dir, r.Version, err)
	}
	for i, e := range r.Files {
		if name, err := s.system.Resolve(e.Path); err == nil && e.After.Kind == filetree.Regular {
			// a link may lead elsewhere since, as a snap's link to its current revision
			r.Files[i].Name = name
		}
		for _, c := range []*filetree.FileContent{&r.Files[i].Before, &r.Files[i].After, &r.Files[i].Reload} {
			if c.Kind != filetree.Regular {
				continue
			}
			if c.Data, err = host.ReadFile(filepath.Join(dir, c.SHA256), filetree.MaxSize); err != nil ||
				filetree.Hash(c.Data) != c.SHA256 {
				return r, fmt.Errorf("cannot trust what %s keeps of %s: %v", dir, r.Files[i].Path,
					errors.Join(err, errors.New("its hash is another")))
			}
		}
	}
	return r, s.endReload(r)
}

// save makes a record durable: first the contents, then the file that names them. It removes a
// record that is over.
func (s *store) save(r engineRecord) error {
	dir := s.engineDir(r.Engine)
	if r.isOver() {
		if err := os.Remove(filepath.Join(dir, "record.json")); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return s.sweep(r)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, e := range r.Files {
		for _, c := range []filetree.FileContent{e.Before, e.After, e.Reload} {
			if c.Kind == filetree.Regular {
				if err := host.ReplaceFile(filepath.Join(dir, c.SHA256), c.Data, 0o600,
					host.Durable); err != nil {
					return err
				}
			}
		}
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := host.ReplaceFile(filepath.Join(dir, "record.json"), append(text, '\n'), 0o600,
		host.Durable); err != nil {
		return err
	}
	return errors.Join(syncDir(s.dir), s.sweep(r))
}

// sweep removes contents that the record no longer names.
func (s *store) sweep(r engineRecord) error {
	dir := s.engineDir(r.Engine)
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	keep := []string{}
	for _, e := range r.Files {
		keep = append(keep, e.Before.SHA256, e.After.SHA256, e.Reload.SHA256)
	}
	for _, n := range names {
		if n.Name() != "record.json" && !slices.Contains(keep, n.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, n.Name())))
		}
	}
	if r.isOver() {
		err = errors.Join(err, os.Remove(dir), syncDir(s.dir))
	}
	return err
}

// others are the records of other engines. gpuledger's configuration, which several engines change,
// is restored when the last of them is undone.
func (s *store) others(engine grant.Engine) ([]engineRecord, error) {
	var records []engineRecord
	for _, e := range engines.All {
		if e == engine {
			continue
		}
		r, err := s.load(e)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			records = append(records, r)
		}
	}
	return records, nil
}

// readRecord is what configure has done for an engine, empty if nothing. It also returns the other
// engines that are configured. It takes no lock.
func readRecord(in engines.Installation, stateDir string) (engineRecord, []grant.Engine, error) {
	dir, err := in.System.Resolve(stateDir)
	if err != nil {
		return engineRecord{}, nil, err
	}
	var others []grant.Engine
	for _, e := range engines.All {
		if e != in.Engine &&
			in.System.Exists(filepath.Join(dir, "configure", engines.Of(e).Name, "record.json")) {
			others = append(others, e)
		}
	}
	s := store{system: in.System, dir: filepath.Join(in.System.Host(dir), "configure")}
	r, err := s.load(in.Engine)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r, others, err
}
