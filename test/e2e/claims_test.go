//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// claimsOfOthers applies each manifest, with the webhook and the DRA driver. The kubelet prepares
// the claims of the table, or the manifest is refused with the table's sentence.
func (s *site) claimsOfOthers() {
	note(s.T, outcome{Engine: s.engine.name, Client: "kubelet", Entry: s.entry.name,
		Case: "manifests of others become claims", Result: "ok", Why: standInMPS})
	driver := s.startDRA() // the row before ended its own
	defer s.ends(driver)
	defer s.webhookEntered()()
	all := samples(s.T)
	for i, m := range all {
		if mode := m.claimedMode(); mode != "" && m.labels == nil {
			all[i].labels = map[string]string{"gpuledger.dev/mode": mode}
		}
		if m.mps {
			all[i].each = claimedMemory(claimed.FindStringSubmatch(m.claims)[4])
		}
	}
	for _, group := range inGroups(all) {
		s.T.(*testing.T).Run(group[0].config, func(t *testing.T) { s.in(t).claimsIn(group) })
	}
}

// claimed is what the table says about a container: the name of a template has what it asks for.
var claimed = regexp.MustCompile("^([a-z]+): `(gpuledger-([a-z]+)(?:-([0-9]+[gm]i))?(?:-([0-9]+)pc)?" +
	"(?:-x([0-9]+))?-[0-9a-f]{8})`$")

// claimedMemory reads an amount in a template's name.
func claimedMemory(text string) grant.Bytes {
	memory, _ := grant.ParseBytes(strings.NewReplacer("gi", "GiB", "mi", "MiB").Replace(text))
	return memory
}

// claimedMode is the mode that a node has to be in for a sample's claims; "": any.
func (m sample) claimedMode() string {
	for _, mode := range []grant.Mode{grant.Timeslice, grant.MPS} {
		if strings.Contains(m.claims, "`gpuledger-"+string(mode)+"-") {
			return string(mode)
		}
	}
	return ""
}

func (s *site) claimsIn(group []sample) {
	config, err := os.ReadFile(samplesDir + group[0].config)
	must(s.T, err)
	writeFile(s.T, etcKubernetes+"/resources.toml", string(config))
	mode := cmp.Or(group[0].claimedMode(), "limit")
	if group[0].mps {
		mode = "mps"
		defer s.servesMPS()()
	}
	leave := s.labeled(group[0].labels)
	defer func() { leave(); s.offers("one shared mode again", "limit true  limit true  ") }()
	s.offers("the GPUs are in mode "+mode, mode+" true  "+mode+" true  ")
	hook := s.startWebhook("dra")
	defer s.ends(hook)
	names, _ := namesIn(string(config))
	s.webhookIsAsked(names[0])
	for _, m := range group {
		s.T.(*testing.T).Run(m.name, func(t *testing.T) { s.in(t).claimedBy(m, grant.Mode(mode)) })
	}
}

// claimedBy applies a manifest and waits for what becomes of it.
func (s *site) claimedBy(m sample, mode grant.Mode) {
	o := outcome{Engine: s.engine.name, Client: "kubelet", Entry: s.entry.name,
		Case: "  " + m.name + ", claims"}
	defer func() {
		if s.T.Failed() {
			o.Result = "FAIL"
		}
		note(s.T, o)
	}()
	r := s.kubectlWith(m.forThisNode(), "apply", "-n", "team", "-f", "-")
	defer func() {
		s.administer("delete", "jobs,pods", "--all", "-n", "team", "--wait=true", "--grace-period=1")
		s.nothingLeft()
	}()
	if reason, refused := strings.CutPrefix(m.claims, "refused: "); refused {
		o.Result = "refused"
		s.sampleRefused(m, r.Stderr, reason)
		return
	}
	pod := s.podOf(m, r)
	if waiting[m.name] != "" {
		o.Result = "waits"
		s.waits(pod)
		return
	}
	o.Result = "runs"
	for part := range strings.SplitSeq(m.claims, "; ") {
		want := claimed.FindStringSubmatch(part)
		if want == nil {
			s.T.Fatalf("the table says %q", part)
		}
		if !m.isInit(want[1]) { // its claim is checked by the container that has it, too
			s.hasClaimed(m, pod, mode, want)
		}
	}
}

// isInit reports whether a container of a sample ends before the others start.
func (m sample) isInit(container string) bool {
	return strings.Contains(m.text, "name: "+container+"\n      image: registry.example.com/loader")
}

// claimOfPod returns the grant of the claim that was made from a template for a pod.
func (s *site) claimOfPod(pod, template string) rig.Listed {
	s.T.Helper()
	var p struct {
		Spec struct {
			ResourceClaims []struct{ Name, ResourceClaimTemplateName string }
		}
		Status struct {
			ResourceClaimStatuses []struct{ Name, ResourceClaimName string }
		}
	}
	s.read(&p, "pod", pod)
	for _, c := range p.Spec.ResourceClaims {
		for _, made := range p.Status.ResourceClaimStatuses {
			if c.ResourceClaimTemplateName == template && made.Name == c.Name {
				return s.claimOf(made.ResourceClaimName)
			}
		}
	}
	s.T.Fatalf("pod %s has no claim from %s: %+v", pod, template, p)
	return rig.Listed{}
}

// hasClaimed waits until a container runs, and compares its grant with the table.
func (s *site) hasClaimed(m sample, pod string, mode grant.Mode, want []string) {
	s.T.Helper()
	sees := s.runsIn(pod, want[1])
	g := s.claimOfPod(pod, want[2])
	number, memory := 1, ofTheNode
	if want[6] != "" {
		number, _ = strconv.Atoi(want[6])
	}
	if want[3] == "exclusive" {
		mode = grant.Exclusive
	} else if want[4] != "" {
		memory = claimedMemory(want[4])
	}
	compute, _ := strconv.Atoi(want[5])
	if g.Source != "dra" || g.State != grant.Bound || g.Mode != mode || g.Compute != compute ||
		len(g.GPUs) != number || slices.ContainsFunc(g.GPUs, func(share grant.Share) bool {
		return share.Memory != memory
	}) {
		s.T.Errorf("container %s has %+v, want %s of each of %d GPUs in mode %s, compute %d", want[1], g,
			memory, number, mode, compute)
	}
	nodes := ""
	for _, share := range g.GPUs {
		nodes += fmt.Sprintf("/dev/nvidia%d\n", share.Index)
	}
	if mode == grant.MPS {
		nodes += fmt.Sprintf("mps threads=%d\n0:%d CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n",
			cmp.Or(compute, 100), memory/grant.MiB)
	}
	if sees != nodes {
		s.T.Errorf("container %s sees %q and has %+v", want[1], sees, g)
	}
	s.T.Logf("container %s: %+v", want[1], g)
}
