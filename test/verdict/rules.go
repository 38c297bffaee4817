package verdict

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// opened is what device rules let a container read or write.
type opened struct {
	unclosed bool     // no rule denies all devices: every device counts as open
	all      bool     // a rule opens everything
	wide     bool     // a rule opens GPUs that it does not name exactly, or numbers to come
	exact    []Number // GPUs' devices that rules name exactly
	plain    bool     // each rule is an allow that all runtimes read alike
	unclear  string
}

// isAll: a rule of type a, or of none, is about all devices, whatever its numbers and its access
// say: the kernel and the runtimes do not read them. An engine's list begins with one that
// denies.
func isAll(r specs.LinuxDeviceCgroup) bool { return r.Type == "" || r.Type == "a" }

func wild(number *int64) bool { return number == nil || *number == -1 }

// open reads the device rules of a spec: gpu-device-rule in docs/refusals.md, the contract, ADR
// 65.
func (n Node) open(rules []specs.LinuxDeviceCgroup) opened {
	o := opened{unclosed: true, plain: true}
	for i, r := range rules {
		switch {
		case isAll(r) && !r.Allow && r.Access == "rwm" && wild(r.Major) && wild(r.Minor):
			o = opened{plain: true}
		case isAll(r) && !r.Allow && i == 0:
			o = opened{}
		case isAll(r) && !r.Allow:
			if o.plain = false; o.reaches() {
				o.unclear = denies
			}
		case isAll(r):
			o.all, o.plain = true, false
		case !r.Allow:
			n.deny(&o, r)
		case !strings.ContainsAny(r.Access, "rw") && r.Access != "": // mknod alone opens nothing
		case r.Type == "c":
			n.openCharacter(&o, r)
		}
	}
	return o
}

const denies = "a rule that denies a device behind one that opens GPUs"

// deny takes back what rules before it have opened, where all runtimes read it alike.
func (n Node) deny(o *opened, r specs.LinuxDeviceCgroup) {
	o.plain = false
	full := r.Access == "rwm"
	switch {
	case !o.reaches() || r.Type == "b":
	case full && r.Type == "c" && wild(r.Major) && wild(r.Minor) && !o.all:
		*o = opened{} // no character device is open
	case full && r.Type == "c" && !wild(r.Major) && !wild(r.Minor) && !o.all && !o.wide:
		o.exact = slices.DeleteFunc(o.exact, func(d Number) bool { return d == Number{*r.Major, *r.Minor} })
	default:
		o.unclear = denies
	}
}

func (n Node) openCharacter(o *opened, r specs.LinuxDeviceCgroup) {
	if wild(r.Major) {
		o.wide = true
		return
	}
	major := *r.Major
	_, ours := n.part(Number{major, 255}) // 195, or a dynamic major of NVIDIA's driver
	switch {
	case !wild(r.Minor):
		d := Number{major, *r.Minor}
		if _, ok := n.part(d); ok {
			o.exact = append(o.exact, d)
		} else if n.toCome(major) || major == 226 {
			o.exact = append(o.exact, d) // in no grant
		}
	case ours || major == 226 || n.toCome(major):
		o.wide = true
	}
}

func (o opened) reaches() bool { return o.unclosed || o.all || o.wide || len(o.exact) > 0 }
