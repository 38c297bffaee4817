package test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// adopts is the configuration with which a node trusts its scheduler.
const adopts = "[annotations]\ntrust = \"adopt\"\n"

const podUID = "7a1c0000-0000-4000-8000-00000000000a"

func inPod(container string) rig.Edit { return rig.Identity(podUID, "team", "job-0", container) }

// allocated is what a scheduler writes about one container of a pod.
func allocated(container, gpus, memory string) rig.Edit {
	return written(container, "gpus", gpus, "memory", memory)
}

func written(container string, pairs ...string) rig.Edit {
	var edits []rig.Edit
	for pair := range slices.Chunk(pairs, 2) {
		edits = append(edits, rig.Annotation("gpuledger.dev/"+pair[0]+"."+container, pair[1]))
	}
	return together(edits...)
}

// gpushare is what its scheduler writes about a pod, and the container's environment.
func gpushare(card, pod, container string) rig.Edit {
	return together(rig.Annotation("ALIYUN_COM_GPU_MEM_IDX", card),
		rig.Annotation("ALIYUN_COM_GPU_MEM_POD", pod), rig.Annotation("ALIYUN_COM_GPU_MEM_DEV", "15"),
		rig.Env("ALIYUN_COM_GPU_MEM_CONTAINER="+container))
}

func adopting(t *testing.T, more string) *rig.Node {
	return rig.NewNode(t, rig.Setup{Engine: "containerd", Config: adopts + more})
}

// lines are the decisions in the node's audit log.
func lines(t *testing.T, n *rig.Node) []audited {
	t.Helper()
	var all []audited
	for line := range strings.Lines(read(t, n.Dir+"/audit.jsonl")) {
		var a audited
		must(t, json.Unmarshal([]byte(line), &a))
		all = append(all, a)
	}
	return all
}

// audited has the fields that a line of the audit log and explain --json share.
type audited struct {
	Container, Verdict, Mode, Code, Message, Strength string
	Grant                                             grant.ID
	Details                                           []grant.Detail
	Removed, Recorded                                 []string
}

// TestAdopt: what the scheduler allocated is the container's grant as long as the container exists.
func TestAdopt(t *testing.T) {
	n := adopting(t, "")
	b := n.Bundle("c", inPod("train"), allocated("train", "1", "4GiB"), written("train", "compute", "30"),
		rig.Annotation("gpuledger.dev/grant", "adopt"), // as the kubelet gives it where a scheduler places
		rig.Env("NVIDIA_VISIBLE_DEVICES=1"))
	var explained struct {
		Verdict  string
		Grant    string
		Recorded []string
	}
	must(t, json.Unmarshal([]byte(b.Explain("--json").Stdout), &explained))
	if explained.Verdict != "admit" || explained.Grant != "" || len(explained.Recorded) != 1 ||
		explained.Recorded[0] != "adopts 1:4GiB in mode limit from annotation:gpuledger.dev/gpus.train" {
		t.Errorf("explain: %+v", explained)
	}
	if r := b.Explain(); r.Code != 0 || !strings.HasPrefix(r.Stdout,
		"admit: its start would make a grant of 1:4GiB, ") {
		t.Errorf("explain: %+v", r)
	}
	if len(n.Grants()) != 0 || len(n.Files()) != 1 {
		t.Fatalf("explain has entered %+v, %v", n.Grants(), n.Files())
	}

	starts(t, b)
	before := n.Grants()
	if len(before) != 1 || before[0].Source != "adopted" || before[0].Owner != "pod:"+podUID+"/train" ||
		before[0].State != grant.Bound || before[0].Mode != grant.Limit ||
		len(before[0].GPUs) != 1 || before[0].GPUs[0].Index != 1 || before[0].GPUs[0].Memory != 4*grant.GiB ||
		before[0].Bindings[0].Container != "c" {
		t.Fatalf("%+v", before)
	}
	if got := free(t, n); got[0] != 16160*grant.MiB || got[1] != 16160*grant.MiB-4*grant.GiB {
		t.Errorf("free: %v", got)
	}
	if r := rig.Run(n.Wrapper("exec", "c", "/bin/busybox", "ls", "/dev")); strings.Contains(r.Stdout,
		"nvidia0\n") || !strings.Contains(r.Stdout, "nvidia1\n") {
		t.Errorf("%+v", r)
	}
	if log := lines(t, n); len(log) != 1 || log[0].Grant != before[0].ID || log[0].Verdict != "admit" ||
		!slices.Equal(log[0].Recorded, explained.Recorded) {
		t.Errorf("audit: %+v", log)
	}
	n.CheckSound("with an adopted grant")

	isRefused(t, n.Bundle("twin", inPod("train"), allocated("train", "1", "4GiB")).Create(), grant.GrantInUse)
	isRefused(t, n.Bundle("liar", inPod("train"), allocated("train", "1", "5GiB")).Create(),
		grant.AnnotationMismatch)
	b.KillInit()
	holdsNothing(t, n)
	if got := free(t, n); got[1] != 16160*grant.MiB {
		t.Errorf("free: %v", got)
	}
	if r := b.Delete(); r.Code != 0 {
		t.Error(r)
	}
	if files := n.Files(); slices.ContainsFunc(files, func(f string) bool {
		return strings.Contains(f, "g-")
	}) {
		t.Errorf("after the delete: %v", files)
	}
	starts(t, n.Bundle("c2", inPod("train"), allocated("train", "1", "4GiB"))) // the kubelet's next attempt
	n.CheckSound("at the end")
}

// TestAnAdoptedGrantEndsWithItsContainer, however the container ended: no caller releases it.
func TestAnAdoptedGrantEndsWithItsContainer(t *testing.T) {
	whole := allocated("train", "0", "16160MiB")
	for name, end := range map[string]func(t *testing.T, n *rig.Node, b *rig.Bundle){
		"killed, never deleted": func(_ *testing.T, _ *rig.Node, b *rig.Bundle) { starts(t, b).KillInit() },
		"deleted behind us":     func(_ *testing.T, _ *rig.Node, b *rig.Bundle) { starts(t, b).End() },
		"the reboot": func(_ *testing.T, n *rig.Node, b *rig.Bundle) {
			starts(t, b).End()
			n.Reboot()
			n.Must("inventory", "refresh")
		},
		"released while it ran": func(t *testing.T, n *rig.Node, b *rig.Bundle) {
			starts(t, b)
			id := n.Grants()[0].ID
			n.Must("release", string(id))
			wantState(t, n, id, "released and in use", grant.Draining)
			isRefused(t, n.Bundle("too-early", inPod("train"), whole).Create(), grant.GrantExpired)
			b.KillInit()
		},
		"the real runtime failed": func(t *testing.T, n *rig.Node, b *rig.Bundle) {
			setRuntime(t, n, "/bin/false")
			if r := b.Create(); r.Code != 1 {
				t.Error(r)
			}
			setRuntime(t, n, "runc")
		},
		"its bundle is read-only": func(t *testing.T, n *rig.Node, b *rig.Bundle) {
			t.Run("create", func(t *testing.T) {
				rig.ReadOnly(t, n.Dir+"/bundles")
				isRefused(t, b.Create(), grant.InjectionImpossible)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := adopting(t, "")
			end(t, n, n.Bundle("first", inPod("train"), whole))
			rig.Eventually(t, "the ledger counts nothing", func() bool { return len(n.Grants()) == 0 })
			starts(t, n.Bundle("next", inPod("train"), whole)).End()
			starts(t, n.Bundle("other", rig.Identity("another", "team", "job-1", "train"), whole)).End()
			n.Must("release", string(n.Grant("--mode", "exclusive", "--gpus", "2").ID))
			n.CheckSound("at the end")
		})
	}
}

// TestAKilledAdoptionLeavesNothing that holds a GPU, and the same container's next create succeeds.
func TestAKilledAdoptionLeavesNothing(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Tags: []string{"failpoint"}, Engine: "containerd", Config: adopts})
	leavesNothing(t, n, n.Bundle("c", inPod("train"), allocated("train", "0", "16160MiB")))
}

// leavesNothing kills a create that enters a grant of GPU 0 at each point, and repeats it.
func leavesNothing(t *testing.T, n *rig.Node, b *rig.Bundle) {
	t.Helper()
	for _, point := range []string{"ledger/put-renamed", "node/adopted", "ledger/bind-written", "node/bound",
		"runtime/edited"} {
		if r := b.On(n.Dying(point)).Create(); !r.Killed() {
			t.Fatalf("%s: %+v", point, r)
		}
		if got := n.Grants(); len(got) != 0 {
			t.Errorf("%s: the ledger counts %+v", point, got)
		}
		n.CheckSound(point)
		n.Must("release", string(n.Grant("--memory", "16160MiB", "--gpu", "0").ID))
		if r := b.Create(); r.Code != 0 {
			t.Errorf("the next create after %s: %+v", point, r)
		}
		b.End()
	}
}

// TestNothingIsAdopted: each of these is refused, and leaves the ledger as it was.
func TestNothingIsAdopted(t *testing.T) {
	for _, c := range []struct {
		name, config string
		edits        []rig.Edit
		code         grant.Code
		prints       string
	}{
		{"over capacity", "", []rig.Edit{inPod("train"), allocated("train", "0", "16161MiB")}, grant.NoCapacity, "is allocated 16161MiB over 1 GPU(s)"},
		{"into what a grant holds", "", []rig.Edit{inPod("train"), allocated("train", "1", "15GiB")}, grant.NoCapacity, "not as much free"},
		{"into the reserve", "[policy]\nreserve = \"512MiB\"\n", []rig.Edit{inPod("train"), allocated("train", "0", "16160MiB")}, grant.NoCapacity, "not as much free"},
		{"another mode than the GPU's", "", []rig.Edit{inPod("train"), written("train", "gpus", "1", "mode", "exclusive")}, grant.ModeConflict, "in another mode"},
		{"without an identity", "", []rig.Edit{rig.Annotation("gpuledger.dev/gpus", "0"), rig.Annotation("gpuledger.dev/memory", "1GiB")}, grant.GrantNotFound, "proves no pod and container"},
		{"a forged size", "", []rig.Edit{inPod("train"), gpushare("0", "4", "8")}, grant.AnnotationMismatch, "more than the pod's 4GiB"},
		{"a size, and no sum of the pod", "", []rig.Edit{inPod("train"), rig.Annotation("ALIYUN_COM_GPU_MEM_IDX", "0"), rig.Env("ALIYUN_COM_GPU_MEM_CONTAINER=4")}, grant.AnnotationMismatch, "no readable annotation that bounds it"},
		{"gpushare's own failure", "", []rig.Edit{inPod("train"), gpushare("-1", "4", "4")}, grant.AnnotationMalformed, "ALIYUN_COM_GPU_MEM_IDX"},
		{"two dialects that disagree", "", []rig.Edit{inPod("train"), gpushare("0", "4", "4"), allocated("train", "0", "3GiB")}, grant.AnnotationMismatch, "disagrees"},
		{"more than was allocated", "", []rig.Edit{inPod("train"), allocated("train", "0", "1GiB"), rig.Env("NVIDIA_VISIBLE_DEVICES=0,1")}, grant.VisibleDevicesOutsideGrant, "(to be adopted)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := adopting(t, c.config)
			held := n.Grant("--memory", "2GiB", "--gpu", "1")
			b := n.Bundle("c", c.edits...)
			before := n.Files()
			for range 2 {
				r := b.Create()
				isRefused(t, r, c.code)
				if !strings.Contains(r.Stderr, c.prints) || strings.Contains(r.Stderr, string(held.ID)) {
					t.Errorf("%s", r.Stderr)
				}
			}
			if got := n.Files(); !slices.Equal(got, before) {
				t.Errorf("files before %v and after %v", before, got)
			}
		})
	}
}

// TestGPUShareOfAPod: the containers of a pod share the pod's figure, whatever each has in its
// environment.
func TestGPUShareOfAPod(t *testing.T) {
	n := adopting(t, "")
	for container, size := range map[string]string{"a": "2", "b": "3"} {
		starts(t, n.Bundle(container, inPod(container), gpushare("1", "5", size),
			rig.Env("NVIDIA_VISIBLE_DEVICES=1")))
	}
	if got := free(t, n); got[1] != 16160*grant.MiB-5*grant.GiB {
		t.Errorf("free: %v", got)
	}
	isRefused(t, n.Bundle("greedy", inPod("greedy"), gpushare("1", "5", "1")).Create(),
		grant.AnnotationMismatch)
	if r := n.Bundle("plain", inPod("plain"), gpushare("1", "5", "0"),
		rig.Shell("ls /dev")).Run(); r.Code != 0 || strings.Contains(r.Stdout, "nvidia") {
		t.Errorf("a container of the pod that has no part: %+v", r)
	}
	starts(t, n.Bundle("other", rig.Identity("another", "team", "job-1", "a"), gpushare("1", "5", "5")))
	n.CheckSound("at the end")
}

// TestConcurrentAdoptions: of more containers than there is room for, exactly as many start as fit.
func TestConcurrentAdoptions(t *testing.T) {
	n := adopting(t, "")
	bundles := make([]*rig.Bundle, contenders)
	for i := range bundles {
		memory := written("train", "memory", "1GiB")
		if i%2 == 0 {
			memory = allocated("train", fmt.Sprint(i/2%2), "1GiB")
		}
		bundles[i] = n.Bundle(fmt.Sprintf("c%d", i), rig.Identity(fmt.Sprintf("uid-%d", i), "team", "job",
			"train"), memory, rig.Light)
	}
	results := atOnce(contenders, func(i int) rig.Result { return createsAtLast(bundles[i]) })
	const fit = 2 * 15 // 16160 MiB are 15 GiB and a rest
	started := 0
	for _, r := range results {
		if r.Code == 0 {
			started++
			continue
		}
		isRefused(t, r, grant.NoCapacity)
	}
	if started != fit || len(n.Grants()) != fit {
		t.Errorf("%d containers and %d grants, want %d", started, len(n.Grants()), fit)
	}
	n.CheckSound("when it is full")
	for _, b := range bundles {
		b.End()
	}
	if all := free(t, n); slices.ContainsFunc(all, func(f grant.Bytes) bool {
		return f != 16160*grant.MiB
	}) || len(n.Grants()) != 0 {
		t.Errorf("all have ended and free are %v", all)
	}
}

// TestAdoptInReportMode: admissions still happen, so that the ledger stays true. A container that
// cannot adopt starts and is recorded.
func TestAdoptInReportMode(t *testing.T) {
	n := adopting(t, "[policy]\nmode = \"report\"\n")
	starts(t, n.Bundle("fits", inPod("train"), allocated("train", "0", "15GiB")))
	if r := n.Bundle("full", inPod("more"), allocated("more", "0", "15GiB")).Create(); r.Code != 0 ||
		!strings.Contains(r.Stderr, "would be refused (no-capacity)") {
		t.Errorf("%+v", r)
	}
	if log := lines(t, n); len(log) != 2 || log[1].Mode != "report" || log[1].Code != "no-capacity" ||
		len(n.Grants()) != 1 {
		t.Errorf("%+v", log)
	}
}

func together(edits ...rig.Edit) rig.Edit {
	return func(s *specs.Spec) {
		for _, edit := range edits {
			edit(s)
		}
	}
}
