package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
)

func measureCommand() *cli.Command {
	return &cli.Command{
		Name:      "measure",
		Usage:     "print what is used of the GPUs now, and by which processes, as one line of JSON",
		UsageText: "gpuledger inventory measure",
		Description: "With --follow it answers each line on standard input with such a line, until that ends: gpuledgerd has it ask NVML,\n" +
			"which can hang or crash.",
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "follow", Usage: "answer each line on standard input"}, jsonFlag()},
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
		s, err := sample(time.Now())
		if err != nil {
			return err
		}
		return json.NewEncoder(c.App.Writer).Encode(s)
	}
	return answer(c.App.Reader, c.App.Writer, sample)
}

// answer writes a sample for each line that it reads. A sample that fails ends it: whoever asks begins anew, with another NVML.
func answer(in io.Reader, out io.Writer, sample func(time.Time) (grant.Sample, error)) error {
	lines, e := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		s, err := sample(time.Now())
		if err != nil {
			return err
		}
		if err := e.Encode(s); err != nil {
			return fmt.Errorf("cannot answer: %w", err)
		}
	}
	return lines.Err()
}

// sampler is what the configuration says is to be asked.
func sampler(source grant.Source) (sample func(time.Time) (grant.Sample, error), done func(), err error) {
	if source.Source != grant.Simulated {
		s, err := nvml.OpenSampler(source.DriverRoot)
		if err != nil {
			return nil, nil, err
		}
		return s.Sample, s.Close, nil
	}
	return func(now time.Time) (grant.Sample, error) {
		d, err := simulated.Read(source.File)
		if err != nil {
			return grant.Sample{}, err
		}
		return simulated.Sample(d, source.File, now)
	}, func() {}, nil
}
