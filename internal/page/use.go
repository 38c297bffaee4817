package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// use is what is used of a GPU, beside what is granted.
type use struct {
	Used               grant.Bytes
	Utilization        int    // percent; -1: unknown
	Power, Temperature string // with their units; "": unknown
	Parts              []barPart
}

// history is the last minute of a GPU as lines of a graph of 1000 by 60, with the newest sample at
// the right.
type history struct {
	Used, Granted string // points of polylines
	Top           grant.Bytes
	Seconds       int
}

// measured adds what the watch has measured on the GPU.
func (g *gpu) measured(s watch.Status, c grants.Card) {
	i := slices.IndexFunc(s.GPUs, func(u watch.GPUUse) bool { return u.UUID == g.UUID })
	if i < 0 || s.Failure != "" {
		return
	}
	u := s.GPUs[i]
	g.Use = &use{Used: u.Used, Utilization: u.Utilization, Power: watts(u.Power),
		Temperature: celsius(u.Temperature)}
	line := bar{whole: max(g.Memory, g.Granted+g.Outside, u.Used, 1)}
	for j := range g.Grants {
		g.Grants[j].measured(s, c)
		if used := g.Grants[j].Used; used != nil {
			line.add(g.Grants[j].Class, *used, g.Grants[j].ID+" uses "+size(*used))
		}
	}
	rest := u.Used - min(u.Used, line.taken)
	line.add("outside", rest, "in use without a grant, or by grants that are not listed: "+size(rest))
	g.Use.Parts = line.parts
	g.History = historyOf(s.History, g.UUID)
}

func (r *row) measured(s watch.Status, c grants.Card) {
	r.Used = new(grant.Bytes)
	for _, u := range s.Grants {
		if string(u.ID) == r.ID && (u.GPU == c.UUID || slices.ContainsFunc(c.MIG,
			func(m grant.MIGDevice) bool { return m.UUID == u.GPU })) {
			*r.Used += u.Used
		}
	}
	r.Over = slices.ContainsFunc(s.Findings, func(f grant.Finding) bool {
		return f.Kind == grant.OverGrant && string(f.Grant) == r.ID && f.GPU == c.UUID
	})
}

// add adds up what is used of all GPUs for which that is known.
func (v *document) add(u *use) {
	if u == nil {
		return
	}
	if v.Used == nil {
		v.Used = new(grant.Bytes)
	}
	*v.Used += u.Used
}

// The size of the graph of a minute.
const (
	historyWidth  = 1000
	historyHeight = 60
)

func historyOf(moments []watch.HistorySample, uuid string) *history {
	if len(moments) < 2 {
		return nil
	}
	last := moments[len(moments)-1].Taken
	h := &history{Seconds: int(last.Sub(moments[0].Taken).Round(time.Second).Seconds())}
	for _, m := range moments {
		level := m.GPUs[uuid]
		h.Top = max(h.Top, level.Total, level.Used, level.Granted)
	}
	var used, granted []string
	for _, m := range moments {
		level, known := m.GPUs[uuid]
		if !known {
			continue
		}
		x := historyWidth - int(last.Sub(m.Taken).Seconds()/60*historyWidth)
		used = append(used, point(x, level.Used, h.Top))
		granted = append(granted, point(x, level.Granted, h.Top))
	}
	if len(used) < 2 {
		return nil
	}
	first, _, _ := strings.Cut(used[0], ",")
	h.Used = fmt.Sprintf("%s,%d %s %d,%d", first, historyHeight, strings.Join(used, " "), historyWidth,
		historyHeight)
	h.Granted = strings.Join(granted, " ")
	return h
}

func point(x int, size, top grant.Bytes) string {
	return fmt.Sprintf("%d,%.1f", max(x, 0), historyHeight*(1-float64(size)/float64(cmp.Or(top, 1))))
}
