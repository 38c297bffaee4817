// Package transcript reads what a document shows of a terminal, and compares it with what the
// commands say.
package transcript

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Step is a command and what it prints. User is the one who types it: "" is nobody in particular.
type Step struct{ Command, Says, User string }

// typed is a prompt with what follows it: "$ ", "# ", or a user's as "ada$ ".
var typed = regexp.MustCompile(`^([a-z]*)\$ |^# `)

// Steps are the commands in the code blocks of a section of Markdown: each begins with a prompt, "$
// ", "# " or "ada$ ", and goes on in lines that begin with "> ", as a shell shows them. The section
// is known by its heading, of any level; what is below it belongs to it.
func Steps(markdown, heading string) (steps []Step) {
	for i, block := range strings.Split(section(markdown, heading), "```") {
		if i%2 == 0 {
			continue
		}
		_, block, _ = strings.Cut(block, "\n") // the language
		begun, inCommand := false, false
		for line := range strings.Lines(block) {
			text := strings.TrimSuffix(line, "\n")
			prompt := typed.FindStringSubmatch(text)
			switch more, goesOn := strings.CutPrefix(text, "> "); {
			case prompt != nil:
				command := strings.TrimSpace(text[len(prompt[0]):])
				steps = append(steps, Step{Command: command, User: prompt[1]})
				begun, inCommand = true, true
			case !begun: // a block without a prompt is no transcript
			case goesOn && inCommand:
				steps[len(steps)-1].Command += "\n" + more
			default:
				steps[len(steps)-1].Says += line
				inCommand = false
			}
		}
	}
	return steps
}

// section is the text below a heading.
func section(markdown, heading string) string {
	var text strings.Builder
	level, inBlock := 0, false
	for line := range strings.Lines(markdown) {
		if strings.HasPrefix(line, "```") {
			inBlock = !inBlock
		}
		hashes := len(line) - len(strings.TrimLeft(line, "#"))
		if hashes > 0 && !inBlock {
			if level > 0 && hashes <= level {
				break
			}
			if level == 0 && strings.TrimSpace(line[hashes:]) == heading {
				level = hashes
				continue
			}
		}
		if level > 0 {
			text.WriteString(line)
		}
	}
	return text.String()
}

// Agrees reports whether a command said what the document shows. What differs from run to run does
// not count: ids, secrets, dates, the width of columns, how lines are broken. In the document "..."
// stands for anything.
func Agrees(said, shown string) bool {
	said = unnamed(said)
	parts := strings.Split(unnamed(shown), "...")
	for i, part := range parts {
		part = strings.TrimSpace(part)
		at := strings.Index(said, part)
		if i == len(parts)-1 && i > 0 {
			at = len(said) - len(part)
		}
		if at < 0 || i == 0 && at > 0 || !strings.HasPrefix(said[at:], part) {
			return false
		}
		said = strings.TrimSpace(said[at+len(part):])
	}
	return said == ""
}

var (
	grantID = regexp.MustCompile(`g-[a-z]{12}`)
	secret  = regexp.MustCompile(`[0-9a-f]{32}`)
	date    = regexp.MustCompile(`[A-Z][a-z]{2} +\d+ \d\d:\d\d`)
)

// unnamed takes out what differs from run to run.
func unnamed(text string) string {
	ids := map[string]string{}
	text = grantID.ReplaceAllStringFunc(text, func(id string) string {
		if ids[id] == "" {
			ids[id] = fmt.Sprintf("g-%d", len(ids))
		}
		return ids[id]
	})
	text = date.ReplaceAllString(secret.ReplaceAllString(text, "SECRET"), "DATE")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if strings.HasPrefix(text, "ID ") { // grants are listed by id
		slices.Sort(lines)
	}
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}
