package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// record is a grant as its file holds it. Unknown members are kept when a file is written again: a
// newer gpuledger of the same format version may rely on them.
type record struct {
	Sum      string         `json:"sum,omitzero"` // checkSum; format.encode writes it
	Version  int            `json:"version"`
	ID       grant.ID       `json:"id"`
	Owner    grant.Owner    `json:"owner"`
	Secret   string         `json:"secret_sha256,omitzero"`
	Label    string         `json:"label,omitzero"`
	App      string         `json:"app,omitzero"`
	Mode     grant.Mode     `json:"mode"`
	Strength grant.Strength `json:"strength,omitzero"`
	GPUs     []share        `json:"gpus"`
	Compute  int            `json:"compute,omitzero"`
	Source   string         `json:"source,omitzero"`
	Created  time.Time      `json:"created"`
	Expires  time.Time      `json:"expires,omitzero"`
	Draining bool           `json:"draining,omitzero"`
	Over     bool           `json:"over,omitzero"`
	For      []grant.Tie    `json:"for,omitzero"`
	User     uint32         `json:"user,omitzero"`
	Minimum  grant.Strength `json:"minimum_strength,omitzero"`
	Unknown  jsontext.Value `json:",embed"`
}

type share struct {
	grant.Share
	Unknown jsontext.Value `json:",embed"`
}

// format is a version of the files and the way to it: steps[v] makes version v+1 of a file of
// version v. A file of a newer version is an error: what it adds may change what the rest means.
type format struct {
	version int
	steps   map[int]func(jsontext.Value) (jsontext.Value, error)
}

// The formats that this package reads and writes. There is none before them. Files of the run
// directory have a format of their own: they end with the boot, and grants do not.
var (
	grantFormat = format{version: 1}
	runFormat   = format{version: 1}
)

// maxFile bounds a file of the ledger; a grant over 16 GPUs has 2 KiB.
const maxFile = 1 << 20

// decode reads a grant's file, whatever it holds. id is the id in the file's name.
func (f format) decode(data []byte, id grant.ID) (record, error) {
	var rec record
	if err := f.unmarshal(data, rec.read, func() int { return rec.Version }); err != nil {
		return record{}, err
	}
	if rec.ID != id {
		return record{}, fmt.Errorf("it says that it is grant %q", rec.ID)
	}
	return rec, validate(rec.grant())
}

// unmarshal decodes a versioned file with read, and may leave a part when it fails. What is wrong
// with the content is said rather than that its sum does not fit.
func (f format) unmarshal(data []byte, read func(*jsontext.Decoder) error, version func() int) error {
	if err := f.unmarshalContent(data, read, version); err != nil {
		return err
	}
	return checkSum(data)
}

// unmarshalContent decodes it. Almost every file has the current version, so it is decoded in one
// pass, and again only if it has another.
func (f format) unmarshalContent(data []byte, read func(*jsontext.Decoder) error, version func() int) error {
	if len(data) == 0 {
		return errors.New("it is empty")
	}
	err := tokens.Whole(data, read)
	if err == nil && version() == f.version {
		return nil
	}
	upgraded, e := f.upgrade(data)
	if e != nil {
		return e
	}
	if upgraded == nil {
		return err
	}
	return tokens.Whole(upgraded, read)
}

// upgrade brings an older file to the current version; nil if it has that already.
func (f format) upgrade(data []byte) (jsontext.Value, error) {
	version := 0
	err := tokens.Whole(data, func(d *jsontext.Decoder) error { return tokens.Version(d, &version) })
	if err != nil {
		return nil, err
	}
	if version > f.version {
		return nil, fmt.Errorf("it has format version %d, this gpuledger reads up to %d", version,
			f.version)
	}
	if version == f.version {
		return nil, nil
	}
	value := jsontext.Value(data)
	for v := version; v < f.version; v++ {
		step, found := f.steps[v]
		if !found {
			return nil, fmt.Errorf("it has format version %d, which this gpuledger does not know", v)
		}
		var err error
		if value, err = step(value); err != nil {
			return nil, fmt.Errorf("cannot upgrade it from format version %d: %w", v, err)
		}
	}
	return value, nil
}

// encode writes a grant, with the unknown members of what its file held before.
func (f format) encode(g grant.Grant, old record) ([]byte, error) {
	rec := record{
		Version: f.version, ID: g.ID, Owner: g.Owner, Secret: g.Secret, Label: g.Label, App: g.App,
		Mode: g.Mode, Strength: g.Strength,
		Compute: g.Compute, Source: g.Source, Created: g.Created.UTC(), Expires: g.Expires.UTC(),
		Draining: g.Draining, Over: g.Over, For: g.For, User: g.User,
		Minimum: g.MinimumStrength,
		Unknown: old.Unknown,
	}
	for _, s := range g.GPUs {
		rec.GPUs = append(rec.GPUs, share{Share: s, Unknown: old.unknownOf(s.UUID)})
	}
	data, err := rec.encode()
	if err != nil {
		return nil, err
	}
	return withSum(append(data, '\n')), nil
}

func (r record) unknownOf(uuid string) jsontext.Value {
	for _, s := range r.GPUs {
		if s.UUID == uuid {
			return s.Unknown
		}
	}
	return nil
}

func (r record) grant() grant.Grant {
	g := grant.Grant{
		ID: r.ID, Owner: r.Owner, Secret: r.Secret, Label: r.Label, App: r.App,
		Mode: r.Mode, Strength: r.Strength, Compute: r.Compute, Source: r.Source,
		Created: r.Created, Expires: r.Expires, Draining: r.Draining, Over: r.Over,
		For: r.For, User: r.User, MinimumStrength: r.Minimum,
		GPUs: make([]grant.Share, len(r.GPUs)),
	}
	for i, s := range r.GPUs {
		g.GPUs[i] = s.Share
	}
	return g
}

// validate checks every grant that is written or read: a grant that fails cannot be counted.
func validate(g grant.Grant) error {
	if _, err := grant.ParseID(string(g.ID)); err != nil {
		return err
	}
	if _, err := grant.ParseOwner(string(g.Owner)); err != nil {
		return err
	}
	if _, err := grant.ParseMode(string(g.Mode)); err != nil {
		return err
	}
	if g.Compute < 0 || g.Compute > 100 {
		return fmt.Errorf("it has %d percent of compute", g.Compute)
	}
	for _, t := range g.For {
		if _, err := grant.ParseTie(string(t)); err != nil {
			return err
		}
	}
	if len(g.GPUs) == 0 {
		return errors.New("it names no GPU")
	}
	for i, s := range g.GPUs {
		if !isFileName(s.UUID) {
			return fmt.Errorf("it has a GPU with UUID %q", s.UUID)
		}
		if (grant.Grant{GPUs: g.GPUs[:i]}).Has(s.UUID) {
			return fmt.Errorf("it names GPU %s twice", s.UUID)
		}
	}
	return nil
}

// isFileName accepts UUIDs as NVML gives them (GPU-..., MIG-...) and nothing that leads elsewhere
// or hides. They come from an inventory file, which may be a simulated one.
func isFileName(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c &&
			c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}
