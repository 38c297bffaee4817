package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/driver"
	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

func inventoryCommand() *cli.Command {
	return &cli.Command{
		Name:        "inventory",
		Usage:       "record the GPUs of this node",
		UsageText:   "gpuledger inventory refresh",
		Subcommands: []*cli.Command{refreshCommand(), measureCommand(), limitsCommand(), simulateCommand()},
	}
}

func refreshCommand() *cli.Command {
	return &cli.Command{
		Name:      "refresh",
		Usage:     "scan the node and write the snapshot that every create reads",
		UsageText: "gpuledger inventory refresh",
		Description: "Run it at boot, and after the driver, the GPUs or their partitions have changed. " +
			"Until then containers that ask for a GPU are refused with inventory-stale.",
		Flags:  []cli.Flag{jsonFlag()},
		Action: refresh,
	}
}

func refresh(c *cli.Context) error {
	n, err := openAlone(c)
	if err != nil {
		return err
	}
	path := gpu.Path(n.Policy.StateDir)
	inv, notes, err := takeInventory(n, path, otherRefresh, scan)
	warn(c.App.ErrWriter, notes)
	if err != nil {
		return hintRoot(err)
	}
	updateCDI(c, n)
	if err := driver.NameNodes(n.Host); err != nil {
		warn(c.App.ErrWriter, []string{err.Error()})
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, inv)
	}
	for _, g := range inv.GPUs {
		fmt.Fprintf(c.App.Writer, "GPU %d: %s%s, %s, %s (%s)\n", g.Index, g.Name, virtualLabel[g.Virtual],
			g.Memory, g.UUID, g.Health)
	}
	if files := len(inv.Driver.Files); files > 0 {
		fmt.Fprintf(c.App.Writer, "driver %s: %d files below %s\n", inv.Driver.Version,
			files, inv.Driver.Root)
	}
	fmt.Fprintf(c.App.Writer, "%d GPUs written to %s\n", len(inv.GPUs), path)
	return nil
}

// otherRefresh is how long a refresh waits for another one. systemd and gpuledgerd give a refresh
// one minute, and the rest of it is for the scan.
const otherRefresh = 30 * time.Second

// takeInventory scans the node and writes what it finds, as the only process that does so. It waits
// for another one. The result of a first scan is in force during a second one, which may fail.
func takeInventory(n *node.Node, path string, wait time.Duration,
	scan func(host.Host, grant.Source) (grant.Inventory, error)) (inv grant.Inventory, notes []string,
	err error) {
	unlock, err := gpu.Lock(path, wait)
	if err != nil {
		return inv, nil, err
	}
	defer unlock()
	inv, err = scanAgain(n.Host, func() (grant.Inventory, error) {
		inv, err := scan(n.Host, n.Policy.Inventory)
		if err != nil {
			return inv, err
		}
		notes = addDriver(&inv, n.Host)
		return inv, gpu.Write(path, inv)
	})
	return inv, notes, err
}

// scanAgain scans a second time if the driver has registered a GPU since the scan began, and that
// is not among those found. udev reports each GPU, but systemd drops a start of
// gpuledger-inventory.service while that runs.
func scanAgain(h host.Host, scan func() (grant.Inventory, error)) (inv grant.Inventory, err error) {
	before := gpu.Registered(h)
	inv, err = scan()
	if err == nil && gpu.CameLater(inv, before, h) != "" {
		return scan()
	}
	return inv, err
}

// virtualLabel is what a listing adds for a GPU of a virtual machine or of its host.
var virtualLabel = map[grant.Virtual]string{grant.VGPU: " (vGPU)", grant.PassThrough: " (passed through)",
	grant.VGPUHost: " (host of vGPUs)"}

// updateCDI writes the node's CDI files again, if it has some. An error does not undo the snapshot.
func updateCDI(c *cli.Context, n *node.Node) {
	files, err := cdiFiles(c, n)
	if err == nil {
		var notes []string
		_, notes, err = files.Update()
		warn(c.App.ErrWriter, notes)
	}
	if err != nil {
		warn(c.App.ErrWriter, []string{fmt.Sprintf("the CDI files are as they were: %v", err)})
	}
}

// addDriver adds the driver's files to the inventory. If they cannot be found, the inventory still
// has the GPUs, and the notes say what is missing.
func addDriver(inv *grant.Inventory, h host.Host) (notes []string) {
	where, err := driver.Of(*inv, h)
	if err != nil {
		return []string{err.Error()}
	}
	found, err := driver.FindUserSpace(where)
	if err != nil {
		return []string{err.Error()}
	}
	inv.Driver.Files = found.Files
	if inv.Driver.Version == "" {
		inv.Driver.Version = found.Version
	}
	return found.Notes
}

// scan asks NVML, or reads the description of a simulated node.
func scan(h host.Host, source grant.Source) (grant.Inventory, error) {
	if source.Source != grant.Simulated {
		return nvml.Refresh(h, source.DriverRoot)
	}
	d, err := simulated.Read(source.File)
	if err != nil {
		return grant.Inventory{}, err
	}
	return simulated.Scan(d, h, source.DriverRoot)
}

func simulateCommand() *cli.Command {
	return &cli.Command{
		Name:  "simulate",
		Usage: "write a description of simulated GPUs, to try gpuledger on any machine",
		UsageText: "gpuledger inventory simulate --gpus 2 --memory 16160MiB --name 'Tesla V100' " +
			"--out node.json",
		Description: "Name the file in the configuration ([inventory] source = \"simulated\", file = " +
			"...) and run `gpuledger inventory refresh`. Edit the file to describe GPUs that differ, or " +
			"that are unhealthy.",
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "gpus", Usage: "how many", Value: new(cmdline.Number(1))},
			&cli.StringFlag{Name: "memory", Usage: "memory of each, for example 16160MiB"},
			&cli.StringFlag{Name: "name", Usage: "product name", Value: simulated.DefaultName},
			&cli.StringSliceFlag{Name: "mig", Usage: "MIG `PROFILES` of each, for example 1g.10gb,3g.40gb"},
			&cli.StringFlag{Name: "out", Usage: "the `FILE` to write"},
		},
		Action: simulate,
	}
}

func simulate(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	for _, flag := range []string{"memory", "out"} {
		if c.String(flag) == "" {
			return usage("--%s is needed; see `gpuledger inventory simulate --help`", flag)
		}
	}
	memory, err := size(c, "memory")
	if err != nil {
		return err
	}
	d, err := simulated.Describe(c.Int("gpus"), memory, c.String("name"), c.StringSlice("mig"))
	if err != nil {
		return err
	}
	out, err := fileToWrite(c, "out")
	if err != nil {
		return err
	}
	if err := simulated.WriteFile(out, d); err != nil {
		return err
	}
	fmt.Fprintf(c.App.ErrWriter, "%d GPUs written to %s; name that file in [inventory] of the "+
		"configuration, then run `gpuledger inventory refresh`\n", len(d.GPUs), out)
	return nil
}

// size reads a flag that is a size. A wrong value is a usage error.
func size(c *cli.Context, flag string) (grant.Bytes, error) {
	b, err := grant.ParseBytes(c.String(flag))
	if err != nil {
		return 0, &grant.UsageError{Message: fmt.Sprintf("--%s: %v", flag, err)}
	}
	return b, nil
}
