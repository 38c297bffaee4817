package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of the source.
type mutant struct {
	id      int
	pkg     string // directory from the module's root
	at      string // "decide.go:12", for people
	key     string // names it across other changes: package, function, change, and which of several alike
	changed string // what it is, in words
}

// source is one file that is being instrumented.
type source struct {
	set     *token.FileSet
	text    []byte
	pkg     string
	inserts []insert
	found   *[]mutant
	seen    map[string]int // keys, with how often they were given
}

// insert is text that goes before an offset. Of several at one offset an ending goes before a
// beginning, the ending of an inner expression before that of an outer one, and the beginning of an
// outer one before that of an inner one.
type insert struct {
	offset int
	text   string
	ends   bool
}

// instrument gives the file of a package with all of its mutants in it, and adds them to found.
func instrument(pkg, path string, found *[]mutant, seen map[string]int) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &source{set: token.NewFileSet(), text: text, pkg: pkg, found: found, seen: seen}
	file, err := parser.ParseFile(s.set, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	before := len(*found)
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
			s.function(nameOf(f), f.Type, f.Body)
		}
	}
	if len(*found) == before {
		return text, nil
	}
	s.inserts = append(s.inserts, insert{offset: s.offset(file.Name.End()), text: "; import mutating " + `"` +
		module + `/internal/mutating"`})
	return s.apply(), nil
}

func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	return fmt.Sprint(t) + "." + f.Name.Name
}

func (s *source) offset(p token.Pos) int { return s.set.Position(p).Offset }

func (s *source) textOf(n ast.Node) string {
	return string(s.text[s.offset(n.Pos()):s.offset(n.End())])
}

// add enters a mutant and gives its number.
func (s *source) add(function string, n ast.Node, format string, args ...any) int {
	changed := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	key := s.pkg + " " + function + ": " + changed
	s.seen[key]++
	if times := s.seen[key]; times > 1 {
		key += fmt.Sprintf(" (%d)", times)
	}
	p := s.set.Position(n.Pos())
	id := len(*s.found) + 1
	*s.found = append(*s.found, mutant{id, s.pkg, fmt.Sprintf("%s:%d", filepath.Base(p.Filename), p.Line),
		key, changed})
	return id
}

// wrap puts an expression between two texts.
func (s *source) wrap(n ast.Node, before, after string) {
	s.inserts = append(s.inserts, insert{s.offset(n.Pos()), before, false},
		insert{s.offset(n.End()), after, true})
}

// apply gives the text with all that was inserted. inserts are in the order of the walk: outer
// expressions come first.
func (s *source) apply() []byte {
	at := map[int][]insert{}
	for _, i := range s.inserts {
		at[i.offset] = append(at[i.offset], i)
	}
	var out []byte
	for offset := 0; offset <= len(s.text); offset++ {
		for _, i := range slices.Backward(at[offset]) {
			if i.ends {
				out = append(out, i.text...)
			}
		}
		for _, i := range at[offset] {
			if !i.ends {
				out = append(out, i.text...)
			}
		}
		if offset < len(s.text) {
			out = append(out, s.text[offset])
		}
	}
	return out
}

// function finds the mutants in a function's body.
func (s *source) function(name string, signature *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			s.function(name, n.Type, n.Body)
			return false
		case *ast.GenDecl:
			return n.Tok != token.CONST
		case *ast.IfStmt:
			s.condition(name, n.Cond, true, true)
		case *ast.ForStmt:
			if n.Cond != nil {
				s.condition(name, n.Cond, false, true)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				s.cases(name, n.Body)
			}
		case *ast.BinaryExpr:
			s.binary(name, n)
		case *ast.ReturnStmt:
			s.results(name, signature, n)
		}
		return true
	})
}

// condition is always true, or always false. Where a single operand decides that, it is the
// operand's mutant.
func (s *source) condition(function string, c ast.Expr, whenTrue, whenFalse bool) {
	if b, ok := c.(*ast.BinaryExpr); ok {
		whenTrue = whenTrue && b.Op != token.LAND
		whenFalse = whenFalse && b.Op != token.LOR
	}
	s.boolean(function, c, whenTrue, whenFalse)
}

func (s *source) boolean(function string, c ast.Expr, whenTrue, whenFalse bool) {
	var yes, no int
	if whenTrue {
		yes = s.add(function, c, "`%s` is true", s.textOf(c))
	}
	if whenFalse {
		no = s.add(function, c, "`%s` is false", s.textOf(c))
	}
	if yes+no > 0 {
		s.wrap(c, fmt.Sprintf("mutating.Bool(%d, %d, ", yes, no), ")")
	}
}

func (s *source) cases(function string, body *ast.BlockStmt) {
	for _, stmt := range body.List {
		for _, c := range stmt.(*ast.CaseClause).List {
			s.condition(function, c, true, true)
		}
	}
}

// boundaries are the comparisons that differ from each in one case alone.
var boundaries = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}

// binary: an operand of && or || is left out; a boundary is moved by one.
func (s *source) binary(function string, b *ast.BinaryExpr) {
	other := boundaries[b.Op]
	switch {
	case b.Op == token.LAND || b.Op == token.LOR:
		for _, operand := range []ast.Expr{b.X, b.Y} {
			if inner, ok := operand.(*ast.BinaryExpr); ok && inner.Op == b.Op {
				continue // its own operands are
			}
			s.boolean(function, operand, b.Op == token.LAND, b.Op == token.LOR)
		}
	case other != "":
		x, y := s.textOf(b.X), s.textOf(b.Y)
		id := s.add(function, b, "`%s` is `%s %s %s`", s.textOf(b), x, other, y)
		s.wrap(b, fmt.Sprintf("mutating.Other(%d, func() bool { return ", id),
			fmt.Sprintf(" }, func() bool { return %s %s %s })", x, other, y))
	}
}

// results: what a function returns is the zero value, or true.
func (s *source) results(function string, signature *ast.FuncType, r *ast.ReturnStmt) {
	types := resultTypes(signature)
	if len(types) != len(r.Results) {
		return // a bare return, or another function's results
	}
	for i, value := range r.Results {
		kind, text := s.textOf(types[i]), s.textOf(value)
		switch {
		case kind == "bool":
			s.condition(function, value, text != "true", text != "false")
		case text == "nil", text == "0", text == `""`, strings.HasSuffix(text, "{}"):
		default:
			id := s.add(function, value, "returns no `%s`", text)
			s.wrap(value, fmt.Sprintf("mutating.Zero[%s](%d, ", kind, id), ")")
		}
	}
}

func resultTypes(signature *ast.FuncType) (types []ast.Expr) {
	if signature.Results == nil {
		return nil
	}
	for _, field := range signature.Results.List {
		for range max(1, len(field.Names)) {
			types = append(types, field.Type)
		}
	}
	return types
}

// files are the sources of a package for this machine, without its tests.
func files(pkg string) ([]string, error) {
	p, err := build.ImportDir(pkg, 0)
	if err != nil {
		return nil, err
	}
	return p.GoFiles, nil
}
