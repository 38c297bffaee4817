package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/cdi"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:        "cdi",
		Usage:       "offer GPUs and grants to engines as CDI devices",
		UsageText:   "gpuledger cdi generate",
		Subcommands: []*cli.Command{cdiGenerateCommand(), cdiListCommand()},
	}
}

// cdiFiles returns the CDI files of the command's node. The hook that they name runs in another
// directory, so the configuration's path must be absolute.
func cdiFiles(c *cli.Context, n *node.Node) (cdi.Files, error) {
	config, err := filepath.Abs(policy.Path(configFile(c)))
	return cdi.Files{Node: n, Config: config}, err
}

func cdiGenerateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "write the CDI files",
		UsageText: "gpuledger cdi generate\ngpuledger cdi generate --output gpus.json\ngpuledger cdi " +
			"generate --grant ID.SECRET",
		Description: "Writes the GPUs of the inventory, gpuledger.dev/gpu=UUID and =INDEX, into the " +
			"directory of the configuration ([cdi] dir), writes the files of grants again and removes " +
			"those of expired grants. Run it after `gpuledger inventory refresh`. A name alone is no " +
			"grant: a container that uses one without a grant does not start.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "write the GPUs into this `FILE` and nothing else; - is standard output"},
			&cli.StringFlag{Name: "grant", Usage: "write the file of the grant with this `REFERENCE`, as `gpuledger grant --cdi` does"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			n, err := openAsRoot(c)
			if err != nil {
				return err
			}
			files, err := cdiFiles(c, n)
			switch {
			case err != nil:
				return err
			case c.IsSet("output") && c.IsSet("grant"):
				return usage("--output and --grant exclude each other: a grant's file holds a secret and " +
					"lies in [cdi] dir")
			case c.IsSet("output"):
				return writeGPUs(c, files)
			case c.IsSet("grant"):
				return exposeGrant(c, files, c.String("grant"))
			}
			return generate(c, files)
		},
	}
}

func generate(c *cli.Context, files cdi.Files) error {
	changes, notes, err := files.Generate()
	warn(c.App.ErrWriter, notes)
	if c.Bool("json") {
		list := []map[string]any{}
		for _, change := range changes {
			list = append(list, map[string]any{"file": change.Path, "state": change.What})
		}
		return errors.Join(err, printJSON(c.App.Writer, map[string]any{"files": list}))
	}
	for _, change := range changes {
		if change.What == cdi.Absent {
			fmt.Fprintln(c.App.Writer, "this node has no GPU to offer")
			continue
		}
		fmt.Fprintf(c.App.Writer, "%s %s\n", change.What, change.Path)
	}
	return err
}

func warn(w io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(w, "gpuledger: warning: "+note)
	}
}

// writeGPUs writes the CDI file of the GPUs to the path of --output. A pipe or a terminal is
// written to, not replaced.
func writeGPUs(c *cli.Context, files cdi.Files) error {
	spec, notes, err := files.GPUs()
	if err != nil {
		return err
	}
	warn(c.App.ErrWriter, notes)
	if spec == nil {
		return errors.New("cannot write a CDI file: this node has no GPU to offer, and a file must offer " +
			"some device")
	}
	content, err := cdi.Encode(spec)
	if err != nil {
		return err
	}
	if c.String("output") == "-" {
		_, err = c.App.Writer.Write(content)
		return err
	}
	path, err := fileToWrite(c, "output")
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, content, 0o644)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return host.ReplaceFile(path, content, 0o644, host.Durable)
}

func exposeGrant(c *cli.Context, files cdi.Files, text string) error {
	reference, err := grant.ParseReference(text)
	if err != nil {
		return usage("--grant: %v", err)
	}
	path, err := files.Expose(reference)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, map[string]any{
			"files": []map[string]any{{"file": path, "state": cdi.Written}}})
	}
	fmt.Fprintf(c.App.Writer, "%s %s\n", cdi.Written, path)
	return nil
}

func cdiListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list the CDI names that engines find",
		UsageText: "gpuledger cdi list",
		Description: "A grant's name is the reference that `gpuledger grant` printed; it is shown " +
			"without the secret. The file of a stale name is out of date: `gpuledger cdi generate` " +
			"writes it again, or removes it.",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			n, err := openAsRoot(c)
			if err != nil {
				return err
			}
			files, err := cdiFiles(c, n)
			if err != nil {
				return err
			}
			devices, err := files.List()
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]any{"devices": devices})
			}
			return printDevices(c.App.Writer, devices)
		},
	}
}

func printDevices(w io.Writer, devices []cdi.ListedDevice) error {
	if len(devices) == 0 {
		fmt.Fprintln(w, "no CDI devices; `gpuledger cdi generate` writes them")
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "NAME\tSTATE\tGPUS\tFILE")
	for _, d := range devices {
		name := d.Name
		if d.Secret {
			name += ".SECRET"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, d.State, strings.Join(d.GPUs, ","), d.File)
	}
	return t.Flush()
}
