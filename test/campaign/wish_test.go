package campaign

import (
	"cmp"
	"fmt"
	"math/rand/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// kind is what a container wants of the ledger.
type kind struct {
	name   string
	weight int
	forges forgery
	mode   string   // of the grant, if it is not the name
	grant  []string // arguments of gpuledger grant; none: no grant
	on     []int    // GPUs of which one is named mostly, so that the modes find room
	client string   // a program that the container runs, again when it is killed
}

const forged, none, asks = "forged", "none", "ask"

// mpsCompute is a percentage of which a fifth grant asks for more than a GPU has left. All grants
// have the same: a hook can set no smaller one than the largest of the GPU (docs/hook.md).
const mpsCompute = "25"

// kinds are all modes that a simulated node without MIG has.
var kinds = []kind{
	{name: string(grant.Limit), weight: 34, grant: []string{"--memory", "1GiB"}, on: []int{4, 5},
		client: "/bin/gpu 64 hold"},
	{name: string(grant.MPS), weight: 14, grant: []string{"--memory", "1GiB", "--compute", mpsCompute},
		on: []int{2, 3}, client: "/bin/client 0:64 hold"},
	{name: string(grant.Timeslice), weight: 10, grant: []string{"--memory", "1GiB"}, on: []int{6}},
	{name: string(grant.Exclusive), weight: 8, on: []int{0, 1, 7}, grant: []string{}},
	{name: asks, weight: 12, client: "/bin/gpu 64 hold"},
	{name: none, weight: 14},
	{name: forged, weight: 2, forges: allGPUs},
	{name: forged, weight: 2, forges: unknownID},
	{name: forged, weight: 2, forges: inUse},
	{name: forged, weight: 2, forges: wrongSecret, mode: string(grant.Limit),
		grant: []string{"--memory", "1GiB"}, on: []int{4, 5}},
	{name: forged, weight: 2, forges: expired, mode: string(grant.Limit),
		grant: []string{"--memory", "1GiB", "--ttl", expiresIn.String()}, on: []int{4, 5}},
}

// wish is what one container of a kind asks for.
type wish struct {
	kind
	annotations map[string]string
	env         []string
}

// draw chooses a kind. Engines whose containers may not ask get a limit in place of it.
func draw(r *rand.Rand, mayAsk bool) kind {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	at := r.IntN(total)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			if k.name == asks && !mayAsk {
				return kinds[0]
			}
			return k
		}
	}
	panic("unreachable")
}

// grantArgs are the arguments of the grant.
func (k kind) grantArgs(r *rand.Rand, label string) []string {
	args := append([]string{"grant", "--json", "--label", label, "--mode", cmp.Or(k.mode, k.name)},
		k.grant...)
	if r.IntN(5) > 0 {
		args = append(args, "--gpu", fmt.Sprint(k.on[r.IntN(len(k.on))]))
	}
	if r.IntN(4) == 0 && k.name != forged {
		args = append(args, "--ttl", "1h")
	}
	return args
}

// wishes is what the container says: a reference, its request, or what it may not have.
func (k kind) wishes(r *rand.Rand, reference string) wish {
	w := wish{kind: k, annotations: map[string]string{}}
	switch {
	case reference != "" && r.IntN(2) == 0:
		w.annotations["gpuledger.dev/grant"] = reference
	case reference != "":
		w.env = append(w.env, grant.ReferenceEnv+"="+reference)
	case k.name == asks:
		w.annotations["gpuledger.dev/memory"] = "1GiB"
	case k.forges == allGPUs:
		w.env = append(w.env, "NVIDIA_VISIBLE_DEVICES=all")
	}
	return w
}

// edits are the wish in a bundle's spec.
func (w wish) edits() []rig.Edit {
	edits := []rig.Edit{rig.Shell(script(w)), rig.Env(w.env...)}
	for key, value := range w.annotations {
		edits = append(edits, rig.Annotation(key, value))
	}
	return edits
}

// script finds out what the container can open, and keeps the client running.
func script(w wish) string {
	text := "/bin/opens >/tmp/found.new; busybox mv /tmp/found.new /tmp/found\n"
	if w.client != "" {
		text += "(while :; do " + w.client + " >/tmp/client 2>&1; busybox sleep 1; done) &\n"
	}
	return text + "exec busybox sleep 100000"
}
