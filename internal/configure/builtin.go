package configure

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// withBuiltIn is a file without gpuledger's lines, but with the handler runc that configure added,
// if the file has other handlers and makes none of them the default. Such a list replaces the
// built-in one of containerd 1.x, and without its default handler the whole CRI plugin fails.
func withBuiltIn(e fileRecord, data []byte) []byte {
	k, runc := addedBuiltIn(e)
	d, err := configfile.Parse(e.Path, data)
	if runc == nil || err != nil || len(configfile.Table(d.Tree(), k.Handlers...)) == 0 {
		return data
	}
	byDefault := configfile.Text(d.Tree(), k.Default...)
	if byDefault != "" && byDefault != "runc" || d.Set(engines.RuncShim, runc...) != nil {
		return data
	}
	return d.Bytes()
}

// keepsBuiltIn reports whether a file has the handler runc that configure added.
func keepsBuiltIn(e fileRecord, data []byte) bool {
	_, runc := addedBuiltIn(e)
	d, err := configfile.Parse(e.Path, data)
	if runc == nil || err != nil {
		return false
	}
	_, found := d.Get(runc...)
	return found
}

// addedBuiltIn is the table of handlers to which configure has added runc, and the key that it has
// added; nil if none.
func addedBuiltIn(e fileRecord) (k engines.HandlerKeys, runc []string) {
	before, errBefore := configfile.Parse(e.Path, e.Before.Data)
	after, errAfter := configfile.Parse(e.Path, e.After.Data)
	if errBefore != nil || errAfter != nil {
		return k, nil
	}
	for _, k := range engines.Of(grant.Containerd).Keys {
		runc := slices.Concat(k.Handlers, []string{"runc", "runtime_type"})
		_, had := before.Get(runc...)
		if _, has := after.Get(runc...); has && !had {
			return k, runc
		}
	}
	return k, nil
}

// withVersion is a file without gpuledger's lines, but with the version that configure added, if
// others have added tables of plugins. containerd reads a file without it as version 1, in which
// the plugins have other names.
func withVersion(e fileRecord, data []byte) []byte {
	after, errAfter := configfile.Parse(e.Path, e.After.Data)
	d, err := configfile.Parse(e.Path, data)
	if errAfter != nil || err != nil || len(configfile.Table(d.Tree(), "plugins")) == 0 {
		return data
	}
	version, ours := after.Get("version")
	if _, found := d.Get("version"); !ours || found || d.Set(version, "version") != nil {
		return data
	}
	return d.Bytes()
}
