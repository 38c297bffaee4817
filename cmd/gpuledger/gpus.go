package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
)

func gpusCommand() *cli.Command {
	return &cli.Command{
		Name:      "gpus",
		Usage:     "list the GPUs and what is free on each",
		UsageText: "gpuledger gpus [--json]",
		Flags:     []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			_, cards, _, err := survey(c)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]any{"gpus": cardsToJSON(cards)})
			}
			return printGPUs(c.App.Writer, cards)
		},
	}
}

// survey reads the node for a listing. A missing inventory is an error; a stale one is shown with a
// warning, because there is no other.
func survey(c *cli.Context) (grants.Overview, []grants.Card, *used, error) {
	v, err := look(c)
	o := v.Overview
	if err != nil {
		return o, nil, nil, err
	}
	if o.Problem != nil {
		if o.Problem.Code == grant.InventoryMissing {
			return o, nil, nil, o.Problem.Refusal()
		}
		fmt.Fprintf(c.App.ErrWriter, "gpuledger: warning: %s\nhint: %s\n", o.Problem.Message, o.Problem.Hint)
	}
	if v.paused != nil {
		fmt.Fprintf(c.App.ErrWriter, "gpuledger: warning: disabled %s: containers start without grants\n",
			until(*v.paused))
	}
	warnDamaged(c.App.ErrWriter, o.Damaged)
	cards, err := v.cards()
	return o, cards, v.used, err
}

// gpuJSON is a GPU, or a partition of one, as scripts read it: a contract.
type gpuJSON struct {
	UUID   string      `json:"uuid"`
	Index  int         `json:"index"`
	Name   string      `json:"name"`
	Memory grant.Bytes `json:"memory"`
	Free   grant.Bytes `json:"free"`
	Mode   grant.Mode  `json:"mode"` // "" while no grant is on it
	Grants []grant.ID  `json:"grants"`
	Health string      `json:"health"`
	Parent string      `json:"parent,omitempty"` // of a MIG device: its GPU's UUID
	Part   string      `json:"part,omitempty"`   // and its name for people, for example 0:1
}

func cardsToJSON(cards []grants.Card) []gpuJSON {
	list := []gpuJSON{}
	for _, card := range cards {
		list = append(list, gpuJSON{UUID: card.UUID, Index: card.Index, Name: card.Name, Memory: card.Memory,
			Free: card.Free, Mode: card.Mode, Grants: ids(card.Grants), Health: card.Health})
		for _, m := range card.Parts {
			list = append(list, gpuJSON{UUID: m.UUID, Index: card.Index, Name: card.Name + " MIG " +
				m.Profile, Memory: m.Memory, Free: m.Free,
				Mode: grant.MIG, Grants: ids(m.Grants), Health: card.Health, Parent: card.UUID, Part: m.Name})
		}
	}
	return list
}

func ids(grants []grant.Grant) []grant.ID {
	list := make([]grant.ID, len(grants))
	for i, g := range grants {
		list[i] = g.ID
	}
	return list
}

func printGPUs(w io.Writer, cards []grants.Card) error {
	t := table(w)
	fmt.Fprintln(t, "GPU\tNAME\tMEMORY\tFREE\tMODE\tGRANTS\tHEALTH\tUUID")
	for _, g := range cardsToJSON(cards) {
		name := g.Name
		index := fmt.Sprint(g.Index)
		if g.Parent != "" {
			index = "  " + g.Part
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", index, name, inMiB(g.Memory), inMiB(g.Free),
			dash(string(g.Mode)), len(g.Grants), g.Health, g.UUID)
	}
	return t.Flush()
}

func dash(text string) string {
	if strings.TrimSpace(text) == "" {
		return "-"
	}
	return text
}
