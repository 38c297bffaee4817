package main

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// defaultColumns is the width of text, in columns, without a terminal.
const defaultColumns = 80

// columnsOf returns the width of a file's terminal.
func columnsOf(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return defaultColumns
	}
	return int(size.Col)
}

// inGiB formats memory in GiB with one decimal. An amount above 0 is never printed as 0.0.
func inGiB(b grant.Bytes) string {
	text := strconv.FormatFloat(float64(b)/float64(grant.GiB), 'f', 1, 64)
	if b > 0 && text == "0.0" {
		return "<0.1"
	}
	return text
}

// shareOf formats a part of a whole, in GiB.
func shareOf(part, whole grant.Bytes) string { return inGiB(part) + "/" + inGiB(whole) }

// inMiB formats memory in whole MiB, rounded down, as a flag accepts it.
func inMiB(b grant.Bytes) string { return strconv.FormatUint(uint64(b/grant.MiB), 10) + "MiB" }

// alignRight pads the cells of a column on the left, so that numbers are easy to compare.
func alignRight(rows [][]string, column int) {
	widest := 0
	for _, row := range rows {
		widest = max(widest, utf8.RuneCountInString(row[column]))
	}
	for _, row := range rows {
		row[column] = strings.Repeat(" ", widest-utf8.RuneCountInString(row[column])) + row[column]
	}
}

// leaveOut removes a column from the rows.
func leaveOut(rows [][]string, column int) {
	for i, row := range rows {
		rows[i] = slices.Delete(row, column, column+1)
	}
}

// gap is the number of blanks between two cells.
const gap = 2

// widthOf returns the width of a table of these rows, without the cells of one column (-1: with
// all).
func widthOf(rows [][]string, without int) (sum int) {
	var widest []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widest) {
				widest = append(widest, 0)
			}
			widest[i] = max(widest[i], utf8.RuneCountInString(cell))
		}
	}
	for i, w := range widest {
		if i > 0 {
			sum += gap
		}
		if i != without {
			sum += w
		}
	}
	return sum
}

// writeRows writes rows as a table.
func writeRows(w io.Writer, rows [][]string) error {
	t := table(w)
	for _, row := range rows {
		if _, err := io.WriteString(t, strings.Join(row, "\t")+"\n"); err != nil {
			return err
		}
	}
	return t.Flush()
}

// fit shortens the cells of one column so that the table fits, but to no less than eight
// characters.
func fit(rows [][]string, column, columns int) {
	room := max(columns-widthOf(rows, column), 8)
	for _, row := range rows {
		row[column] = shorten(row[column], room)
	}
}

// shorten cuts a text to this many characters.
func shorten(text string, room int) string {
	if runes := []rune(text); len(runes) > room {
		return strings.TrimRight(string(runes[:room-1]), " ") + "…"
	}
	return text
}

// wrap breaks a text into lines of this many columns. first and next are the prefixes of the first
// and of the other lines, in ASCII; they are cut so that a column is left for the text. A word that
// is longer than a line is broken.
func wrap(text string, columns int, first, next string) string {
	first, next = first[:min(len(first), columns-1)], next[:min(len(next), columns-1)]
	var lines []string
	line, empty := first, true
	for word := range strings.FieldsSeq(text) {
		long := utf8.RuneCountInString(word)
		if !empty && utf8.RuneCountInString(line)+1+long > columns && len(next)+long <= columns {
			lines, line, empty = append(lines, line), next, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
		for runes := []rune(line); len(runes) > columns; runes = []rune(line) {
			lines, line = append(lines, string(runes[:columns])), next+string(runes[columns:])
		}
	}
	return strings.Join(append(lines, line), "\n")
}

// wrapParagraphs wraps each paragraph of a text. An empty line separates paragraphs.
func wrapParagraphs(text string, columns int) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = wrap(p, columns, "", "")
	}
	return strings.Join(paragraphs, "\n\n")
}
