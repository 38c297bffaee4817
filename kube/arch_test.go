package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/gpuledger/gpuledger/"
	here   = module + "kube"
)

// layers lists the packages of gpuledger that each package may import. Only nodeledger reaches the
// ledger; the other packages import values.
var layers = map[string][]string{
	"": {},
	"nodeledger": {"cdi", "internal/grants", "internal/node", "internal/admission", "internal/grant",
		"internal/host", "internal/watch"},
	"nodeledgertest": {"kube/nodeledger", "internal/grants", "internal/node", "internal/admission",
		"internal/grant",
		"internal/gpu", "internal/gpu/simulated", "internal/host", "internal/ledger"},
	"socket": {"internal/host"},
	"dra": {"kube", "kube/nodeledger", "kube/nodestate", "kube/socket", "internal/admission",
		"internal/grant"},
	"deviceplugin": {"kube/nodeledger", "kube/socket", "internal/admission", "internal/grant"},
	"publish":      {"kube/nodeledger", "kube/nodestate", "internal/admission", "internal/grant"},
	"cluster":      {"internal/grant", "kube", "kube/nodestate", "kube/placement"},
	"placement":    {"internal/grant"},
	"nodestate":    {"internal/grant"},
	"scheduler":    {"internal/grant", "kube/nodestate", "kube/placement"},
	"dialect":      {"internal/grant", "kube/placement"},
	"webhook":      {"internal/grant", "kube/dialect", "kube/placement"},
	"health":       {},
	"uninstall":    {"kube/cluster", "kube/dra", "kube/nodestate"},
	"usage":        {"internal/cmdline", "internal/grant"},
	"bench": {"kube/nodeledger", "kube/dra", "kube/nodestate", "kube/placement", "kube/scheduler",
		"internal/gpu", "internal/gpu/simulated", "internal/grant", "internal/host", "internal/ledger",
		"internal/node"},
	"cmd/gpuledger-kube": {"kube/nodeledger", "kube/dra", "kube/deviceplugin", "kube/health",
		"kube/placement", "kube/scheduler", "kube/publish",
		"kube/uninstall",
		"kube/dialect", "kube/webhook",
		"kube/usage",
		"internal/cmdline",
		"internal/grant", "internal/host", "internal/node", "internal/policy", "internal/version"},
	"cmd/kubectl-gpuledger": {"kube/cluster", "kube/usage", "internal/cmdline", "internal/version"},
}

func TestImportsFollowTheLayers(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for d := json.NewDecoder(bytes.NewReader(out)); ; seen++ {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		allowed, placed := layers[strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, here), "/")]
		if !placed {
			t.Errorf("%s has no place in the layers", p.ImportPath)
		}
		for _, imported := range p.Imports {
			if name, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(allowed, name) {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, name)
			}
		}
	}
	if seen != len(layers) {
		t.Errorf("%d packages have places in the layers, but there are %d", len(layers), seen)
	}
}

// manyMethods is too many for one type, as in the other module's test of this name.
const manyMethods = 30

// TestNoObjectHoldsAllCode: no type is an object with all of a package's code as methods.
func TestNoObjectHoldsAllCode(t *testing.T) {
	methods := map[string]int{}
	err := filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
				methods[filepath.Dir(name)+" "+receiverOf(f)]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range methods {
		if n >= manyMethods {
			t.Errorf("%s has %d methods, which is too many", name, n)
		}
	}
	if len(methods) < 50 {
		t.Errorf("only %d types have methods: this test looks in the wrong place", len(methods))
	}
}

// receiverOf returns the name of a method's type.
func receiverOf(f *ast.FuncDecl) string {
	receiver := f.Recv.List[0].Type
	if star, is := receiver.(*ast.StarExpr); is {
		receiver = star.X
	}
	switch generic := receiver.(type) {
	case *ast.IndexExpr:
		receiver = generic.X
	case *ast.IndexListExpr:
		receiver = generic.X
	}
	return receiver.(*ast.Ident).Name
}
