package dra

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Config is the opaque parameters for the driver in the config of a DeviceClass or a claim.
type Config struct {
	APIVersion string `json:"apiVersion"` // ConfigVersion
	Kind       string `json:"kind"`       // ConfigKind
	// the mode that the device must be in
	Mode grant.Mode `json:"mode,omitempty"`
	// the least strength that must hold the containers to the grant; the grant has it, so that a
	// container that would be held by less does not start
	MinimumStrength grant.Strength `json:"minimumStrength,omitempty"`
	// what is one grant: GrantPerRequest, the default, or GrantPerClaim
	Grant Granting `json:"grant,omitempty"`
}

// Granting says what of a claim is one grant. A container uses one grant.
type Granting string

// The values of Granting.
const (
	GrantPerRequest Granting = "request" // each request is a grant
	GrantPerClaim   Granting = "claim"   // all requests with this value are one grant together
)

// The identity of a Config.
const (
	ConfigVersion = "gpuledger.dev/v1"
	ConfigKind    = "GrantConfig"
)

// ParseConfig parses opaque parameters. An unknown field is an error: it may be a limit with a
// typing error in its name.
func ParseConfig(raw []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("cannot read the parameters for %s: %w", DriverName, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("cannot read the parameters for %s: more than one object", DriverName)
	}
	if c.APIVersion != ConfigVersion || c.Kind != ConfigKind {
		return c, fmt.Errorf("cannot read the parameters for %s: want apiVersion %s and kind %s, "+
			"not %q and %q",
			DriverName, ConfigVersion, ConfigKind, c.APIVersion, c.Kind)
	}
	if c.Grant != "" && c.Grant != GrantPerRequest && c.Grant != GrantPerClaim {
		return c, fmt.Errorf("cannot read the parameters for %s: grant: want %s or %s, not %q",
			DriverName, GrantPerRequest, GrantPerClaim, c.Grant)
	}
	return c, nil
}

// configFor merges all configurations for a request. The class's come first in an allocation, and
// the claim's can only make them stricter. Another mode is an error, and of two strengths the
// greater counts. What is one grant is no limit, so there the last one counts.
func configFor(request string, all []resourceapi.DeviceAllocationConfiguration) (Config, error) {
	var sum Config
	for _, a := range all {
		if a.Opaque == nil || a.Opaque.Driver != DriverName || !concerns(a.Requests, request) {
			continue
		}
		c, err := ParseConfig(a.Opaque.Parameters.Raw)
		if err != nil {
			return sum, err
		}
		if c.Mode != "" && sum.Mode != "" && c.Mode != sum.Mode {
			return sum, fmt.Errorf("request %q is to be in mode %s and in mode %s: its class and its "+
				"claim disagree",
				request, sum.Mode, c.Mode)
		}
		if c.Mode != "" {
			sum.Mode = c.Mode
		}
		if c.MinimumStrength.AtLeast(sum.MinimumStrength) {
			sum.MinimumStrength = c.MinimumStrength
		}
		if c.Grant != "" {
			sum.Grant = c.Grant
		}
	}
	return sum, nil
}

// concerns reports whether a configuration for these requests applies to one request. The name
// before a slash stands for all its subrequests.
func concerns(requests []string, request string) bool {
	return len(requests) == 0 || slices.Contains(requests, request) ||
		slices.Contains(requests, mainRequest(request))
}

// allows returns nil if the configuration permits a device in this mode with this strength.
func (c Config) allows(request string, mode grant.Mode, strength grant.Strength) error {
	if c.Mode != "" && c.Mode != mode {
		return fmt.Errorf(
			"request %q asks for mode %s, but its device is in mode %s: choose the DeviceClass of that "+
				"mode, or select by device.attributes[%q].mode",
			request, c.Mode, mode, DriverName)
	}
	if c.MinimumStrength != "" && !strength.AtLeast(c.MinimumStrength) {
		return &grant.Refusal{Code: grant.LimitUnenforceable,
			Message: fmt.Sprintf("request %q wants strength %s, but in mode %s this node has %s", request,
				c.MinimumStrength, mode, strength)}
	}
	return nil
}
