package oracle_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// FuzzConfig: any bytes as config.json get a verdict, and a container that may start reaches
// nothing beyond its grant, as the oracle sees it. A reference to a grant is written as GRANT1 to
// GRANT3.
func FuzzConfig(f *testing.F) {
	s := newTestNode(f)
	for _, seed := range seeds(f) {
		for policy := range policies {
			f.Add(seed, uint8(policy), uint8(policy))
		}
	}
	f.Fuzz(func(t *testing.T, config []byte, policy, engine uint8) {
		text := string(config)
		for i, h := range s.grants {
			text = strings.ReplaceAll(text, fmt.Sprintf("GRANT%d", i), h.reference.String())
		}
		config = []byte(strings.ReplaceAll(text, "SCENE", s.dir))
		d := s.judge(policies[int(policy)%len(policies)], engines[int(engine)%len(engines)], config)
		if beyond := s.escape(d, config); beyond != "" {
			t.Error(beyond)
		}
		if len(d.Message) > 8000 || d.Code == grant.Internal {
			t.Errorf("%s: %.9000s", d.Code, d.Message)
		}
	})
}

// seeds are the specs in testdata/seeds.
func seeds(f *testing.F) [][]byte {
	entries, err := os.ReadDir("testdata/seeds")
	must(f, err)
	var all [][]byte
	for _, e := range entries {
		data, err := os.ReadFile("testdata/seeds/" + e.Name())
		must(f, err)
		all = append(all, data)
	}
	if len(all) == 0 {
		f.Fatal("there is no seed")
	}
	return all
}

// keys are the annotations of both dialects, and the one that names their container.
var keys = []string{"gpuledger.dev/grant", "gpuledger.dev/gpus", "gpuledger.dev/memory",
	"gpuledger.dev/compute", "gpuledger.dev/mode",
	"gpuledger.dev/grant.c", "gpuledger.dev/gpus.c", "gpuledger.dev/memory.c", "gpuledger.dev/gpus.other",
	"ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD",
	"scheduler.framework.gpushare.allocation"}

// FuzzAnnotations: an allocation beside a grant is refused, or agrees with the grant as this test
// reads it independently.
func FuzzAnnotations(f *testing.F) {
	s := newTestNode(f)
	for i, seed := range []string{"GRANT2", "0,1", "2GiB", "50", "limit", "GRANT1", "1", "512MiB", "0", "0",
		"4", "2", `{"c":{"0":1,"1":1}}`} {
		f.Add(uint8(i), seed, "1", uint8(0), true)
	}
	f.Add(uint8(2), "2048MiB", "", uint8(3), false)
	f.Add(uint8(2), "2048Mi", "0", uint8(1), false)
	f.Fuzz(func(t *testing.T, key uint8, value, share string, engine uint8, inPod bool) {
		name := keys[int(key)%len(keys)]
		annotations := map[string]string{"gpuledger.dev/grant": s.grants[2].reference.String()}
		if inPod {
			annotations = map[string]string{"gpuledger.dev/grant.c": s.grants[2].reference.String(),
				"io.kubernetes.cri.container-type": "container",
				"io.kubernetes.cri.sandbox-uid":    "u", "io.kubernetes.cri.container-name": "c",
				"io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.sandbox-namespace": "n"}
		}
		annotations[name] = strings.ReplaceAll(value, "GRANT2", s.grants[2].reference.String())
		config, err := json.Marshal(map[string]any{"annotations": annotations,
			"process": map[string]any{"env": []string{"ALIYUN_COM_GPU_MEM_CONTAINER=" + share}},
			"linux": map[string]any{"resources": map[string]any{
				"devices": []any{map[string]any{"allow": false, "access": "rwm"}}}}})
		must(t, err)
		d := s.judge("default", engines[int(engine)%len(engines)], config)
		if beyond := s.escape(d, config); beyond != "" {
			t.Error(beyond)
		}
		own, named := strings.CutSuffix(name, ".c")
		if named && !(inPod && engines[int(engine)%len(engines)] == grant.Containerd) ||
			strings.HasSuffix(name, ".other") {
			return // it is about another container
		}
		switch {
		case d.Kind == grant.Admit && !s.agrees(own, value):
			t.Errorf("admitted with %s: %q", name, value)
		case d.Kind == grant.Refused && !strings.HasPrefix(string(d.Code), "annotation-") &&
			d.Code != grant.GrantNotFound && d.Code != grant.SpecInvalid:
			t.Errorf("%s (%s) for %s: %q", d.Code, d.Message, name, value)
		}
	})
}

// size is a number with a unit, as gpuledger or as Kubernetes writes it.
var size = regexp.MustCompile(`^([0-9]+)(Ki|Mi|Gi|Ti)B?$`)

// agrees compares an annotation of gpuledger's with the grant of 2 GiB on GPUs 0 and 1 in mode
// limit.
func (s *testNode) agrees(name, value string) bool {
	switch name {
	case "gpuledger.dev/gpus":
		var gpus []string
		for _, word := range strings.Split(value, ",") {
			word = strings.TrimSpace(word)
			if i, err := strconv.Atoi(word); err == nil && i >= 0 && i < len(s.gpus) {
				word = s.gpus[i].UUID
			}
			gpus = append(gpus, word)
		}
		want := []string{s.gpus[0].UUID, s.gpus[1].UUID}
		slices.Sort(gpus)
		slices.Sort(want)
		return slices.Equal(slices.Compact(gpus), want)
	case "gpuledger.dev/memory":
		m := size.FindStringSubmatch(value)
		if m == nil {
			return false
		}
		n, _ := new(big.Int).SetString(m[1], 10)
		shift := map[string]uint{"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[m[2]]
		return n.Lsh(n, shift).Cmp(big.NewInt(2<<30)) == 0
	case "gpuledger.dev/compute":
		return false // the grant has no share of compute
	case "gpuledger.dev/mode":
		return value == "limit"
	}
	return true
}

// FuzzUpdate: an update that is passed on to the real runtime opens no GPU, and sets no key of the
// driver's limit.
func FuzzUpdate(f *testing.F) {
	s := newTestNode(f)
	for _, seed := range []string{`{"pids":{"limit":5}}`,
		`{"devices":[{"allow":true,"access":"rwm"}]}`,
		`{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":195,"minor":0,` +
			`"access":"rw"}],"cpu":{}}`,
		`{"Devices":[{"allow":true}]}`, `{"devices":null,"devices":[{"allow":true,"access":"r"}]}`,
		`{"unified":{"dmem.max":"x"}}`, `{"unified":{"cgroup.procs":"1"}}`,
		`{"unified":{"pids.max":"3"},"Unified":{"dmem.low":"x"}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, resources []byte) {
		rest, err := s.guards["default"].Update(
			grant.Container{RuntimeRoot: s.dir + "/runtime", ID: "c"}, resources)
		if err != nil {
			return
		}
		if ways, err := s.world.Update(rest); err == nil && len(ways) > 0 {
			t.Errorf("handed on: %s\nways: %v", rest, ways)
		}
	})
}
