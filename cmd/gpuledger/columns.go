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

// usual is how wide text is where no terminal says how wide it is, in columns.
const usual = 80

// columnsOf is how wide a picture may be: as the terminal that it is drawn on.
func columnsOf(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return usual
	}
	return int(size.Col)
}

// inGiB writes an amount of memory as a column of GiB has it: with one decimal. What is there is
// never written as nothing.
func inGiB(b grant.Bytes) string {
	text := strconv.FormatFloat(float64(b)/float64(grant.GiB), 'f', 1, 64)
	if b > 0 && text == "0.0" {
		return "<0.1"
	}
	return text
}

// shareOf writes how much there is of a whole, in GiB.
func shareOf(part, whole grant.Bytes) string { return inGiB(part) + "/" + inGiB(whole) }

// inMiB writes whole MiB, as a size on the command line can be written; what is left is not there
// to be granted.
func inMiB(b grant.Bytes) string { return strconv.FormatUint(uint64(b/grant.MiB), 10) + "MiB" }

// alignRight has the numbers of a column end in one place, so that they compare at a look.
func alignRight(rows [][]string, column int) {
	widest := 0
	for _, row := range rows {
		widest = max(widest, utf8.RuneCountInString(row[column]))
	}
	for _, row := range rows {
		row[column] = strings.Repeat(" ", widest-utf8.RuneCountInString(row[column])) + row[column]
	}
}

// leaveOut takes a column out of the rows.
func leaveOut(rows [][]string, column int) {
	for i, row := range rows {
		rows[i] = slices.Delete(row, column, column+1)
	}
}

// gap is what the cells of a table have between them.
const gap = 2

// widthOf is how wide a table of these rows becomes, without the column that is left out (-1:
// none).
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

// writeRows writes them as a table.
func writeRows(w io.Writer, rows [][]string) error {
	t := table(w)
	for _, row := range rows {
		if _, err := io.WriteString(t, strings.Join(row, "\t")+"\n"); err != nil {
			return err
		}
	}
	return t.Flush()
}

// fit cuts what is in one column of the rows so that the table has its place. Eight characters are
// left in any case.
func fit(rows [][]string, column, columns int) {
	room := max(columns-widthOf(rows, column), 8)
	for _, row := range rows {
		row[column] = shorten(row[column], room)
	}
}

// shorten leaves so many characters of a text.
func shorten(text string, room int) string {
	if runes := []rune(text); len(runes) > room {
		return strings.TrimRight(string(runes[:room-1]), " ") + "…"
	}
	return text
}

// wrap breaks a sentence into lines of so many columns, the first and the next ones with what they
// begin with. A word that is longer than a line is broken too, where it stands. What lines begin
// with, which is ASCII, leaves at least one column to the text.
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
