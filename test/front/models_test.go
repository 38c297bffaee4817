package front

import (
	"flag"
	"io"
	"slices"
	"strings"
)

// The functions below read the words before a subcommand as runtimes do, each with its own way, and
// return the subcommand and --root. ok is false where the runtime refuses the line, or only prints
// its help or version.

// asRunc reads them as runc up to 1.3 (urfave/cli v1), by the same means: package flag.
func asRunc(words []string) (command, root string, ok bool) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&root, "root", "", "")
	for _, name := range []string{"log", "log-format", "criu", "rootless"} {
		set.String(name, "", "")
	}
	for _, name := range []string{"debug", "systemd-cgroup", "version", "v", "help", "h"} {
		set.Bool(name, false, "")
	}
	if set.Parse(words) != nil || set.NArg() == 0 {
		return "", "", false
	}
	for _, name := range []string{"version", "v", "help", "h"} {
		if set.Lookup(name).Value.String() == "true" {
			return "", "", false
		}
	}
	return set.Arg(0), root, true
}

// option is one that a runtime has before its subcommand.
type option struct {
	name   string
	letter byte
	valued bool
}

var crunOptions = []option{{"debug", 0, false}, {"cgroup-manager", 0, true}, {"systemd-cgroup", 0,
	false},
	{"log", 0, true}, {"log-format", 0, true}, {"log-level", 0, true}, {"root", 0, true},
	{"rootless", 0, true},
	{"help", '?', false}, {"usage", 0, false}, {"version", 'v', false}}

// asCrun reads them as crun: argp with ARGP_IN_ORDER, which is getopt_long up to the first word
// that is no option. A beginning of a name that fits one option alone is that option.
func asCrun(words []string) (command, root string, ok bool) {
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "--":
			if i++; i < len(words) {
				return words[i], root, true
			}
			return "", "", false
		case len(word) < 2 || word[0] != '-':
			return word, root, true
		case word[1] != '-': // letters: only those that end the program, or are refused
			return "", "", false
		}
		name, value, has := strings.Cut(word[2:], "=")
		fit := slices.DeleteFunc(slices.Clone(crunOptions), func(o option) bool {
			return !strings.HasPrefix(o.name, name)
		})
		if exact := slices.IndexFunc(fit, func(o option) bool { return o.name == name }); exact >= 0 {
			fit = fit[exact : exact+1]
		}
		if len(fit) != 1 || has && !fit[0].valued || slices.Contains([]string{"help", "usage",
			"version"}, fit[0].name) {
			return "", "", false
		}
		if fit[0].valued && !has {
			if i++; i == len(words) {
				return "", "", false
			}
			value = words[i]
		}
		if fit[0].name == "root" {
			root = value
		}
	}
	return "", "", false
}

var youkiOptions = []option{{"root", 'r', true}, {"log", 'l', true}, {"log-format", 0, true},
	{"log-level", 0, true}, {"systemd-cgroup", 's', false}, {"debug", 0, false}}

// asYouki reads them as clap does: whole names, letters in one word, each option once, and no value
// that begins like an option.
func asYouki(words []string) (command, root string, ok bool) {
	given := map[string]bool{}
	for i := 0; i < len(words); i++ {
		word := words[i]
		if len(word) < 2 || word[0] != '-' {
			return word, root, true
		}
		if word == "--" {
			return "", "", false
		}
		var options []option
		value, has := "", false
		if name, long := strings.CutPrefix(word, "--"); long {
			name, value, has = strings.Cut(name, "=")
			options = optionsOf(func(o option) bool { return o.name == name })
		} else {
			for j := 1; j < len(word) && !has; j++ {
				of := optionsOf(func(o option) bool { return o.letter == word[j] })
				options = append(options, of...)
				if len(of) == 0 {
					return "", "", false
				}
				if of[0].valued && j+1 < len(word) {
					value, has = strings.TrimPrefix(word[j+1:], "="), true
				}
			}
		}
		if len(options) == 0 {
			return "", "", false
		}
		for _, o := range options {
			if given[o.name] || has && !o.valued && len(options) == 1 {
				return "", "", false
			}
			given[o.name] = true
		}
		last := options[len(options)-1]
		if last.valued && !has {
			if i++; i == len(words) || strings.HasPrefix(words[i], "-") {
				return "", "", false
			}
			value = words[i]
		}
		if last.name == "root" {
			root = value
		}
	}
	return "", "", false
}

func optionsOf(is func(option) bool) []option {
	return slices.DeleteFunc(slices.Clone(youkiOptions), func(o option) bool { return !is(o) })
}

// asInterspersed reads them as urfave/cli v3 does: as package flag, except that a value may not be
// missing, and "--" ends the options.
func asInterspersed(words []string) (command, root string, ok bool) {
	valued := []string{"root", "log", "log-format", "criu", "rootless"}
	switches := []string{"debug", "systemd-cgroup"}
	for i := 0; i < len(words); i++ {
		word := words[i]
		if word == "--" {
			if i++; i < len(words) {
				return words[i], root, true
			}
			return "", "", false
		}
		if len(word) < 2 || word[0] != '-' {
			return word, root, true
		}
		name, value, has := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-"), "=")
		switch {
		case slices.Contains(valued, name):
			if !has {
				if i++; i == len(words) {
					return "", "", false
				}
				value = words[i]
			}
			if name == "root" {
				root = value
			}
		case slices.Contains(switches, name):
		default:
			return "", "", false
		}
	}
	return "", "", false
}
