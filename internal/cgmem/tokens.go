package cgmem

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// encode writes a call as the JSON library does by the fields' tags, which a test holds.
func (r Call) encode() ([]byte, error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("version").Int(int64(r.Version))
		w.Name("op").String(string(r.Op))
		w.Words("runtime_root", r.RuntimeRoot, "container", r.Container)
		if r.PID != 0 {
			w.Name("pid").Int(int64(r.PID))
		}
		w.Words("grant", string(r.Grant))
		if len(r.To) == 0 {
			return
		}
		w.Name("to").Array(func() {
			for _, s := range r.To {
				w.Object(func() {
					w.Name("uuid").String(s.UUID)
					w.Name("index").Int(int64(s.Index))
					w.Name("memory").Uint(uint64(s.Memory))
					w.Words("profile", s.Profile)
				})
			}
		})
	})
	return w.End()
}

// read reads an answer.
func (a *Answer) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &a.Version)
		case "error":
			return tokens.String(d, &a.Error)
		}
		return d.SkipValue()
	})
}
