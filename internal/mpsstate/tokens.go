package mpsstate

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// state is the content of the file. A test checks that the names that are read and written are
// those of the fields' tags.
type state grant.MPSDaemon

func (s *state) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &s.Version)
		case "boot_id":
			return tokens.String(d, &s.BootID)
		case "gpus":
			return tokens.Strings(d, &s.GPUs)
		case "daemon":
			return readProcess(d, &s.Daemon)
		case "servers":
			return tokens.List(d, &s.Servers, readProcess)
		case "uid":
			return tokens.Int(d, &s.UID)
		case "anybody":
			return tokens.Bool(d, &s.Anybody)
		case "socket":
			return tokens.Array(d, s.Socket[:], tokens.Uint64[uint64])
		case "privileged":
			return tokens.Array(d, s.Privileged[:], tokens.Uint64[uint64])
		case "limits":
			return tokens.Map(d, &s.Limits, tokens.Uint64[grant.Bytes])
		case "threads":
			return tokens.Int(d, &s.Threads)
		case "problem":
			return tokens.String(d, &s.Problem)
		case "starting":
			return tokens.Bool(d, &s.Starting)
		}
		return d.SkipValue()
	})
}

func readProcess(d *jsontext.Decoder, p *grant.Process) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "pid":
			return tokens.Int(d, &p.PID)
		case "start":
			return tokens.Uint64(d, &p.Start)
		}
		return d.SkipValue()
	})
}

func (s state) encode() ([]byte, error) {
	w := tokens.NewIndented()
	w.Object(func() {
		w.Name("version").Int(int64(s.Version))
		w.Name("boot_id").String(s.BootID)
		w.Name("gpus").Strings(s.GPUs)
		writeProcess(w.Name("daemon"), s.Daemon)
		w.Name("servers").Array(func() {
			for _, p := range s.Servers {
				writeProcess(w, p)
			}
		})
		w.Name("uid").Int(int64(s.UID))
		w.Name("anybody").Bool(s.Anybody)
		writePair(w.Name("socket"), s.Socket)
		writePair(w.Name("privileged"), s.Privileged)
		tokens.WriteMap(w.Name("limits"), s.Limits, func(b grant.Bytes) { w.Uint(uint64(b)) })
		w.Name("threads").Int(int64(s.Threads))
		w.Name("problem").String(s.Problem)
		w.Name("starting").Bool(s.Starting)
	})
	return w.End()
}

func writeProcess(w *tokens.Writer, p grant.Process) {
	w.Object(func() {
		w.Name("pid").Int(int64(p.PID))
		w.Name("start").Uint(p.Start)
	})
}

func writePair(w *tokens.Writer, pair [2]uint64) {
	w.Array(func() {
		w.Uint(pair[0])
		w.Uint(pair[1])
	})
}
