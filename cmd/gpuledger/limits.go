package main

import (
	"bufio"
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// limitsCommand sets and reads the driver's limits for gpuledgerd, in a process of its own because
// NVML can hang or crash (docs/adr/0080).
func limitsCommand() *cli.Command {
	return &cli.Command{Name: "limits", Usage: "set and read the driver's memory limits as gpuledgerd asks " +
		"for, a line of JSON each way", Hidden: true, Action: limits}
}

// maxLimits bounds a line, in bytes: a thousand containers on eight GPUs need 2 MiB.
const maxLimits = 16 << 20

func limits(c *cli.Context) error {
	n, err := openAlone(c)
	if err != nil {
		return err
	}
	if n.Policy.Inventory.Source == grant.Simulated {
		return fmt.Errorf("cannot limit memory: the GPUs are simulated")
	}
	l, err := nvml.OpenCgroupLimiter(n.Policy.Inventory.DriverRoot)
	if err != nil {
		return err
	}
	lines, e := bufio.NewScanner(c.App.Reader), json.NewEncoder(c.App.Writer)
	lines.Buffer(nil, maxLimits)
	for lines.Scan() {
		var asked []grant.CgroupLimit
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return fmt.Errorf("cannot understand what gpuledgerd asks: %w", err)
		}
		for i, ask := range asked {
			asked[i] = l.Limit(ask)
		}
		if err := e.Encode(asked); err != nil {
			return fmt.Errorf("cannot answer: %w", err)
		}
	}
	return lines.Err()
}
