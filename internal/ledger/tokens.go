package ledger

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// read reads a grant's file. TestFilesAreAsTheLibraryReadsAndWritesThem holds this file to the
// fields' tags.
func (r *record) read(d *jsontext.Decoder) error {
	*r = record{}
	return tokens.Members(d, func(quoted jsontext.Value) error {
		switch string(tokens.Name(quoted)) {
		case "sum":
			return tokens.String(d, &r.Sum)
		case "version":
			return tokens.Int(d, &r.Version)
		case "id":
			return tokens.String(d, &r.ID)
		case "owner":
			return tokens.String(d, &r.Owner)
		case "secret_sha256":
			return tokens.String(d, &r.Secret)
		case "label":
			return tokens.String(d, &r.Label)
		case "app":
			return tokens.String(d, &r.App)
		case "mode":
			return tokens.Text(d, &r.Mode)
		case "strength":
			return tokens.Text(d, &r.Strength)
		case "gpus":
			return tokens.List(d, &r.GPUs, readShare)
		case "compute":
			return tokens.Int(d, &r.Compute)
		case "source":
			return tokens.String(d, &r.Source)
		case "created":
			return tokens.Time(d, &r.Created)
		case "expires":
			return tokens.Time(d, &r.Expires)
		case "draining":
			return tokens.Bool(d, &r.Draining)
		case "over":
			return tokens.Bool(d, &r.Over)
		case "for":
			return tokens.List(d, &r.For, tokens.String[grant.Tie])
		case "user":
			return tokens.Uint32(d, &r.User)
		case "minimum_strength":
			return tokens.Text(d, &r.Minimum)
		}
		return keep(d, quoted, &r.Unknown)
	})
}

func readShare(d *jsontext.Decoder, s *share) error {
	return tokens.Members(d, func(quoted jsontext.Value) error {
		switch string(tokens.Name(quoted)) {
		case "uuid":
			return tokens.String(d, &s.UUID)
		case "index":
			return tokens.Int(d, &s.Index)
		case "memory":
			return tokens.Uint64(d, &s.Memory)
		case "profile":
			return tokens.String(d, &s.Profile)
		}
		return keep(d, quoted, &s.Unknown)
	})
}

// keep adds a member that we don't know to an object of such members, as it stands.
func keep(d *jsontext.Decoder, quoted jsontext.Value, unknown *jsontext.Value) error {
	object := jsontext.Value{'{'}
	if n := len(*unknown); n > 0 {
		object = append((*unknown)[:n-1], ',')
	}
	object = append(append(object, quoted...), ':')
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	*unknown = append(append(object, value...), '}')
	return nil
}

// read reads a binding's file.
func (r *bindingRecord) read(d *jsontext.Decoder) error {
	*r = bindingRecord{}
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &r.Version)
		case "grant":
			return tokens.String(d, &r.Grant)
		case "runtime_root":
			return tokens.String(d, &r.RuntimeRoot)
		case "container":
			return tokens.String(d, &r.Container)
		case "bundle":
			return tokens.String(d, &r.Bundle)
		case "creator":
			return readProcess(d, &r.Creator)
		case "pid_namespace":
			return tokens.Uint64(d, &r.PIDNS)
		case "time_namespace":
			return tokens.Uint64(d, &r.TimeNS)
		case "boot_id":
			return tokens.String(d, &r.BootID)
		case "created":
			return tokens.Time(d, &r.Created)
		case "strength":
			return tokens.Text(d, &r.Strength)
		case "weaker":
			return tokens.String(d, &r.Weaker)
		case "pod":
			return readIdentity(d, &r.Pod)
		case "cgroups":
			return tokens.Strings(d, &r.Cgroups)
		case "occupies":
			return tokens.Strings(d, &r.Occupies)
		case "unplaced":
			return tokens.Bool(d, &r.Unplaced)
		case "driven":
			return tokens.Bool(d, &r.Driven)
		case "throttled":
			return tokens.Bool(d, &r.Throttled)
		case "reserved":
			return tokens.Bool(d, &r.Reserved)
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

func readIdentity(d *jsontext.Decoder, i *grant.Identity) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "uid":
			return tokens.String(d, &i.UID)
		case "namespace":
			return tokens.String(d, &i.Namespace)
		case "name":
			return tokens.String(d, &i.Pod)
		case "container":
			return tokens.String(d, &i.Container)
		}
		return d.SkipValue()
	})
}

func (r *foundRecord) read(d *jsontext.Decoder) error {
	*r = foundRecord{}
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &r.Version)
		case "boot_id":
			return tokens.String(d, &r.BootID)
		case "taken":
			return tokens.Time(d, &r.Taken)
		case "gpus":
			return tokens.Map(d, &r.GPUs, tokens.Uint64[grant.Bytes])
		case "excess":
			return tokens.Map(d, &r.Excess, tokens.Uint64[grant.Bytes])
		case "held":
			return tokens.Map(d, &r.Held, tokens.String[string])
		}
		return d.SkipValue()
	})
}

// encode writes a binding's file.
func (r bindingRecord) encode() ([]byte, error) {
	w := tokens.NewIndented()
	w.Object(func() {
		w.Name("version").Int(int64(r.Version))
		w.Name("grant").String(string(r.Grant))
		w.Name("runtime_root").String(r.RuntimeRoot)
		w.Name("container").String(r.Container)
		w.Name("bundle").String(r.Bundle)
		w.Name("creator").Object(func() {
			w.Name("pid").Int(int64(r.Creator.PID))
			w.Name("start").Uint(r.Creator.Start)
		})
		w.Name("pid_namespace").Uint(r.PIDNS)
		if r.TimeNS != 0 {
			w.Name("time_namespace").Uint(r.TimeNS)
		}
		w.Name("boot_id").String(r.BootID)
		w.Name("created").Time(r.Created)
		w.Words("strength", string(r.Strength), "weaker", r.Weaker)
		if r.Pod != (grant.Identity{}) {
			w.Name("pod").Object(func() {
				w.Words("uid", r.Pod.UID, "namespace", r.Pod.Namespace, "name", r.Pod.Pod, "container",
					r.Pod.Container)
			})
		}
		if r.Cgroups != nil {
			w.Name("cgroups").Strings(r.Cgroups)
		}
		if r.Occupies != nil {
			w.Name("occupies").Strings(r.Occupies)
		}
		if r.Unplaced {
			w.Name("unplaced").Bool(true)
		}
		if r.Driven {
			w.Name("driven").Bool(true)
		}
		if r.Throttled {
			w.Name("throttled").Bool(true)
		}
		if r.Reserved {
			w.Name("reserved").Bool(true)
		}
	})
	return w.End()
}

// encode writes a grant's file.
func (r record) encode() ([]byte, error) {
	w := tokens.NewIndented()
	w.Object(func() {
		w.Words("sum", r.Sum)
		w.Name("version").Int(int64(r.Version))
		w.Name("id").String(string(r.ID))
		w.Name("owner").String(string(r.Owner))
		w.Words("secret_sha256", r.Secret, "label", r.Label, "app", r.App)
		w.Name("mode").String(string(r.Mode))
		w.Words("strength", string(r.Strength))
		w.Name("gpus").Array(func() {
			for _, s := range r.GPUs {
				w.Object(func() { s.write(w) })
			}
		})
		if r.Compute != 0 {
			w.Name("compute").Int(int64(r.Compute))
		}
		w.Words("source", r.Source)
		w.Name("created").Time(r.Created)
		w.TimeUnlessZero("expires", r.Expires)
		if r.Draining {
			w.Name("draining").Bool(true)
		}
		if r.Over {
			w.Name("over").Bool(true)
		}
		if r.For != nil {
			w.Name("for").Array(func() {
				for _, t := range r.For {
					w.String(string(t))
				}
			})
		}
		if r.User != 0 {
			w.Name("user").Uint(uint64(r.User))
		}
		w.Words("minimum_strength", string(r.Minimum))
		w.Members(r.Unknown)
	})
	return w.End()
}

func (s share) write(w *tokens.Writer) {
	w.Name("uuid").String(s.UUID)
	w.Name("index").Int(int64(s.Index))
	w.Name("memory").Uint(uint64(s.Memory))
	w.Words("profile", s.Profile)
	w.Members(s.Unknown)
}

func (r foundRecord) encode() ([]byte, error) {
	w := tokens.NewIndented()
	w.Object(func() {
		w.Name("version").Int(int64(r.Version))
		w.Name("boot_id").String(r.BootID)
		w.TimeUnlessZero("taken", r.Taken)
		bytes := func(b grant.Bytes) { w.Uint(uint64(b)) }
		tokens.WriteMap(w.Name("gpus"), r.GPUs, bytes)
		if r.Excess != nil {
			tokens.WriteMap(w.Name("excess"), r.Excess, bytes)
		}
		if r.Held != nil {
			tokens.WriteMap(w.Name("held"), r.Held, w.String)
		}
	})
	return w.End()
}
