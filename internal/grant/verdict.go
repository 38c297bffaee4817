package grant

import (
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Verdict is what becomes of a container.
type Verdict struct {
	Kind     VerdictKind
	Code     Code // of a refusal
	Message  string
	Hint     string
	Grant    *Grant // of an admission, and of a refusal that is about a grant
	Details  []Detail
	Edits    cdispec.ContainerEdits
	Rules    []DeviceRule // device rules to add, or with Narrow to have instead of the spec's
	Masked   []string     // paths to be hidden; only an OCI spec has words for it
	Narrow   bool         // the spec's own device rules are too wide to be kept
	Removed  []Removal
	Strength Strength
	// of an admission: why that is less than people were told of the grant; "" where it is not
	Weaker    string
	Limited   bool // the edits bring the shim: the grant's records must be there before the container is
	Throttled bool // of it the proxy that throttles launches
	Driven    bool // the edits bring the hook that has the driver limit its cgroup
	// of a refusal: a claim's grant may be the container's in a moment, when the ledger is told of
	// its pod
	Late bool
	// what passed and is worth a line in the audit log: "node-root mount:/host", "exempt ..."
	Recorded []string
}

// VerdictKind is one of three.
type VerdictKind string

// The verdicts.
const (
	Pass    VerdictKind = "pass"   // it reaches no GPU, or only by what the edits take away
	Admit   VerdictKind = "admit"  // it gets what its grant says, by the edits
	Refused VerdictKind = "refuse" // it does not start
)

// Detail is one finding of a verdict.
type Detail struct {
	Vector string `json:"vector"`
	Value  string `json:"value"`
	Code   Code   `json:"code"`
}

// Touches reports whether the verdict changes the spec.
func (v Verdict) Touches() bool {
	return v.Kind == Admit || v.Kind == Pass && (len(v.Removed) > 0 || v.Narrow || len(v.Edits.Env) > 0)
}

// Refusal is the verdict's refusal as an error, or nil.
func (v Verdict) Refusal() *Refusal {
	if v.Kind != Refused {
		return nil
	}
	return &Refusal{Code: v.Code, Message: v.Message, Hint: v.Hint}
}

// DeviceRule is a rule of the device cgroup. Major and Minor are -1 for all.
type DeviceRule struct {
	Allow        bool
	Type         byte // 'a', 'b' or 'c'
	Major, Minor int64
	Access       string // of "rwm"
}

// Docs is where the documentation can be read from anywhere: a tenant sees a hint in a pod's
// events, and has no files of ours.
const Docs = "https://github.com/gpuledger/gpuledger/blob/main/docs/"

// Refusal is why something is not given. Its text names no other tenant.
type Refusal struct {
	Code    Code
	Message string
	Hint    string
}

// Error is the sentence that engines show, without the hint.
func (r *Refusal) Error() string { return "refused (" + string(r.Code) + "): " + r.Message }

// NotFoundError says that a grant or a GPU which the caller named is not there.
type NotFoundError struct{ Message string }

func (e *NotFoundError) Error() string { return e.Message }

// UsageError says that the caller asked for something that can never be.
type UsageError struct{ Message string }

func (e *UsageError) Error() string { return e.Message }
