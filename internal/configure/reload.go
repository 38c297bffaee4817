package configure

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// These are replaced in tests.
var (
	askDocker  = engines.AskDocker
	reloadTime = 30 * time.Second // that dockerd has to read its file; it runs every runtime meanwhile
)

// Reload makes an engine read its files by restart.
//
// At a reload dockerd keeps its default runtime and its runtimes if daemon.json does not name them
// (reloadPlatform in moby's daemon/reload_unix.go). If daemon.json names runtimes without the one
// that is dockerd's default, Docker 20.10 dies, and later ones refuse the file. So while dockerd
// reads it, daemon.json names both, and then it has its former content again. Reload fails if
// dockerd does not say in time that it has them (*UnknownError), or says that it has not.
func Reload(o Options, stateDir string, restart func() error) error {
	in := o.Installation()
	running := daemonsOf(in)
	if in.Engine != grant.Docker || len(running) == 0 {
		return restart()
	}
	s, err := openStore(in.System, stateDir)
	if err != nil {
		return err
	}
	defer s.close()
	r, err := s.load(in.Engine)
	if errors.Is(err, fs.ErrNotExist) {
		return restart() // dockerd has nothing of gpuledger's
	}
	if err != nil {
		return err
	}
	name, now, err := in.System.Load(in.MainFile())
	if err != nil {
		return err
	}
	d, err := namingRuntimes(in, now.Data)
	if err != nil {
		return err
	}
	read := func() error {
		if err := restart(); err != nil {
			return err
		}
		return untilRead(in, running, d)
	}
	if bytes.Equal(d.Bytes(), now.Data) {
		return read()
	}
	e := fileRecord{Path: in.MainFile(), Name: name, Before: now, After: now,
		Reload: filetree.NewFile(d.Bytes(), now)}
	return s.readWith(r, e, read)
}

// namingRuntimes is daemon.json with the keys that dockerd would keep without them. A flag must not
// stand in the file too.
func namingRuntimes(in engines.Installation, text []byte) (*configfile.JSON, error) {
	d, err := configfile.ParseJSON(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", in.MainFile(), err)
	}
	set := configfile.Setter{Document: d}
	for _, key := range []struct {
		name, flag string
		value      any
	}{
		{"default-runtime", "--default-runtime", "runc"},
		{"runtimes", "--add-runtime", map[string]any{}},
	} {
		flagged := slices.ContainsFunc(in.Arguments(), func(arg string) bool {
			return strings.HasPrefix(arg, key.flag)
		})
		if _, found := d.Get(key.name); !found && !flagged {
			set.To(key.value, key.name)
		}
	}
	if set.Err != nil {
		return nil, fmt.Errorf("cannot edit %s:%w", in.MainFile(), set.Err)
	}
	return d, nil
}

// readWith gives a file the content e.Reload while read runs. The record has that content before
// the file does. After a crash in between an undo restores the file from before configure.
func (s *store) readWith(r engineRecord, e fileRecord, read func() error) error {
	made := missingDirs(s.system, e.Name)
	next := r
	next.Directories = configfile.Union(slices.Clone(r.Directories), made...)
	next.Files = slices.Clone(r.Files)
	i := slices.IndexFunc(next.Files, func(f fileRecord) bool { return f.Name == e.Name })
	if i < 0 {
		next.Files = append(next.Files, e)
	} else {
		next.Files[i].Reload = e.Reload
	}
	if err := s.save(next); err != nil {
		return fmt.Errorf("cannot keep what is there now: %w", err)
	}
	err := makeDirs(s.system, e.Name)
	if err == nil {
		err = writeContent(s.system, e.Name, e.Reload)
	}
	if err == nil {
		err = read()
	}
	return errors.Join(err, s.putBack(r, e, made))
}

// putBack takes out what readWith has put into a file, also if others have changed it since, and
// then forgets it.
func (s *store) putBack(r engineRecord, e fileRecord, made []string) error {
	now, err := s.system.Read(e.Name)
	if err != nil {
		return err
	}
	e.After = e.Reload
	if c := restore(e, now); c.Action != "keep" {
		if err := writeContent(s.system, e.Name, c.after); err != nil {
			return err
		}
	}
	removeDirs(s.system, made, nil)
	return s.save(r)
}

// endReload completes a record whose Reload was interrupted: what the file then has is of
// gpuledger's making.
func (s *store) endReload(r engineRecord) error {
	for i, e := range r.Files {
		if e.Reload.Kind == "" {
			continue
		}
		now, err := s.system.Read(e.Name)
		if err != nil {
			return err
		}
		if now.Same(e.Reload) {
			r.Files[i].After = e.Reload
		}
		r.Files[i].Reload = filetree.FileContent{}
	}
	return nil
}

// UnknownError is a dockerd that does not say whether it has read its file.
type UnknownError struct {
	PID int
	Err error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("dockerd (pid %d) does not say if it has read its file: %v; restart it (`systemctl "+
		"restart docker`)", e.PID, e.Err)
}

func (e *UnknownError) Unwrap() error { return e.Err }

// untilRead waits until every daemon that ran before the reload has what d says. The error is an
// *UnknownError if one does not say what it has.
func untilRead(in engines.Installation, running []grant.Process, d *configfile.JSON) error {
	end := time.Now().Add(reloadTime)
	for _, p := range running {
		for {
			is, err := askDocker(p.PID)
			why := ""
			if err == nil {
				why = hasNotRead(is, d)
			}
			if err == nil && why == "" {
				break
			}
			if !slices.Contains(daemonsOf(in), p) {
				return fmt.Errorf("dockerd (pid %d) has ended at the reload: start it, and run this again",
					p.PID)
			}
			switch late := time.Now().After(end); {
			case late && err != nil:
				return &UnknownError{p.PID, err}
			case late:
				return fmt.Errorf("dockerd (pid %d) does not obey %s after the reload: %s; restart it "+
					"(`systemctl restart docker`), and run this again", p.PID, in.MainFile(), why)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	return nil
}

// hasNotRead says in what a dockerd differs from its file; "" if in nothing that concerns us.
func hasNotRead(is engines.Settings, d *configfile.JSON) string {
	_, wanted := d.Get("runtimes", engines.Handler)
	_, has := is.Handlers[engines.Handler]
	want := configfile.Text(d.Tree(), "default-runtime")
	switch {
	case want != "" && is.Default != want:
		return fmt.Sprintf("its default runtime is %s, not %s", is.Default, want)
	case has && !wanted:
		return "it still has the runtime " + engines.Handler
	case wanted && !has:
		return "it does not have the runtime " + engines.Handler
	}
	return ""
}
