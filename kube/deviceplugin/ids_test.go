package deviceplugin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A resource can have 65536 devices, and a container half of them. A search of one list for each
// device of another one took seconds, and the kubelet waited. So devices are looked up in maps.
// Only modes, of which there are few, are searched in a list.
func TestNoListOfDevicesIsSearched(t *testing.T) {
	files, err := filepath.Glob("*.go")
	check(t, err)
	modes := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		places := token.NewFileSet()
		file, err := parser.ParseFile(places, name, nil, 0)
		check(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			of, is := call.Fun.(*ast.SelectorExpr)
			if !is || of.Sel.Name != "Contains" && of.Sel.Name != "Index" {
				return true
			}
			if list, is := call.Args[0].(*ast.SelectorExpr); is && list.Sel.Name == "Modes" {
				modes++
			} else if from, is := of.X.(*ast.Ident); is && from.Name == "slices" {
				t.Errorf("%s searches a list", places.Position(call.Pos()))
			}
			return true
		})
	}
	if modes == 0 {
		t.Error("no search was found at all")
	}
}

func TestMostUnitsOfANodeAreChosenAndKept(t *testing.T) {
	const all, wanted = 49140, 24000
	d := &Allocator{Resource: Placed("nvidia.com/gpumem", grant.MiB, 0)}
	available := make([]string, all)
	devices := make([]*api.Device, all)
	for n := range available {
		available[n] = unitID(all - 1 - n)
		devices[n] = &api.Device{ID: unitID(n), Health: api.Healthy}
	}
	chosen := d.Preferred(available, []string{unitID(7)}, wanted)
	if len(chosen) != wanted || len(set(chosen)) != wanted || !set(chosen)[unitID(wanted-1)] {
		t.Errorf("%d devices are chosen, %d different ones", len(chosen), len(set(chosen)))
	}
	p := &Plugin{}
	p.hold(set(chosen))
	for n, d := range p.closed(devices) {
		if (d.Health == api.Healthy) != (n < wanted) {
			t.Fatalf("%s is %s", d.ID, d.Health)
		}
	}
}
