package grant

import (
	"fmt"
	"slices"
	"strings"
)

// The types below are choices of the configuration. Each parses itself, so that an error names the
// line with the wrong word.

// SourceKind says where the inventory comes from.
type SourceKind string

// The sources of an inventory.
const (
	NVML      SourceKind = "nvml"
	Simulated SourceKind = "simulated"
)

// RulesMode says whether a refusal stops a container or is only recorded.
type RulesMode string

// The modes of the rules.
const (
	Enforce RulesMode = "enforce"
	Report  RulesMode = "report"
	// Disabled is not a choice of the configuration: `gpuledger disable` sets it for a time.
	Disabled RulesMode = "disabled"
	// Observed is not a choice of the configuration: a container that was found running cannot be
	// refused.
	Observed RulesMode = "observed"
)

// Ungranted says what happens to a container that asks for GPUs only by environment and has no
// grant.
type Ungranted string

// The choices for it.
const (
	RefuseUngranted Ungranted = "refuse"
	Hide            Ungranted = "hide" // it starts without GPUs
)

// Privileged says what happens to a privileged container that has no grant.
type Privileged string

// The choices for it.
const (
	RefusePrivileged Privileged = "refuse"
	Strip            Privileged = "strip" // it starts with all devices but the GPUs
)

// Reaction says what the watch does about a finding.
type Reaction string

// The reactions.
const (
	ReportFinding Reaction = "report"
	StopContainer Reaction = "stop"
)

// Trust says how far allocation annotations are trusted.
type Trust string

// The degrees of trust.
const (
	Verify Trust = "verify" // they must agree with a grant
	Adopt  Trust = "adopt"  // the operator guarantees that only the scheduler can write them
)

// Dialect is a set of allocation annotations.
type Dialect string

// The dialects.
const (
	DialectGPULedger Dialect = "gpuledger"
	DialectGPUShare  Dialect = "gpushare" // Alibaba's gpushare, as its scheduler extender writes it
)

// LimitBackend says what enforces the limits of mode limit.
type LimitBackend string

// The backends.
const (
	AutoBackend    LimitBackend = "auto" // the strongest that the node has
	DriverBackend  LimitBackend = "driver"
	LibraryBackend LimitBackend = "library"
)

// ComputeShare says what happens to a share of compute in mode limit.
type ComputeShare string

// The choices for it.
const (
	CountShare    ComputeShare = "count" // the ledger counts it, nothing enforces it
	RefuseShare   ComputeShare = "refuse"
	ThrottleShare ComputeShare = "throttle" // experimental: the shim throttles launches (docs/adr/0042)
)

// VisibleDevices says which value NVIDIA_VISIBLE_DEVICES gets in an admitted container.
type VisibleDevices string

// The choices for it.
const (
	VisibleUUIDs VisibleDevices = "uuids"
	VisibleVoid  VisibleDevices = "void" // for nodes where another injector would act on UUIDs
)

// UserNodes says who can open the device nodes of GPUs outside containers.
type UserNodes string

// The values of UserNodes.
const (
	UserNodesMode UserNodes = "mode" // those whom the nodes' modes let
	UserNodesACL  UserNodes = "acl"  // also a user with a grant, those of its GPUs, while it lives
)

// MPSUsers says which users' processes may be clients of an MPS daemon.
type MPSUsers string

// The choices for it.
const (
	MPSRoot MPSUsers = "root"
	MPSAll  MPSUsers = "all" // with NVIDIA's multi-user server
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
func (v *UserNodes) UnmarshalText(text []byte) error {
	return oneOf(v, text, UserNodesMode, UserNodesACL)
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

// oneOf sets v to the choice with this text. The error lists the choices.
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
