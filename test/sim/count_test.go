package sim

import (
	"fmt"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// kinds are what a run counts, and how much of it a life must have on average: less than a sixth of
// what 149 lives had. Lives in which all is refused, or that meet no power cut, prove nothing. What
// few lives have is judged only in many.
var kinds = []struct {
	name  string
	least float64
	from  int // how many lives
}{
	{"lives of nodes", 1, few},
	{containersStarted, 1, few}, // they had 6.2
	{"steps", 50, few},
	{powerCuts, .2, few},                   // 1.5
	{kills, .8, few},                       // 5.2
	{killsOfDaemon, .15, few},              // 1.1
	{grantsIn(grant.Limit), .5, few},       // 4.2
	{grantsIn(grant.Timeslice), .03, many}, // .22
	{grantsIn(grant.Exclusive), .02, many}, // .15
	{grantsIn(grant.MPS), .1, few},         // .95
	{grantsIn(grant.MIG), .005, many},      // .054
	{grantsOfQueue, .1, few},               // 1.9
	{releasesIdle, .02, few},               // .57
}

// From how many lives on the averages are judged.
const few, many = 40, 1000

// count is what lives have in them, by kind.
type count map[string]int

// add adds a life.
func (c count) add(l *life) {
	c["lives of nodes"]++
	c["steps"] += l.step
	for kind, times := range l.happened {
		c[kind] += times
	}
}

func (c count) String() string {
	var all []string
	for _, k := range kinds {
		all = append(all, fmt.Sprintf("%d %s", c[k.name], k.name))
	}
	return strings.Join(all, ", ")
}

// addText adds what another process has printed of its count.
func (c count) addText(text string) error {
	for _, part := range strings.Split(text, ", ") {
		number, name, _ := strings.Cut(part, " ")
		times := 0
		if _, err := fmt.Sscan(number, &times); err != nil {
			return err
		}
		c[name] += times
	}
	return nil
}

// missing says what there was too little of; "" if there was enough, or too few lives to say so.
func (c count) missing() string {
	nodes := c["lives of nodes"]
	for _, k := range kinds {
		if least := k.least * float64(nodes); nodes >= k.from && float64(c[k.name]) < least {
			return fmt.Sprintf("%d %s are too few, want %.1f at least", c[k.name], k.name, least)
		}
	}
	return ""
}
