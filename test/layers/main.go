// Command layers draws the picture of docs/ARCHITECTURE.md from the imports of the packages:
//
//	go run ./test/layers       prints the picture
//	go run ./test/layers -w    writes it into docs/ARCHITECTURE.md
//
// It runs in the root of the repository. A package is one level above the highest package that it
// imports, so packages of one level do not import each other.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const (
	module = "github.com/gpuledger/gpuledger/"
	page   = "docs/ARCHITECTURE.md"
	begin  = "<!-- drawn by go run ./test/layers -w -->\n"
	end    = "<!-- end of the drawing -->\n"
)

func main() {
	if err := run(slices.Contains(os.Args[1:], "-w")); err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

func run(write bool) error {
	g, err := imports(".")
	if err != nil {
		return err
	}
	if !write {
		fmt.Print(draw(g))
		return nil
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	drawn, err := withPicture(string(text), draw(g))
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(drawn), 0o644)
}

// graph has for each package the packages of the module that it imports.
type graph map[string][]string

// imports are those of the repository's packages, without the tests' own.
func imports(root string) (graph, error) {
	list := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	list.Dir, list.Stderr = root, os.Stderr
	list.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the packages: %w", err)
	}
	g := graph{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, err
		}
		if name, ours := strings.CutPrefix(p.ImportPath, module); ours && !isTest(name) {
			g[name] = within(p.Imports)
		}
	}
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "test/") || name == "test" || strings.HasSuffix(name, "test")
}

// within are the imported packages that belong to the module.
func within(imported []string) (ours []string) {
	for _, path := range imported {
		if name, is := strings.CutPrefix(path, module); is && !isTest(name) {
			ours = append(ours, name)
		}
	}
	return ours
}

// levels has for each package how many packages lie below it on the longest path. Go allows no
// circles.
func levels(g graph) map[string]int {
	of := map[string]int{}
	var level func(name string) int
	level = func(name string) int {
		if l, known := of[name]; known {
			return l
		}
		highest := -1
		for _, below := range g[name] {
			highest = max(highest, level(below))
		}
		of[name] = highest + 1
		return of[name]
	}
	for name := range g {
		level(name)
	}
	return of
}

// reaches reports whether one package imports another, directly or through others.
func reaches(g graph, from, to string) bool {
	return slices.ContainsFunc(g[from], func(below string) bool {
		return below == to || reaches(g, below, to)
	})
}

// direct are the imports of a package that none of its other imports reaches, sorted.
func direct(g graph, name string) (needed []string) {
	for _, below := range g[name] {
		if !slices.ContainsFunc(g[name], func(other string) bool { return reaches(g, other, below) }) {
			needed = append(needed, below)
		}
	}
	slices.Sort(needed)
	return needed
}

// draw is the picture: a line for each package, the highest level first.
func draw(g graph) string {
	of := levels(g)
	names := slices.SortedFunc(maps.Keys(g), func(a, b string) int {
		if of[a] != of[b] {
			return of[b] - of[a]
		}
		return strings.Compare(a, b)
	})
	width := 0
	for _, name := range names {
		width = max(width, len(short(name)))
	}
	var picture strings.Builder
	last := -1
	for _, name := range names {
		number := "  "
		if of[name] != last {
			number, last = fmt.Sprintf("%2d", of[name]), of[name]
		}
		needed := direct(g, name)
		for i := range needed {
			needed[i] = short(needed[i])
		}
		line := fmt.Sprintf("%s  %-*s", number, width, short(name))
		if len(needed) > 0 {
			line += "  -> " + strings.Join(needed, ", ")
		}
		picture.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return picture.String()
}

// short is a package's name without internal/, as the picture has it.
func short(name string) string { return strings.TrimPrefix(name, "internal/") }

// withPicture is the page with the picture between its marks.
func withPicture(text, picture string) (string, error) {
	before, rest, found := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return "", fmt.Errorf("%s has no place for the picture: %q and %q", page, begin, end)
	}
	return before + begin + "```\n" + picture + "```\n" + end + after, nil
}
