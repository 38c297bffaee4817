package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/users"
)

func mineCommand() *cli.Command {
	return &cli.Command{
		Name:      "mine",
		Usage:     "show what I may have, what I have and what I use",
		UsageText: "gpuledger mine [--json]",
		Description: "Asks gpuledgerd, which gets the caller's user from the kernel. In a container it " +
			"works if the directory of gpuledgerd's socket for users is mounted.",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			v, err := look(c)
			if err != nil {
				return err
			}
			m := mineOf(v)
			if c.Bool("json") {
				return printJSON(c.App.Writer, m)
			}
			return printMine(c.App.Writer, m, v)
		},
	}
}

// mineJSON is what a user may have, has and uses: a contract.
type mineJSON struct {
	User  uint32       `json:"user"`  // the uid
	Quota *users.Quota `json:"quota"` // null: the user may not have anything granted
	// why the user's quota is not known
	QuotaProblem string `json:"quota_problem,omitempty"`

	Memory grant.Bytes  `json:"memory"`         // of all grants
	GPUs   int          `json:"gpus"`           // shares of GPUs
	Used   *grant.Bytes `json:"used,omitempty"` // absent if it is not known
	Grants []mineGrant  `json:"grants"`
}

type mineGrant struct {
	grantJSON
	Used *grant.Bytes `json:"used,omitempty"`
}

func mineOf(v view) mineJSON {
	m := mineJSON{User: uint32(os.Geteuid()), Grants: []mineGrant{}}
	if v.asked != nil {
		m.User, m.Quota, m.QuotaProblem = v.asked.User, v.asked.Quota, v.asked.QuotaProblem
	}
	v.Grants = slices.DeleteFunc(slices.Clone(v.Grants), func(g grant.Grant) bool { return !v.isMine(g) })
	has := admission.UseOf(m.User, "", v.View)
	m.Memory, m.GPUs = has.Memory, has.GPUs
	for _, g := range v.Grants {
		mine := mineGrant{grantJSON: grantToJSON(g, v.Now)}
		if v.used != nil {
			var sum grant.Bytes
			for _, u := range v.used.Grants {
				if u.ID == g.ID {
					sum += u.Used
				}
			}
			mine.Used = &sum
			if m.Used == nil {
				m.Used = new(grant.Bytes)
			}
			*m.Used += sum
		}
		m.Grants = append(m.Grants, mine)
	}
	return m
}

func printMine(w io.Writer, m mineJSON, v view) error {
	fmt.Fprintf(w, "user %s may have: ", users.Name(m.User))
	switch {
	case v.asked == nil:
		fmt.Fprintln(w, "all that is free, as root")
	case m.QuotaProblem != "":
		fmt.Fprintln(w, "nothing now:", m.QuotaProblem)
	case m.Quota == nil:
		fmt.Fprintln(w, "nothing without the administrator, who sets [[quota]]")
	default:
		fmt.Fprintln(w, quotaText(*m.Quota))
	}
	if len(m.Grants) == 0 {
		fmt.Fprintln(w, "no grants")
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "ID\tSTATE\tMODE\tGPUS\tUSED\tSTRENGTH\tCONTAINERS\tEXPIRES\tLABEL")
	for _, mine := range m.Grants {
		used := "-"
		if mine.Used != nil {
			used = inMiB(*mine.Used)
		}
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.ID == mine.ID })
		g := v.Grants[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.ID, g.State(v.Now), g.Mode, shares(g), used,
			g.Strength, containers(g), expiry(g, v.Now), g.Label)
	}
	return t.Flush()
}
