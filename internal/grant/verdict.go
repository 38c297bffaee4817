package grant

import (
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Verdict is the decision about a container.
type Verdict struct {
	Kind     VerdictKind
	Code     Code // of a refusal
	Message  string
	Hint     string
	Grant    *Grant // set with an admission, and with a refusal that is about a grant
	Details  []Detail
	Edits    cdispec.ContainerEdits
	Rules    []DeviceRule // device rules to add; with Narrow, the rules that replace the spec's
	Masked   []string     // paths to hide; only an OCI spec can express it
	Narrow   bool         // the spec's own device rules are too wide to stay
	Removed  []Removal
	Strength Strength
	// of an admission: why Strength is less than the grant's listed strength; "" if it is not
	Weaker    string
	Limited   bool // the edits bring the shim: the grant's records must exist before the container
	Throttled bool // and with it the proxy that throttles launches
	Driven    bool // the edits bring the hook with which the driver limits the container's cgroup
	// of a refusal: it may be over in a moment, when the ledger learns of the pod of a claim's
	// grant, or the grant's MPS daemon is ready
	Late bool
	// what passed and belongs into the audit log: "node-root mount:/host", "exempt ..."
	Recorded []string
}

// VerdictKind is the kind of a verdict.
type VerdictKind string

// The verdicts.
const (
	Pass    VerdictKind = "pass"   // it reaches no GPU, or reaches one only by what the edits remove
	Admit   VerdictKind = "admit"  // it gets what its grant gives, by the edits
	Refused VerdictKind = "refuse" // it does not start
)

// Detail is one hit that counts in a verdict.
type Detail struct {
	Vector string `json:"vector"`
	Value  string `json:"value"`
	Code   Code   `json:"code"`
}

// Touches reports whether the verdict changes the spec.
func (v Verdict) Touches() bool {
	return v.Kind == Admit || v.Kind == Pass && (len(v.Removed) > 0 || v.Narrow || len(v.Edits.Env) > 0)
}

// Refusal returns the verdict's refusal as an error value, or nil.
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

// Docs is the address of the documentation on the web. A tenant reads a hint in a pod's events and
// has none of gpuledger's files.
const Docs = "https://github.com/gpuledger/gpuledger/blob/main/docs/"

// Refusal says why something is not given. Its message names no other tenant.
type Refusal struct {
	Code    Code
	Message string
	Hint    string
}

// Error returns the sentence that engines show, without the hint.
func (r *Refusal) Error() string { return "refused (" + string(r.Code) + "): " + r.Message }

// NotFoundError says that a grant or a GPU which the caller named does not exist.
type NotFoundError struct{ Message string }

func (e *NotFoundError) Error() string { return e.Message }

// UsageError says that the request of the caller is invalid in itself.
type UsageError struct{ Message string }

func (e *UsageError) Error() string { return e.Message }
