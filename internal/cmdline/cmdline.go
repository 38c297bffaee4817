// Package cmdline adds to the library of command lines (urfave/cli) what people expect: flags may
// stand after arguments (Ordered), and an error says in words what is wrong (Wrong).
package cmdline

import (
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Ordered gives a command line, of which the first word is the program, with each command's flags
// before its other arguments, where the library looks for them. What stands behind "--" is no flag
// and stays behind it. The arguments of the commands with the names in runs are another program's
// command line, with flags of its own.
func Ordered(app *cli.App, args []string, runs ...string) []string {
	ordered, rest := args[:1:1], args[1:]
	commands, flags, toRun := app.Commands, app.Flags, false
	for {
		options, others := apart(rest, flags, toRun || len(commands) > 0)
		ordered = append(ordered, options...)
		i := slices.IndexFunc(commands, func(c *cli.Command) bool {
			return len(others) > 0 && c.HasName(others[0])
		})
		if i < 0 {
			return append(ordered, others...)
		}
		ordered, rest = append(ordered, others[0]), others[1:]
		commands, flags, toRun = commands[i].Subcommands, commands[i].Flags,
			slices.Contains(runs, commands[i].Name)
	}
}

// apart takes the flags with their values out of the words. With a command line in them, of a
// subcommand or a program, that ends at the first word that is no flag. A flag without its value
// gets none of the other words: they are left out, and the library misses the value.
func apart(words []string, flags []cli.Flag, inner bool) (options, others []string) {
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "--":
			return options, append([]string{"--"}, append(others, words[i+1:]...)...)
		case !IsFlag(word) && inner:
			return options, words[i:]
		case !IsFlag(word):
			others = append(others, word)
			continue
		}
		options = append(options, word)
		if !WantsValue(word, flags) {
			continue
		}
		if i++; i == len(words) {
			return options, nil
		}
		options = append(options, words[i])
	}
	return options, others
}

// IsFlag reports whether a word is a flag, in front of "--".
func IsFlag(word string) bool { return len(word) > 1 && word[0] == '-' }

// WantsValue reports whether the next word is the value of a flag.
func WantsValue(word string, flags []cli.Flag) bool {
	f, isDocumented := Flag(word, flags).(cli.DocGenerationFlag)
	return isDocumented && f.TakesValue() && !strings.Contains(word, "=")
}

// Flag finds a flag by a word as --name, -name or --name=value; nil if there is none.
func Flag(word string, flags []cli.Flag) cli.Flag {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-"), "=")
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return nil
	}
	return flags[i]
}

// invalid is how package flag says that a value cannot be read.
var invalid = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-([^:]+): (.*)$`)

// Wrong says what the library found wrong with the flags of a command. Its own words are a
// programmer's.
func Wrong(err error, flags []cli.Flag) string {
	text := err.Error()
	if name, is := strings.CutPrefix(text, "flag provided but not defined: -"); is {
		return "there is no flag " + dashed(name)
	}
	if name, is := strings.CutPrefix(text, "flag needs an argument: -"); is {
		return dashed(name) + " needs a value"
	}
	if word, is := strings.CutPrefix(text, "bad flag syntax: "); is {
		return word + " is no flag"
	}
	part := invalid.FindStringSubmatch(text)
	if part == nil {
		return text
	}
	value, name, why := part[1], part[2], part[3]
	switch Flag("-"+name, flags).(type) {
	case *cli.GenericFlag:
		return dashed(name) + ": " + why // Duration and Number say it in words
	case *cli.DurationFlag:
		return dashed(name) + ": want a duration with its unit, as 90s, 30m or 12h, not " + value
	case *cli.BoolFlag:
		return dashed(name) + ": want true, false or nothing, not " + value
	}
	return dashed(name) + ": cannot read " + value + ": " + why
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}
