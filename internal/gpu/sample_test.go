package gpu

import (
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestSampleEqualsTheJSONLibrary: every field with a tag is written and read, with the same result
// as by encoding/json.
func TestSampleEqualsTheJSONLibrary(t *testing.T) {
	bare := grant.Sample{GPUs: []grant.Usage{{Processes: []grant.ProcessUse{{PID: 1, Compute: -1},
		{Memory: 1 << 63}}}, {Utilization: -1, Processes: []grant.ProcessUse{}}}}
	for name, s := range map[string]grant.Sample{"full": tokenstest.Filled[grant.Sample](nil), "bare": bare,
		"empty": {GPUs: []grant.Usage{}}} {
		want, err := json.Marshal(s, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		line, err := WriteSample(s)
		if err != nil || string(line) != string(want)+"\n" {
			t.Errorf("%s is written as\n%s(%v), and the library writes\n%s", name, line, err, want)
		}
		sampleAsTheLibrary(t, line)
	}
	for _, wrong := range []string{"", "{", "[]", `{"gpus":{}}`, `{"gpus":[{"uuid":1}]}`,
		`{"gpus":[{"processes":[{"pid":"1"}]}]}`, `{"gpus":[{"processes":[{"memory":-1}]}]}`,
		`{"gpus":[{"index":1.5}]}`, `{"taken":"yesterday"}`, "{} {}", `{"gpus":null,"more":[1,{"a":2}]}`,
		`{"gpus":[{"mig":[null],"xids":null,"processes":null}]}`} {
		sampleAsTheLibrary(t, []byte(wrong))
	}
	if line,
		err := WriteSample(grant.Sample{GPUs: []grant.Usage{{Health: "lost\nand \"gone\""}}}); err != nil ||
		strings.Count(string(line), "\n") != 1 {
		t.Errorf("a sample is one line: %q (%v)", line, err)
	}
}

func sampleAsTheLibrary(t *testing.T, line []byte) {
	t.Helper()
	var want grant.Sample
	got, ours := ReadSample(line)
	theirs := json.Unmarshal(line, &want)
	if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%s\nread %+v (%v)\nby the library %+v (%v)", line, got, ours, want, theirs)
	}
}
