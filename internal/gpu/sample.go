package gpu

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// FreshShares is the line that asks `gpuledger inventory measure` for a sample in which the
// processes' shares of the GPU's time are not some seconds old. Any other line asks for a sample.
const FreshShares = "shares"

// ReadSample reads a sample as WriteSample and the JSON library write it. A sample each second can
// have a thousand processes, and reflection takes several times as long.
// TestSampleEqualsTheJSONLibrary compares both functions with the fields' tags.
func ReadSample(line []byte) (s grant.Sample, err error) {
	err = tokens.Whole(line, func(d *jsontext.Decoder) error {
		return tokens.Object(d, func(name []byte) error {
			switch string(name) {
			case "taken":
				return tokens.Time(d, &s.Taken)
			case "gpus":
				return tokens.List(d, &s.GPUs, readUsage)
			}
			return d.SkipValue()
		})
		// looking for duplicates takes as long as the rest, and gpuledger itself wrote the line
	}, jsontext.AllowDuplicateNames(true))
	return s, err
}

func readUsage(d *jsontext.Decoder, u *grant.Usage) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "uuid":
			return tokens.String(d, &u.UUID)
		case "index":
			return tokens.Int(d, &u.Index)
		case "health":
			return tokens.String(d, &u.Health)
		case "total":
			return tokens.Uint64(d, &u.Total)
		case "used":
			return tokens.Uint64(d, &u.Used)
		case "utilization":
			return tokens.Int(d, &u.Utilization)
		case "power_milliwatts":
			return tokens.Int(d, &u.Power)
		case "temperature_celsius":
			return tokens.Int(d, &u.Temperature)
		case "compute_mode":
			return tokens.String(d, &u.ComputeMode)
		case "mig":
			return tokens.Strings(d, &u.MIG)
		case "xids":
			return tokens.List(d, &u.XIDs, tokens.Int[int])
		case "processes":
			return tokens.List(d, &u.Processes, readProcessUse)
		}
		return d.SkipValue()
	})
}

func readProcessUse(d *jsontext.Decoder, p *grant.ProcessUse) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "pid":
			return tokens.Int(d, &p.PID)
		case "device":
			return tokens.String(d, &p.Device)
		case "memory":
			return tokens.Uint64(d, &p.Memory)
		case "unmeasured":
			return tokens.Bool(d, &p.Unmeasured)
		case "compute":
			return tokens.Int(d, &p.Compute)
		}
		return d.SkipValue()
	})
}

// WriteSample returns a sample as one line of JSON.
func WriteSample(s grant.Sample) ([]byte, error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("taken").Time(s.Taken)
		w.Name("gpus").Array(func() {
			for _, u := range s.GPUs {
				w.Grow(512 + 64*len(u.Processes))
				w.Object(func() { writeUsage(w, u) })
			}
		})
	})
	line, err := w.End()
	return append(line, '\n'), err
}

func writeUsage(w *tokens.Writer, u grant.Usage) {
	w.Name("uuid").String(u.UUID)
	w.Name("index").Int(int64(u.Index))
	w.Name("health").String(u.Health)
	w.Name("total").Uint(uint64(u.Total))
	w.Name("used").Uint(uint64(u.Used))
	w.Name("utilization").Int(int64(u.Utilization))
	if u.Power != 0 {
		w.Name("power_milliwatts").Int(int64(u.Power))
	}
	if u.Temperature != 0 {
		w.Name("temperature_celsius").Int(int64(u.Temperature))
	}
	w.Words("compute_mode", string(u.ComputeMode))
	if len(u.MIG) > 0 {
		w.Name("mig").Strings(u.MIG)
	}
	if len(u.XIDs) > 0 {
		w.Name("xids").Array(func() {
			for _, xid := range u.XIDs {
				w.Int(int64(xid))
			}
		})
	}
	w.Name("processes").Array(func() {
		for _, p := range u.Processes {
			w.Object(func() { writeProcessUse(w, p) })
		}
	})
}

func writeProcessUse(w *tokens.Writer, p grant.ProcessUse) {
	w.Name("pid").Int(int64(p.PID))
	w.Words("device", p.Device)
	w.Name("memory").Uint(uint64(p.Memory))
	if p.Unmeasured {
		w.Name("unmeasured").Bool(true)
	}
	w.Name("compute").Int(int64(p.Compute))
}
