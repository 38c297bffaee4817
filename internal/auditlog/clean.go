package auditlog

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// secret matches a reference with its secret. No decision writes one, but a tenant's text in a
// message may.
var secret = regexp.MustCompile(`(g-[a-z]{12})\.[0-9a-fA-F]{8,}`)

// maxText bounds a text, in bytes. Package node writes at most 512. A longer text is from another
// program or a newer version, and is cut here.
const maxText = 1024

// Clean makes text of unknown origin fit to be shown: short, without secrets, and without
// characters that change or hide the text around it.
func Clean(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	text = secret.ReplaceAllString(text, "$1.(secret)")
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}
