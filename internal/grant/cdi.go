package grant

import "strings"

// The kinds of gpuledger's CDI names. A CDI name is only a request, as an environment variable is;
// it needs a grant.
const (
	CDIVendor    = "gpuledger.dev"
	CDIKindGPU   = CDIVendor + "/gpu"   // gpuledger.dev/gpu=UUID or =INDEX: a GPU of the node
	CDIKindGrant = CDIVendor + "/grant" // gpuledger.dev/grant=REFERENCE: all that a grant gives
	CDIKindAsk   = CDIVendor + "/ask"   // gpuledger.dev/ask=SIZE: the container asks for that much
)

// CDIName splits a CDI name: "gpuledger.dev/gpu=0" has the kind gpuledger.dev/gpu and the device 0.
func CDIName(name string) (kind, device string) {
	kind, device, _ = strings.Cut(name, "=")
	return kind, device
}
