package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Policy is what docs/configuration.md says of a verdict.
type Policy struct {
	Broken            bool // an unknown key
	StateDir, RunDir  string
	Report            bool
	Hide, Strip       bool
	MinimumStrength   string
	Reserve           int64
	DeviceEnv         []string
	Exempt            []Exemption
	Adopt             bool
	Dialects          []string
	Limit, Compute    string // enforcement
	AskEngines        []string
	AskModes          []string
	AskMode           string
	AskMemory         int64
	AskGPUs, AskTotal int
	Pools             []Pool
}

// Exemption is a [[policy.exempt]].
type Exemption struct{ Namespace, Pod, Container string }

// Pool is a [[pool]].
type Pool struct {
	GPUs, Modes []string
	Place       string
}

var modes = []string{"exclusive", "timeslice", "limit", "mps", "mig"}

func defaults() Policy {
	return Policy{
		StateDir: "/var/lib/gpuledger", RunDir: "/run/gpuledger", MinimumStrength: "none",
		DeviceEnv: []string{"NVIDIA_VISIBLE_DEVICES"}, Dialects: []string{"gpuledger", "gpushare"},
		Limit: "auto", Compute: "count", AskModes: []string{"limit"}, AskMode: "limit", AskGPUs: 1,
		AskTotal: 100,
	}
}

// ReadPolicy reads the part of TOML in which this package writes policies. A broken one is the
// defaults (the contract).
func ReadPolicy(text string) Policy {
	p := defaults()
	table := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " #")
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, "["):
			table = strings.Trim(line, "[]")
			switch table {
			case "policy.exempt":
				p.Exempt = append(p.Exempt, Exemption{})
			case "pool":
				p.Pools = append(p.Pools, Pool{Modes: modes, Place: "binpack"})
			}
		default:
			key, value, _ := strings.Cut(line, " = ")
			if table != "" {
				key = table + "." + key
			}
			if !p.set(key, value) {
				broken := defaults()
				broken.Broken = true
				return broken
			}
		}
	}
	return p
}

func (p *Policy) set(key, value string) bool {
	text := strings.Trim(value, `"`)
	switch key {
	case "state_dir":
		p.StateDir = text
	case "run_dir":
		p.RunDir = text
	case "inventory.source", "inventory.file", "audit.file":
	case "policy.mode":
		p.Report = text == "report"
	case "policy.ungranted":
		p.Hide = text == "hide"
	case "policy.privileged":
		p.Strip = text == "strip"
	case "policy.minimum_strength":
		p.MinimumStrength = text
	case "policy.reserve":
		p.Reserve, _ = ParseSize(text)
	case "policy.device_env":
		p.DeviceEnv = list(value)
	case "policy.exempt.namespace":
		p.Exempt[len(p.Exempt)-1].Namespace = text
	case "policy.exempt.pod":
		p.Exempt[len(p.Exempt)-1].Pod = text
	case "policy.exempt.container":
		p.Exempt[len(p.Exempt)-1].Container = text
	case "annotations.trust":
		p.Adopt = text == "adopt"
	case "annotations.dialects":
		p.Dialects = list(value)
	case "enforcement.limit":
		p.Limit = text
	case "enforcement.compute":
		p.Compute = text
	case "enforcement.visible_devices":
	case "ask.engines":
		p.AskEngines = list(value)
	case "ask.max_memory":
		p.AskMemory, _ = ParseSize(text)
	case "ask.max_gpus":
		p.AskGPUs, _ = strconv.Atoi(value)
	case "ask.modes":
		p.AskModes = list(value)
	case "ask.mode":
		p.AskMode = text
	case "ask.total":
		p.AskTotal, _ = strconv.Atoi(value)
	case "pool.gpus":
		p.Pools[len(p.Pools)-1].GPUs = list(value)
	case "pool.modes":
		p.Pools[len(p.Pools)-1].Modes = list(value)
	case "pool.place":
		p.Pools[len(p.Pools)-1].Place = text
	default:
		return false
	}
	return true
}

// list reads ["a", "b"].
func list(value string) []string {
	var words []string
	for word := range strings.SplitSeq(strings.Trim(value, "[]"), ",") {
		if word = strings.Trim(strings.TrimSpace(word), `"`); word != "" {
			words = append(words, word)
		}
	}
	return words
}

// exempts says whether an exemption names the container: "All keys of an entry must match."
func (p Policy) exempts(id Identity) bool {
	if !id.Proven {
		return false
	}
	return slices.ContainsFunc(p.Exempt, func(e Exemption) bool {
		return glob(e.Namespace, id.Namespace) && glob(e.Pod, id.Pod) && glob(e.Container, id.Container)
	})
}

// glob says whether a pattern matches: `*` stands for any text, `?` for one character. "" is no
// key.
func glob(pattern, text string) bool {
	if pattern == "" {
		return true
	}
	return globRest(pattern, text)
}

func globRest(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return globRest(pattern[1:], text) || text != "" && globRest(pattern, text[1:])
	case text == "":
		return false
	}
	return (pattern[0] == '?' || pattern[0] == text[0]) && globRest(pattern[1:], text[1:])
}

// ParseSize reads a size, which needs a unit: 8GiB.
func ParseSize(text string) (int64, error) {
	for unit, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
		"TiB": 1 << 40} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil || n < 0 || number[0] == '+' {
				return 0, fmt.Errorf("cannot read the size %q", text)
			}
			return n * bytes, nil
		}
	}
	return 0, fmt.Errorf("cannot read the size %q: it needs a unit", text)
}
