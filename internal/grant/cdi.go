package grant

import "strings"

// The kinds of our CDI names. A name is a request, as an environment variable is: only a grant
// makes it true.
const (
	CDIVendor    = "gpuledger.dev"
	CDIKindGPU   = CDIVendor + "/gpu"   // gpuledger.dev/gpu=UUID or =INDEX: a GPU of the node
	CDIKindGrant = CDIVendor + "/grant" // gpuledger.dev/grant=REFERENCE: all that a grant gives
)

// CDIName takes a CDI name apart: "gpuledger.dev/gpu=0" is kind gpuledger.dev/gpu and device 0.
func CDIName(name string) (kind, device string) {
	kind, device, _ = strings.Cut(name, "=")
	return kind, device
}
