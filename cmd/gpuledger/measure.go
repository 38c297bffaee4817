package main

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
)

func measureCommand() *cli.Command {
	return &cli.Command{
		Name:      "measure",
		Usage:     "print the present use of the GPUs, by process, as one line of JSON",
		UsageText: "gpuledger inventory measure",
		Description: "With --follow it answers each line on standard input with such a line, until the " +
			"input ends. gpuledgerd asks NVML through it, because NVML can hang or crash.",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "follow", Usage: "answer each line on standard input"},
			jsonFlag()},
		Action: measure,
	}
}

func measure(c *cli.Context) error {
	n, err := openAlone(c)
	if err != nil {
		return err
	}
	sample, done, err := sampler(n.Policy.Inventory)
	if err != nil {
		return err
	}
	defer done()
	if !c.Bool("follow") {
		s, err := sample(time.Now(), true)
		if err != nil {
			return err
		}
		return put(c.App.Writer, s)
	}
	return answer(c.App.Reader, c.App.Writer, sample)
}

// answer writes a sample for each line that it reads. It ends when a sample fails: gpuledgerd then
// starts another process, which loads NVML again.
func answer(in io.Reader, out io.Writer, sample sampling) error {
	for lines := bufio.NewScanner(in); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		s, err := sample(time.Now(), lines.Text() == gpu.FreshShares)
		if err != nil {
			return err
		}
		if err := put(out, s); err != nil {
			return fmt.Errorf("cannot answer: %w", err)
		}
	}
}

// put writes a sample as one line.
func put(out io.Writer, s grant.Sample) error {
	line, err := gpu.WriteSample(s)
	if err == nil {
		_, err = out.Write(line)
	}
	return err
}

// sampling takes a sample. If fresh, it also reads again what changes rarely and takes the driver
// long.
type sampling func(now time.Time, fresh bool) (grant.Sample, error)

// sampler returns the sampling of the configured source.
func sampler(source grant.Source) (sample sampling, done func(), err error) {
	if source.Source != grant.Simulated {
		s, err := nvml.OpenSampler(source.DriverRoot)
		if err != nil {
			return nil, nil, err
		}
		return s.Sample, s.Close, nil
	}
	s := simulated.Sampler{Path: source.File}
	return func(now time.Time, _ bool) (grant.Sample, error) { return s.Sample(now) }, func() {}, nil
}
