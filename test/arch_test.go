package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

const module = "github.com/gpuledger/gpuledger/"

// layers lists which packages of the module each package may import: arrows point down only, and
// siblings do not import each other. A package that is missing here has no layer yet: add it to
// docs/ARCHITECTURE.md first.
var layers = map[string][]string{
	"internal/grant":   {},
	"internal/version": {},
	"internal/tokens":  {},
	"internal/ocispec": {"internal/tokens"},

	"internal/tokens/tokenstest": {"internal/tokens"},

	"internal/hostpath/hostpathtest": {"internal/host"},

	"internal/cmdline":   {"internal/grant"},
	"internal/failpoint": {},
	"internal/throttle":  {},
	"internal/order":     {},
	"internal/host":      {"internal/grant"},
	"internal/policy":    {"internal/grant", "internal/host"},
	"internal/admission": {"internal/grant", "internal/order"},
	"internal/edit":      {"internal/grant", "internal/ocispec", "internal/tokens"},
	"internal/hostpath":  {"internal/grant", "internal/host"},
	"internal/request": {"internal/grant", "internal/host", "internal/hostpath", "internal/ocispec",
		"internal/tokens"},
	"internal/layout":        {"internal/grant", "internal/host"},
	"internal/rootfs":        {"internal/host", "internal/order"},
	"internal/gpu":           {"internal/grant", "internal/host", "internal/tokens"},
	"internal/gpu/simulated": {"internal/grant", "internal/host", "internal/tokens"},
	"internal/gpu/nvml":      {"internal/grant", "internal/host"},
	"internal/gpu/driver":    {"internal/grant", "internal/host"},
	"internal/users":         {"internal/grant", "internal/host", "internal/admission", "internal/watch"},
	"internal/limits":        {"internal/grant", "internal/host"},
	"internal/cgmem":         {"internal/grant", "internal/tokens"},
	"internal/containers":    {"internal/grant", "internal/host", "internal/tokens"},
	"internal/ledger": {"internal/order", "internal/containers", "internal/grant", "internal/host",
		"internal/failpoint",
		"internal/tokens"},
	"internal/limitfiles": {"internal/limits", "internal/ledger", "internal/admission", "internal/grant"},
	"internal/mpsstate":   {"internal/grant", "internal/host", "internal/tokens"},
	"internal/node": {"internal/order", "internal/grant", "internal/host", "internal/failpoint",
		"internal/policy",
		"internal/request", "internal/admission", "internal/edit", "internal/ledger", "internal/gpu",
		"internal/layout", "internal/rootfs", "internal/limitfiles", "internal/mpsstate", "internal/cgmem",
		"internal/containers", "internal/tokens"},
	"internal/grants": {"internal/containers", "internal/node", "internal/limitfiles", "internal/limits",
		"internal/ledger", "internal/admission", "internal/cgmem", "internal/failpoint", "internal/host",
		"internal/users", "internal/grant"},
	"internal/oci":    {"internal/grant", "internal/tokens"},
	"internal/inject": {"internal/grant", "internal/host", "internal/failpoint"},
	"hook": {"internal/node", "internal/oci", "internal/inject", "internal/grant", "internal/host",
		"internal/policy", "internal/request", "internal/failpoint", "internal/tokens"},
	"runtime": {"internal/node", "internal/oci", "internal/grant", "internal/host", "internal/policy",
		"internal/request", "internal/failpoint"},
	"internal/configfile": {},
	"internal/filetree":   {},
	"internal/kubelet":    {"internal/host"},
	"internal/engines": {"internal/configfile", "internal/filetree", "internal/grant", "internal/host",
		"internal/kubelet"},
	"internal/configure": {"internal/engines", "internal/configfile", "internal/filetree", "internal/node",
		"internal/grant", "internal/host", "internal/policy", "internal/ledger", "internal/request",
		"internal/containers",
		"internal/failpoint"},
	"internal/doctor": {"internal/grants", "internal/configure", "internal/engines", "internal/node",
		"internal/grant", "internal/host", "internal/ledger", "internal/users"},
	"internal/setup": {"internal/policy", "internal/admission", "internal/kubelet",
		"internal/grant", "internal/host"},
	"cmd/gpuledger-setup":  {"internal/setup"},
	"cmd/gpuledger-hook":   {"hook"},
	"internal/edit/adjust": {"internal/edit", "internal/grant"},
	"internal/nri": {"internal/node", "internal/edit/adjust", "internal/request", "internal/containers",
		"internal/oci", "internal/grant", "internal/host"},
	"internal/auditlog": {"internal/grant"},
	"internal/watch":    {"internal/grant", "internal/host"},
	"internal/metrics": {"internal/grants", "internal/node", "internal/auditlog",
		"internal/watch", "internal/grant"},
	"internal/page": {"internal/grants", "internal/node", "internal/auditlog",
		"internal/watch", "internal/grant"},
	"internal/mps": {"internal/grants", "internal/mpsstate", "internal/node",
		"internal/grant", "internal/host"},
	"internal/nodeacl": {"internal/admission", "internal/grants", "internal/node", "internal/grant",
		"internal/host"},
	"internal/daemon/schedule":   {},
	"internal/daemon/rootsocket": {},
	"internal/daemon/daemonlog":  {"internal/grant"},
	"internal/daemon/nvmlchild":  {"internal/gpu", "internal/policy", "internal/grant", "internal/host"},
	"internal/daemon/ledgercache": {"internal/grants", "internal/daemon/daemonlog", "internal/node",
		"internal/ledger", "internal/host", "internal/grant"},
	"internal/daemon/daemontest": {"internal/admission", "internal/node", "internal/ledger",
		"internal/host", "internal/grant"},

	"internal/daemon/driverlimits": {"internal/daemon/ledgercache", "internal/daemon/nvmlchild",
		"internal/daemon/rootsocket", "internal/daemon/daemonlog", "internal/watch", "internal/cgmem",
		"internal/failpoint", "internal/node", "internal/ledger", "internal/host", "internal/grant"},
	"internal/daemon/userqueue": {"internal/admission", "internal/grant", "internal/grants",
		"internal/host", "internal/ledger", "internal/node", "internal/users"},
	"internal/daemon/userserver": {"internal/daemon/rootsocket", "internal/daemon/userqueue",
		"internal/admission", "internal/grant", "internal/grants", "internal/host", "internal/node",
		"internal/users", "internal/watch"},
	"internal/daemon/httpserver": {"internal/daemon/rootsocket", "internal/metrics", "internal/page"},
	"internal/daemon/watcher": {"internal/grants", "internal/mpsstate", "internal/throttle",
		"internal/daemon/ledgercache",
		"internal/daemon/nvmlchild", "internal/daemon/daemonlog",
		"internal/daemon/schedule", "internal/watch",
		"internal/limits", "internal/admission", "internal/node", "internal/ledger", "internal/host",
		"internal/grant"},
	"internal/daemon": {"internal/grants", "cdi", "internal/auditlog", "internal/configure",
		"internal/daemon/daemonlog",
		"internal/daemon/driverlimits", "internal/daemon/httpserver", "internal/daemon/ledgercache",
		"internal/daemon/nvmlchild", "internal/daemon/schedule", "internal/daemon/userserver",
		"internal/daemon/watcher", "internal/grant",
		"internal/host", "internal/ledger", "internal/metrics", "internal/mps", "internal/node",
		"internal/nodeacl", "internal/nri", "internal/page", "internal/policy", "internal/version"},
	"cmd/gpuledgerd": {"internal/daemon"},
	"cdi": {"internal/grants", "internal/node", "internal/grant", "internal/host",
		"internal/policy", "internal/admission", "internal/edit", "internal/ledger"},
	"cmd/gpuledger-runtime": {"runtime"},
	"cmd/gpuledger": {"internal/grants", "internal/users", "internal/cmdline", "internal/configure",
		"internal/engines", "internal/auditlog",
		"internal/doctor", "internal/node", "internal/grant", "internal/host", "internal/policy",
		"internal/version", "internal/admission", "internal/edit",
		"internal/ledger", "internal/request", "internal/watch", "internal/gpu", "internal/gpu/nvml",
		"internal/gpu/simulated", "internal/gpu/driver", "cdi"},
}

// pure packages decide with values: they may not reach the system, not even through the standard
// library.
var pure = []string{"internal/grant", "internal/admission", "internal/edit", "internal/throttle"}

// system is what a pure package must not import. Package os stays allowed for os.FileMode, which
// CDI's types need.
var system = []string{"os/exec", "net", "net/http", "syscall", "time/tzdata",
	"golang.org/x/sys/unix", "io/ioutil"}

// heavy packages are never linked into the hot binaries: the hot path is lean. hash/crc32 makes its
// tables at each start of a program.
var heavy = []string{"github.com/urfave/cli", "github.com/NVIDIA/go-nvml", "github.com/containerd/",
	"google.golang.org/grpc", "k8s.io/",
	"github.com/prometheus/", "github.com/sirupsen/logrus", "net/http", "net", "regexp", "runtime/cgo",
	"hash/crc32"}

// goPackage is what `go list -json` reports about a package.
type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func goList(t *testing.T, env string, patterns ...string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func TestImportsPointDown(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range goList(t, "CGO_ENABLED=1", "./...") {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || strings.HasPrefix(name, "test") {
			continue
		}
		seen[name] = true
		allowed, placed := layers[name]
		if !placed {
			t.Errorf("%s has no place in the layers", name)
			continue
		}
		for _, imported := range p.Imports {
			if imported, ours := strings.CutPrefix(imported, module); ours &&
				!slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s, which is not below it", name, imported)
			}
		}
		for _, imported := range p.Imports {
			if slices.Contains(pure, name) && slices.Contains(system, imported) {
				t.Errorf("%s decides with values but imports %s", name, imported)
			}
		}
	}
	for name := range layers {
		if !seen[name] {
			t.Errorf("%s is placed in the layers but does not exist", name)
		}
	}
}

// TestMapOfPackages: internal/README.md has a line for each directory there, in their order.
func TestMapOfPackages(t *testing.T) {
	var there, listed []string
	entries, err := os.ReadDir("../internal")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			there = append(there, e.Name())
		}
	}
	for line := range strings.Lines(read(t, "../internal/README.md")) {
		if row, is := strings.CutPrefix(line, "- `"); is {
			name, _, _ := strings.Cut(row, "`: ")
			listed = append(listed, name)
		}
	}
	if !slices.Equal(listed, there) {
		t.Errorf("internal/README.md lists\n%v\nand there are\n%v", listed, there)
	}
}

func TestNounsImportOnlyTheStandardLibraryAndCDI(t *testing.T) {
	for _, p := range goList(t, "CGO_ENABLED=1", "./internal/grant") {
		for _, imported := range p.Imports {
			if strings.Contains(imported, ".") &&
				imported != "tags.cncf.io/container-device-interface/specs-go" {
				t.Errorf("internal/grant imports %s", imported)
			}
		}
	}
}

func TestHotBinariesAreLean(t *testing.T) {
	for _, p := range goList(t, "CGO_ENABLED=0", "./cmd/gpuledger-runtime", "./cmd/gpuledger-hook") {
		for _, dep := range p.Deps {
			i := slices.IndexFunc(heavy, func(h string) bool {
				return dep == h || strings.HasPrefix(dep, h) && strings.Contains(h, ".")
			})
			if i >= 0 {
				t.Errorf("%s links %s", p.ImportPath, dep)
			}
		}
	}
}

// TestNoDirectoryServiceIsAskedWithoutABound: package os/user asks one with cgo, as gpuledger is
// built. internal/users reads the files of /etc, and asks by getent.
func TestNoDirectoryServiceIsAskedWithoutABound(t *testing.T) {
	for _, p := range goList(t, "CGO_ENABLED=1", "-deps", "./cmd/...") {
		if slices.Contains(p.Imports, "os/user") {
			t.Errorf("%s imports os/user", p.ImportPath)
		}
	}
}

// TestHotBinariesReadJSONByTokens: of the JSON library only the tokenizer is linked, and not its
// reflection (docs/adr/0034). Package toml imports encoding/json for the name of one type.
func TestHotBinariesReadJSONByTokens(t *testing.T) {
	tokenizer := 0
	for _, p := range goList(t, "CGO_ENABLED=0", "-deps", "./cmd/gpuledger-runtime", "./cmd/gpuledger-hook") {
		if p.ImportPath == "github.com/go-json-experiment/json/jsontext" {
			tokenizer++
		}
		for _, imported := range p.Imports {
			if imported == "github.com/go-json-experiment/json" ||
				imported == "encoding/json" && p.ImportPath != "github.com/pelletier/go-toml/v2" {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
	if tokenizer != 1 {
		t.Error("the tokenizer is not linked: this test looks in the wrong place")
	}
}

// Kubernetes' libraries are larger than all of gpuledger. What links them is in a module of its
// own, kube.
func TestThisModuleDoesNotLinkKubernetes(t *testing.T) {
	for _, p := range goList(t, "CGO_ENABLED=1", "./...") {
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, "k8s.io/") || strings.HasPrefix(dep, module+"kube") {
				t.Errorf("%s links %s", p.ImportPath, dep)
			}
		}
	}
}

// limit is the size of a hot binary, in bytes.
const limit = 5 << 20

func TestHotBinariesAreSmallAndStatic(t *testing.T) {
	for _, name := range []string{"gpuledger-runtime", "gpuledger-hook"} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/" + name
			build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/"+name)
			build.Dir = ".."
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > limit {
				t.Errorf("%s has %d bytes, more than %d", name, info.Size(), limit)
			}
			rig.Need(t, "ldd")
			if rig.Run(exec.Command("ldd", path)).Code == 0 {
				t.Errorf("%s is not static", name)
			}
		})
	}
}

// manyMethods is the number of methods from which a type does too much.
const manyMethods = 30

// manyAllowed are types that have more, of tests and measurements alone.
var manyAllowed = []string{"../test/bench rig", "../test/rig Node"}

// TestNoObjectHoldsAllCode: no type is an object with all of a package's code as methods.
func TestNoObjectHoldsAllCode(t *testing.T) {
	methods := map[string]int{}
	for _, p := range goList(t, "CGO_ENABLED=0", "./...") {
		dir := ".." + strings.TrimPrefix(p.ImportPath, strings.TrimSuffix(module, "/"))
		files, err := filepath.Glob(dir + "/*.go")
		must(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			must(t, err)
			for _, d := range file.Decls {
				if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
					methods[dir+" "+receiverOf(f)]++
				}
			}
		}
	}
	for name, n := range methods {
		if n >= manyMethods && !slices.Contains(manyAllowed, name) {
			t.Errorf("%s has %d methods, which is too many", name, n)
		}
	}
	for _, name := range manyAllowed {
		if methods[name] < manyMethods {
			t.Errorf("%s has only %d methods: take it off the list", name, methods[name])
		}
	}
	if len(methods) < 100 {
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
