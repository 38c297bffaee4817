package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// counted are modes that take counters: more than one of them is shared.
const counted = "exclusive,timeslice,limit,mps"

// curve measures how the scheduler does as the cluster grows, without counters and with them. It
// prints the rows of a table. Each point has a cluster of its own.
func curve(ctx context.Context, o options) error {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	fmt.Printf("| nodes | counters | slices, devices | published in | one after another | %d at once |\n"+
		"|---|---|---|---|---|---|\n", o.claims)
	for _, modes := range []string{"", counted} {
		for text := range strings.SplitSeq(o.curve, ",") {
			nodes, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || nodes < 1 {
				return fmt.Errorf("-curve wants numbers of nodes, not %q", text)
			}
			at := o
			at.nodes, at.modes = nodes, modes
			began := time.Now()
			row, err := point(ctx, at)
			if err != nil {
				return fmt.Errorf("%d nodes: %w", nodes, err)
			}
			fmt.Println(row)
			fmt.Fprintf(os.Stderr, "that took %.0f s\n", time.Since(began).Seconds())
		}
	}
	return nil
}

// point measures one cluster and returns its row.
func point(ctx context.Context, o options) (row string, err error) {
	dir, err := os.MkdirTemp("", "bench-cluster-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	c, err := startCluster(ctx, dir, o)
	if err != nil {
		return "", err
	}
	defer c.stop()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.said())
		}
	}()
	if err := c.prepare(ctx, o); err != nil {
		return "", err
	}
	drivers, err := newFleet(dir, o, c)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := drivers.start(ctx); err != nil {
		return "", err
	}
	defer drivers.stop()
	if err := c.untilSlices(ctx, func(int) bool { return true }, o); err != nil {
		return "", err
	}
	published := time.Since(began)
	fmt.Fprintf(os.Stderr, "%d nodes are published\n", o.nodes)
	alone, err := c.oneByOne(ctx, o)
	if err != nil {
		return "", err
	}
	together := "not tried"
	if len(alone) == o.lone {
		if together, err = c.atOnce(ctx, o); err != nil {
			return "", err
		}
	}
	kind := "none"
	if o.modes != "" {
		kind = "each GPU's"
	}
	return fmt.Sprintf("| %d | %s | %d, %d | %.1f s | %s | %s; %s |", o.nodes, kind, c.slices(), c.devices(),
		published.Seconds(), few(alone, o), together, c.schedulerSays(ctx)), nil
}

// oneByOne makes claims one after another until the limit.
func (c *cluster) oneByOne(ctx context.Context, o options) (all []time.Duration, err error) {
	end := time.Now().Add(o.limit)
	for i := range o.lone {
		took, err := c.schedule(ctx, fmt.Sprintf("lone-%d", i), 1, time.Until(end))
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, took...)
	}
	return all, nil
}

// few describes the claims that were made one after another.
func few(all []time.Duration, o options) string {
	if len(all) == 0 {
		return fmt.Sprintf("none in %.0f s", o.limit.Seconds())
	}
	slices.Sort(all)
	text := quantiles(all)
	if len(all) < o.lone {
		text += fmt.Sprintf(" (%d in %.0f s)", len(all), o.limit.Seconds())
	}
	return text
}

// atOnce makes all claims at once and says how many are bound within the limit.
func (c *cluster) atOnce(ctx context.Context, o options) (string, error) {
	began := time.Now()
	all, err := c.schedule(ctx, "burst", o.claims, o.limit)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Sprintf("%d bound in %.0f s", len(all), o.limit.Seconds()), nil
	}
	if err != nil {
		return "", err
	}
	took := time.Since(began).Seconds()
	return fmt.Sprintf("all in %.0f s, %.1f a second", took, float64(len(all))/took), nil
}
