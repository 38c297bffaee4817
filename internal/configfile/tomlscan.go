package configfile

import (
	"bytes"
	"slices"

	"github.com/pelletier/go-toml/v2/unstable"
)

// locate finds the positions of all keys and tables. The text is valid TOML by then.
func (d *TOML) locate() {
	d.keys, d.tables = nil, nil
	var p unstable.Parser
	p.Reset(d.text)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		path, start, end := extent(e)
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = path
			d.tables = append(d.tables, tomlTable{path: path, array: e.Kind == unstable.ArrayTable,
				start: d.lineStart(start), end: d.lineEnd(end)})
		case unstable.KeyValue:
			value := skipBlanks(d.text, end)
			value = skipBlanks(d.text, value+1) // after the '='
			d.keys = append(d.keys, tomlKey{path: slices.Concat(table, path), table: len(d.tables) - 1,
				start: start, value: value, end: valueEnd(d.text, value)})
		}
	}
}

// extent is an expression's key, and the offsets of its start and end.
func extent(e *unstable.Node) (path []string, start, end int) {
	start = -1
	for it := e.Key(); it.Next(); {
		raw := it.Node().Raw
		if start < 0 {
			start = int(raw.Offset)
		}
		path, end = append(path, string(it.Node().Data)), int(raw.Offset+raw.Length)
	}
	return path, start, end
}

func skipBlanks(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	return i
}

func (d *TOML) lineStart(i int) int { return bytes.LastIndexByte(d.text[:i], '\n') + 1 }

func (d *TOML) lineEnd(i int) int {
	if n := bytes.IndexByte(d.text[i:], '\n'); n >= 0 {
		return i + n + 1
	}
	return len(d.text)
}

func (d *TOML) row(i int) int { return bytes.Count(d.text[:i], []byte("\n")) + 1 }

// valueEnd is the end of the value that starts at i, in a valid text. A value ends at the end of
// the line, at a comma or bracket that is not its own, or before a comment.
func valueEnd(text []byte, i int) int {
	depth, end := 0, i
	for i < len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\'':
			i = stringEnd(text, i)
			end = i
			continue
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == '#':
			if depth == 0 {
				return end
			}
			for i < len(text) && text[i] != '\n' {
				i++
			}
			continue
		case c == '\n' && depth == 0:
			return end
		}
		if c := text[i]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			end = i + 1
		}
		i++
	}
	return end
}

// stringEnd is the end of the string that starts at i. Only basic strings have escapes.
func stringEnd(text []byte, i int) int {
	quote := text[i : i+1]
	if triple := bytes.Repeat(quote, 3); bytes.HasPrefix(text[i:], triple) {
		quote = triple
	}
	for i += len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote[0] == '"':
			i++
		case bytes.HasPrefix(text[i:], quote):
			i += len(quote)
			// up to two quotes can stand before the closing three
			for len(quote) == 3 && i < len(text) && text[i] == quote[0] {
				i++
			}
			return i
		}
	}
	return len(text)
}
