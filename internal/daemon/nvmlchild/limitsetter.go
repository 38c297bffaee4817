package nvmlchild

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// LimitSetter sets and reads the driver's memory limits of cgroups through a child process.
type LimitSetter struct{ Child }

// NewLimitSetter has `gpuledger inventory limits` set them, with the configuration at the path.
// inventory gives the present state of the node's inventory.
func NewLimitSetter(config string, inventory func() host.Stamp) *LimitSetter {
	return &LimitSetter{newChild(config, inventory, "limits")}
}

// Limit sets or reads limits, as each of them says. An answer about other limits, or about fewer,
// is an error.
func (d *LimitSetter) Limit(ctx context.Context, source grant.Source,
	asks []grant.CgroupLimit) (answers []grant.CgroupLimit, err error) {
	line, err := json.Marshal(asks)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	err = d.exchange(ctx, source, line, func(line []byte) error {
		answers = nil
		if err := json.Unmarshal(line, &answers); err != nil {
			return fmt.Errorf("NVML's answer cannot be understood: %w", err)
		}
		if !slices.EqualFunc(asks, answers, isAboutSame) {
			return errors.New("NVML's answer is to something else")
		}
		return nil
	})
	return answers, err
}

func isAboutSame(a, b grant.CgroupLimit) bool { return a.Cgroup == b.Cgroup && a.GPU == b.GPU }
