package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// The longest lines, and the width of a tab, in columns.
const (
	maxComment = 100
	maxCode    = 110
	tabWidth   = 4
)

// skipped are directories without Go files of the repository's own.
var skipped = []string{".git", ".cache", "bin", "dist", "testdata", "node_modules"}

// check reads every Go file below root, and returns a line for each line that is too long.
func check(root string) (long []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		found, err := longLines(name, text)
		long = append(long, found...)
		return err
	})
	return long, err
}

// longLines returns a line for each line of a Go file that is too long.
func longLines(name string, text []byte) (found []string, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	kinds := linesOf(files, text)
	rows := tableRows(files, file)
	for i, line := range strings.Split(string(text), "\n") {
		kind, limit := kinds[i+1], maxCode
		if kind == commentLine {
			limit = maxComment
		}
		if width(line) <= limit || kind == stringLine || rows[i+1] ||
			kind == commentLine && unbreakable(line) {
			continue
		}
		found = append(found, fmt.Sprintf("%s:%d: %d columns, more than %d", name, i+1, width(line), limit))
	}
	return found, nil
}

// width is how many columns a line has.
func width(line string) int {
	return utf8.RuneCountInString(line) + (tabWidth-1)*strings.Count(line, "\t")
}

// unbreakable reports whether a comment cannot be wrapped: it is a directive or preformatted, or
// has no space in its first half.
func unbreakable(line string) bool {
	line = strings.TrimLeft(line, "\t ")
	for _, beginning := range []string{"//go:", "//lint:", "//\t"} {
		if strings.HasPrefix(line, beginning) {
			return true
		}
	}
	text := strings.TrimLeft(line, "/* ")
	space := strings.IndexByte(text, ' ')
	return space < 0 || space > maxComment/2
}

// lineKind is what a line is.
type lineKind int

const (
	codeLine    lineKind = iota
	commentLine          // nothing but a comment
	stringLine           // within a raw string of several lines
)

// linesOf returns the kinds of the lines that are not code, by number.
func linesOf(files *token.FileSet, text []byte) map[int]lineKind {
	kinds := map[int]lineKind{}
	file := files.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	last := 0 // the last line that has a token
	for {
		at, is, literal := s.Scan()
		if is == token.EOF {
			return kinds
		}
		first := file.Line(at)
		to := first + bytes.Count([]byte(literal), []byte("\n"))
		switch {
		case is == token.SEMICOLON && literal == "\n":
			continue
		case is == token.COMMENT && first > last:
			mark(kinds, first, to, commentLine)
		case is == token.STRING && to > first:
			mark(kinds, first, to, stringLine)
		}
		last = to
	}
}

func mark(kinds map[int]lineKind, from, to int, kind lineKind) {
	for line := from; line <= to; line++ {
		kinds[line] = kind
	}
}

// tableRows returns the lines that are rows of tables.
func tableRows(files *token.FileSet, file *ast.File) map[int]bool {
	rows := map[int]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		table, is := n.(*ast.CompositeLit)
		if !is || len(table.Elts) < 2 || isStruct(table) {
			return true
		}
		before := files.Position(table.Lbrace).Line
		var own []int
		for _, row := range table.Elts {
			line := files.Position(row.Pos()).Line
			if line == before || files.Position(row.End()).Line != line {
				return true
			}
			own = append(own, line)
			before = line
		}
		for _, line := range own {
			rows[line] = true
		}
		return true
	})
	return rows
}

// isStruct reports whether a literal is a struct's, by its keys: those of a map are no bare names
// unless the literal says that it is a map.
func isStruct(l *ast.CompositeLit) bool {
	switch l.Type.(type) {
	case *ast.ArrayType, *ast.MapType:
		return false
	}
	pair, is := l.Elts[0].(*ast.KeyValueExpr)
	if !is {
		return false
	}
	_, bare := pair.Key.(*ast.Ident)
	return bare
}
