package grant

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxText is the largest size of a label or an application's name in bytes. Listings show both.
const MaxText = 256

// CheckText returns an error if a text cannot be a label or an application's name.
func CheckText(text string) error {
	if len(text) > MaxText || !utf8.ValidString(text) ||
		strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return fmt.Errorf("want at most %d bytes of printable text", MaxText)
	}
	return nil
}

// maxPrintable is the largest part of a foreign text that a message repeats, in characters.
const maxPrintable = 200

// Printable makes foreign text safe for messages and logs. It escapes what a terminal would
// interpret, and cuts the text at maxPrintable characters.
func Printable(text string) string {
	var b strings.Builder
	for length := 0; len(text) > 0; {
		r, size := utf8.DecodeRuneInString(text)
		piece := text[:size]
		if r == utf8.RuneError && size == 1 || !strconv.IsPrint(r) {
			quoted := strconv.Quote(piece)
			piece = quoted[1 : len(quoted)-1]
		}
		if length += utf8.RuneCountInString(piece); length > maxPrintable {
			return b.String() + "..."
		}
		b.WriteString(piece)
		text = text[size:]
	}
	return b.String()
}
