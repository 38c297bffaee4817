package grant

import (
	"fmt"
	"slices"
	"strings"
)

// The types below are choices of the configuration. Each reads itself from text, so that a wrong
// word is reported with the line it stands in.

// SourceKind is where the inventory comes from.
type SourceKind string

// The sources of an inventory.
const (
	NVML      SourceKind = "nvml"
	Simulated SourceKind = "simulated"
)

// RulesMode is whether a refusal stops a container or is only recorded.
type RulesMode string

// The modes of the rules.
const (
	Enforce RulesMode = "enforce"
	Report  RulesMode = "report"
	// Disabled is no choice of the configuration: `gpuledger disable` makes it so for a time.
	Disabled RulesMode = "disabled"
	// Observed is none either: what was found running cannot be refused any more.
	Observed RulesMode = "observed"
)

// Ungranted is what becomes of a container that asks for GPUs by environment alone and holds no
// grant.
type Ungranted string

// The choices for it.
const (
	RefuseUngranted Ungranted = "refuse"
	Hide            Ungranted = "hide" // it starts, and sees none
)

// Privileged is what becomes of a privileged container that holds no grant.
type Privileged string

// The choices for it.
const (
	RefusePrivileged Privileged = "refuse"
	Strip            Privileged = "strip" // it starts, with every device but the GPUs
)

// Reaction is what the watch does about what it finds.
type Reaction string

// The reactions.
const (
	ReportFinding Reaction = "report"
	StopContainer Reaction = "stop"
)

// Trust is how far allocation annotations are believed.
type Trust string

// The degrees of trust.
const (
	Verify Trust = "verify" // they must match a grant
	Adopt  Trust = "adopt"  // the operator vouches that only the scheduler can write them
)

// Dialect is a set of allocation annotations.
type Dialect string

// The dialects.
const (
	DialectGPULedger Dialect = "gpuledger"
	DialectGPUShare  Dialect = "gpushare" // Alibaba's gpushare, as its scheduler extender writes it
)

// LimitBackend is what enforces the mode limit.
type LimitBackend string

// The backends.
const (
	AutoBackend    LimitBackend = "auto" // the strongest that the node has
	DriverBackend  LimitBackend = "driver"
	LibraryBackend LimitBackend = "library"
)

// ComputeShare is what becomes of a share of compute in mode limit.
type ComputeShare string

// The choices for it.
const (
	CountShare    ComputeShare = "count" // it is in the ledger, and a number alone
	RefuseShare   ComputeShare = "refuse"
	ThrottleShare ComputeShare = "throttle" // experimental: the shim throttles launches (docs/adr/0042)
)

// VisibleDevices is what an admitted container's NVIDIA_VISIBLE_DEVICES says.
type VisibleDevices string

// The choices for it.
const (
	VisibleUUIDs VisibleDevices = "uuids"
	VisibleVoid  VisibleDevices = "void" // where another injector would act on UUIDs
)

// MPSUsers are those on the node whose processes may be clients of an MPS daemon.
type MPSUsers string

// The choices for it.
const (
	MPSRoot MPSUsers = "root"
	MPSAll  MPSUsers = "all" // by NVIDIA's multi-user server
)

func (v *SourceKind) UnmarshalText(text []byte) error { return oneOf(v, text, NVML, Simulated) }
func (v *RulesMode) UnmarshalText(text []byte) error  { return oneOf(v, text, Enforce, Report) }
func (v *Ungranted) UnmarshalText(text []byte) error  { return oneOf(v, text, RefuseUngranted, Hide) }
func (v *Privileged) UnmarshalText(text []byte) error { return oneOf(v, text, RefusePrivileged, Strip) }
func (v *Reaction) UnmarshalText(text []byte) error {
	return oneOf(v, text, ReportFinding, StopContainer)
}
func (v *Trust) UnmarshalText(text []byte) error { return oneOf(v, text, Verify, Adopt) }
func (v *Dialect) UnmarshalText(text []byte) error {
	return oneOf(v, text, DialectGPULedger, DialectGPUShare)
}
func (v *VisibleDevices) UnmarshalText(text []byte) error {
	return oneOf(v, text, VisibleUUIDs, VisibleVoid)
}
func (v *ComputeShare) UnmarshalText(text []byte) error {
	return oneOf(v, text, CountShare, RefuseShare, ThrottleShare)
}
func (v *MPSUsers) UnmarshalText(text []byte) error  { return oneOf(v, text, MPSRoot, MPSAll) }
func (v *Placement) UnmarshalText(text []byte) error { return oneOf(v, text, Binpack, Spread) }
func (v *Mode) UnmarshalText(text []byte) error      { return oneOf(v, text, Modes...) }
func (v *Strength) UnmarshalText(text []byte) error  { return oneOf(v, text, Strengths...) }
func (v *LimitBackend) UnmarshalText(text []byte) error {
	return oneOf(v, text, AutoBackend, DriverBackend, LibraryBackend)
}
func (v *Engine) UnmarshalText(text []byte) error {
	return oneOf(v, text, Containerd, CRIO, Podman, Docker, NoEngine)
}

// oneOf sets v to the choice that the text spells.
func oneOf[T ~string](v *T, text []byte, choices ...T) error {
	if i := slices.Index(choices, T(text)); i >= 0 {
		*v = choices[i]
		return nil
	}
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	return fmt.Errorf("want %s, not %q", strings.Join(names, " or "), text)
}
