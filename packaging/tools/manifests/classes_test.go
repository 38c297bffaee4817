package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/kubernetes/pkg/apis/resource"
)

// selecting returns the classes that select a device of the driver, by the scheduler's own
// evaluation.
func selecting(t *testing.T, attributes map[v1.QualifiedName]v1.DeviceAttribute) (names []string) {
	t.Helper()
	text, err := os.ReadFile(manifests + "dra/classes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := validated(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		class := o.value.(*resource.DeviceClass)
		compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(
			class.Spec.Selectors[0].CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatal(compiled.Error)
		}
		is, _, err := compiled.DeviceMatches(context.Background(), cel.Device{Driver: "gpuledger.dev",
			Attributes: attributes})
		if err != nil {
			t.Fatalf("%s: %v", o.name, err)
		}
		if is {
			names = append(names, strings.TrimSuffix(o.name, ".gpuledger.dev"))
		}
	}
	slices.Sort(names)
	return names
}

// A device of shares that is whole is for claims of either kind. An error of a selector would keep
// claims from all nodes, so it must not need an attribute that older drivers do not publish.
func TestWhatClassesSelect(t *testing.T) {
	word := func(s string) v1.DeviceAttribute { return v1.DeviceAttribute{StringValue: &s} }
	truth := func(is bool) v1.DeviceAttribute { return v1.DeviceAttribute{BoolValue: &is} }
	type attributes map[v1.QualifiedName]v1.DeviceAttribute
	for name, c := range map[string]struct {
		attributes attributes
		want       string
	}{
		"whole or in shares":       {attributes{"mode": word("limit"), "whole": truth(true)}, "exclusive limit shared"},
		"shares":                   {attributes{"mode": word("mps"), "whole": truth(false)}, "mps shared"},
		"whole":                    {attributes{"mode": word("exclusive"), "whole": truth(true)}, "exclusive"},
		"of MIG":                   {attributes{"mode": word("mig"), "whole": truth(false)}, "mig"},
		"an older driver's":        {attributes{"mode": word("timeslice")}, "shared timeslice"},
		"an older one's whole GPU": {attributes{"mode": word("exclusive")}, "exclusive"},
	} {
		if got := strings.Join(selecting(t, c.attributes), " "); got != c.want {
			t.Errorf("%s: selected by %q, want %q", name, got, c.want)
		}
	}
}
