package grant

// Code says why a container was refused. The list is closed: users, alerts and documentation rely
// on it.
type Code string

// The refusal codes, the most important first.
const (
	Internal                   Code = "internal"
	RulesNotEnforced           Code = "rules-not-enforced"
	ConfigInvalid              Code = "config-invalid"
	SpecInvalid                Code = "spec-invalid"
	InventoryMissing           Code = "inventory-missing"
	InventoryStale             Code = "inventory-stale"
	LedgerUnreadable           Code = "ledger-unreadable"
	AnnotationMalformed        Code = "annotation-malformed"
	AnnotationMismatch         Code = "annotation-mismatch"
	GrantNotFound              Code = "grant-not-found"
	GrantOwnerMismatch         Code = "grant-owner-mismatch"
	GrantExpired               Code = "grant-expired"
	GrantInUse                 Code = "grant-in-use"
	GPUUnhealthy               Code = "gpu-unhealthy"
	ModeConflict               Code = "mode-conflict"
	AskNotAllowed              Code = "ask-not-allowed"
	QuotaExceeded              Code = "quota-exceeded"
	NoCapacity                 Code = "no-capacity"
	LimitUnenforceable         Code = "limit-unenforceable"
	MPSNotReady                Code = "mps-not-ready"
	InjectionImpossible        Code = "injection-impossible"
	VisibleDevicesAll          Code = "visible-devices-all"
	VisibleDevicesOutsideGrant Code = "visible-devices-outside-grant"
	GPUEnv                     Code = "gpu-env"
	GPUDeviceNode              Code = "gpu-device-node"
	GPUDeviceRule              Code = "gpu-device-rule"
	GPUBindMount               Code = "gpu-bind-mount"
	GPUSocket                  Code = "gpu-socket"
	GPUHook                    Code = "gpu-hook"
	CDIDeviceOutsideGrant      Code = "cdi-device-outside-grant"
	PrivilegedGPU              Code = "privileged-gpu"
)

// Codes lists every code. If several apply to one container, the first one in this order is its
// code.
var Codes = []Code{
	Internal, RulesNotEnforced, ConfigInvalid, SpecInvalid, InventoryMissing, InventoryStale,
	LedgerUnreadable, AnnotationMalformed,
	AnnotationMismatch, GrantNotFound, GrantOwnerMismatch, GrantExpired, GrantInUse,
	GPUUnhealthy, ModeConflict, AskNotAllowed, QuotaExceeded, NoCapacity,
	LimitUnenforceable, MPSNotReady, InjectionImpossible, VisibleDevicesAll,
	VisibleDevicesOutsideGrant, GPUEnv,
	GPUDeviceNode, GPUDeviceRule, GPUBindMount, GPUSocket, GPUHook, CDIDeviceOutsideGrant, PrivilegedGPU,
}

// Rank returns the code's index in Codes. An unknown code is a bug of gpuledger and ranks first,
// with -1.
func (c Code) Rank() int {
	for i, known := range Codes {
		if c == known {
			return i
		}
	}
	return -1
}
