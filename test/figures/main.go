// Command figures prints how the code is built: its size, its longest functions and lines, its
// largest types, and what stands behind the program that every container start runs.
//
//	go run ./test/figures
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	module  = "github.com/gpuledger/gpuledger/"
	wrapper = "./cmd/gpuledger-runtime"

	maxCode    = 110 // columns of a line of code, a tab counted as four
	maxMethods = 30  // of a type
)

func main() {
	f := figures{methods: map[string]int{}, types: map[string][]string{}}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		case strings.HasPrefix(path, "test/"):
			return nil
		}
		return f.read(path)
	})
	if err == nil {
		err = f.behind(wrapper)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "figures: cannot read the code:", err)
		os.Exit(1)
	}
	f.print()
}

// figures are those of all files that were read.
type figures struct {
	files, lines, comments, long int
	functions                    []int // lines of each
	widths                       []int // columns of each line
	methods                      map[string]int
	types                        map[string][]string // packages by the name of a type
	packages, depth              int                 // behind the wrapper
}

// read adds a file.
func (f *figures) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.ParseComments)
	if err != nil {
		return err
	}
	f.files++
	for line := range bytes.Lines(text) {
		width := len([]rune(strings.ReplaceAll(strings.TrimRight(string(line), "\n"), "\t", "    ")))
		f.lines++
		f.widths = append(f.widths, width)
		if width > maxCode {
			f.long++
		}
	}
	for _, group := range file.Comments {
		f.comments += set.Position(group.End()).Line - set.Position(group.Pos()).Line + 1
	}
	dir := filepath.Dir(path)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			f.functions = append(f.functions, set.Position(d.End()).Line-set.Position(d.Pos()).Line+1)
			if d.Recv != nil {
				f.methods[dir+" "+receiver(d.Recv.List[0].Type)]++
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if t, is := s.(*ast.TypeSpec); is && !slices.Contains(f.types[t.Name.Name], dir) {
					f.types[t.Name.Name] = append(f.types[t.Name.Name], dir)
				}
			}
		}
	}
	return nil
}

// receiver names the type of a method's receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// behind counts the packages of this module that a program imports, and how deep they stand.
func (f *figures) behind(program string) error {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{join .Imports \" \"}}",
		program).Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	depth := map[string]int{} // go list names a package after all that it imports
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(words[0], module) {
			continue
		}
		f.packages++
		for _, imported := range words[1:] {
			if strings.HasPrefix(imported, module) {
				depth[words[0]] = max(depth[words[0]], depth[imported]+1)
			}
		}
		f.depth = max(f.depth, depth[words[0]])
	}
	f.packages-- // the program itself
	return nil
}

func (f *figures) print() {
	slices.Sort(f.functions)
	slices.Sort(f.widths)
	at := func(list []int, percent int) int { return list[(len(list)-1)*percent/100] }
	fmt.Printf("%d lines of Go without tests in %d files; %d %% are comments\n", f.lines, f.files,
		100*f.comments/f.lines)
	fmt.Printf("functions: median %d lines, 90 %% within %d, longest %d\n", at(f.functions, 50),
		at(f.functions, 90), at(f.functions, 100))
	fmt.Printf("lines: 90 %% within %d columns; %d have more than %d (%.1f %%)\n", at(f.widths, 90), f.long,
		maxCode, 100*float64(f.long)/float64(f.lines))
	var names []string
	for name := range f.methods {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if f.methods[a] != f.methods[b] {
			return f.methods[b] - f.methods[a]
		}
		return strings.Compare(a, b)
	})
	large := slices.IndexFunc(names, func(n string) bool { return f.methods[n] < maxMethods })
	fmt.Printf("types with %d methods or more: %d", maxMethods, large)
	for _, name := range names[:max(large, 3)] {
		fmt.Printf("; %s %d", name, f.methods[name])
	}
	shared := 0
	var most []string
	for name, dirs := range f.types {
		if len(dirs) > 1 {
			shared++
		}
		if len(dirs) > 3 {
			most = append(most, fmt.Sprintf("%s (%d)", name, len(dirs)))
		}
	}
	slices.Sort(most)
	fmt.Printf("\n%d names of types; %d are of more than one type, of more than three: %s\n", len(f.types),
		shared, strings.Join(most, ", "))
	fmt.Printf("behind %s: %d packages of this module, %d deep\n", wrapper, f.packages, f.depth)
}
