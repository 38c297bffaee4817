package oci

import (
	"flag"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The functions below read arguments as runc does, by the same means: package flag, and the
// reordering of a subcommand's words in urfave/cli v1 (command.go: reorderArgs). Parse must read
// everything that runc would start in the same way.

// runcCommands are the subcommands that start a container, and their options.
var runcCommands = map[string]struct{ values, switches []string }{
	"create": {[]string{"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"},
		[]string{"no-pivot", "no-new-keyring"}},
	"run": {[]string{"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"},
		[]string{"detach", "d", "keep", "no-subreaper", "no-pivot", "no-new-keyring"}},
	"restore": {[]string{"bundle", "b", "console-socket", "image-path", "work-path", "pid-file",
		"manage-cgroups-mode", "empty-ns", "lsm-profile", "lsm-mount-context"},
		[]string{"tcp-established", "ext-unix-sk", "shell-job", "file-locks", "detach", "d", "no-subreaper",
			"no-pivot", "auto-dedup", "lazy-pages"}},
}

// flags returns a flag set; aliases of the bundle share a value.
func flags(values, switches []string) (*flag.FlagSet, map[string]*string) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	read := map[string]*string{"bundle": new(string)}
	for _, name := range values {
		switch name {
		case "b", "bundle":
			set.StringVar(read["bundle"], name, "", "")
		default:
			read[name] = set.String(name, "", "")
		}
	}
	for _, name := range switches {
		set.Bool(name, false, "")
	}
	return set, read
}

// asRunc parses argv as runc does; ok reports that runc would start something.
func asRunc(words []string) (c Command, ok bool) {
	globals, read := flags([]string{"root", "log", "log-format", "criu", "rootless"},
		[]string{"debug", "systemd-cgroup", "version", "v", "help", "h"})
	if globals.Parse(words) != nil || globals.NArg() == 0 || on(globals, "version", "v", "help", "h") {
		return c, false
	}
	c.Name, c.Root = globals.Arg(0), *read["root"]
	options, starts := runcCommands[c.Name]
	if !starts {
		return c, false
	}
	local, read := flags(options.values, append([]string{"help", "h"}, options.switches...))
	if local.Parse(reordered(local, globals.Args()[1:])) != nil ||
		on(local, "help", "h") || local.NArg() != 1 {
		return c, false
	}
	c.Bundle, c.ID = *read["bundle"], local.Arg(0)
	return c, true
}

func on(set *flag.FlagSet, names ...string) bool {
	return slices.ContainsFunc(names,
		func(name string) bool { return set.Lookup(name).Value.String() == "true" })
}

// reordered moves known options and the words after them to the front, up to "--".
func reordered(set *flag.FlagSet, words []string) []string {
	known := func(word string) bool {
		name := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
		name, _, _ = strings.Cut(name, "=")
		return word != "-" && word != "--" && strings.HasPrefix(word, "-") && set.Lookup(name) != nil
	}
	var first, rest []string
	mayBeValue := false
	for i, word := range words {
		switch {
		case mayBeValue && !known(word):
			mayBeValue = false
			first = append(first, word)
		case word == "--":
			return append(append(first, rest...), words[i:]...)
		case known(word):
			first = append(first, word)
			mayBeValue = !strings.Contains(word, "=")
		default:
			rest = append(rest, word)
		}
	}
	return append(first, rest...)
}

// vocabulary has the words for which the fuzzer's bytes stand.
var vocabulary = []string{"create", "run", "restore", "state", "delete", "c", "create", "/b", "--bundle",
	"--bundle=/b", "-b", "-b=/b", "--root", "--root=/r", "/r",
	"--log", "l", "--log-format", "json", "--debug", "--systemd-cgroup", "--pid-file", "--pid-file=p",
	"--console-socket", "--no-pivot", "-d", "--detach", "--", "-",
	"--debug=false", "--no-pivot=true", "--rootless", "--rootless=true", "-bundle", "-root", "--preserve-fds",
	"3", "--image-path", "i", "--keep", "--tcp-established", "--help", "---b", "--=x", "--bundle="}

// dangling reports whether the last word is an option without its value. runc then uses the first
// argument as the value, which no engine can mean; Parse does not do that.
func dangling(words []string) bool {
	name, _, hasValue, isOption := option(words[len(words)-1])
	return isOption && !hasValue &&
		slices.ContainsFunc(Creates, func(command string) bool { return takesValue(command, name) })
}

// FuzzAsRunc: if runc would start a container by a list of words, Parse finds the same subcommand,
// bundle, root and id.
func FuzzAsRunc(f *testing.F) {
	for _, seed := range []string{"\x0c\x0e\x00\x08\x07\x05", "\x00\x05\x08\x07", "\x13\x01\x19\x09\x05",
		"\x02\x25\x26\x09\x05", "\x0d\x00\x09\x1b\x05", "\x00\x18\x05", "\x1f\x00\x05"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var words []string
		for _, b := range input {
			words = append(words, vocabulary[int(b)%len(vocabulary)])
		}
		want, starts := asRunc(words)
		got := Parse(append([]string{"runc"}, words...))
		if !starts || dangling(words) || strings.HasPrefix(want.ID, "-") ||
			strings.HasPrefix(want.Bundle, "-") {
			return // no engine's id or bundle begins like an option
		}
		if got.Name != want.Name || got.Root != want.Root || got.ID != want.ID || got.Help ||
			got.ConfigPath() != filepath.Join(want.Bundle, "config.json") {
			t.Errorf("%q: runc reads %+v, Parse %+v", words, want, got)
		}
	})
}

// execVocabulary has the words for which the fuzzer's bytes stand behind exec.
var execVocabulary = []string{"c1", "holder", "sh", "--cgroup", "--cgroup=../x", "../x", "--pid-file",
	"--pid-file=p", "-e", "-e=A=B", "--env",
	"-u", "--user=0", "-t", "--tty", "--tty=false", "-d", "--detach", "--", "-", "--preserve-fds", "1",
	"--preserve-fds=1", "-p", "--process", "-pid-file",
	"--cap", "-c", "-g", "--additional-gids", "--cwd", "/", "--console-socket", "--pidfd-socket=s",
	"--process-label", "--apparmor", "--no-new-privs",
	"--ignore-paused", "", "---x", "--new", "--cg"}

// FuzzExecAsRunc: if runc would exec by a list of words, Parse finds the same container. runc does
// not reorder them (SkipArgReorder), and neither does crun (ARGP_IN_ORDER).
func FuzzExecAsRunc(f *testing.F) {
	f.Add([]byte("\x06\x01\x00\x02"))
	f.Add([]byte("\x03\x05\x0f\x12\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		words := []string{"exec"}
		for _, b := range input {
			words = append(words, execVocabulary[int(b)%len(execVocabulary)])
		}
		set, _ := flags([]string{"console-socket", "pidfd-socket", "cwd", "env", "e", "user",
			"u", "additional-gids", "g", "process", "p", "pid-file", "process-label",
			"apparmor", "cap", "c", "preserve-fds", "cgroup"},
			[]string{"tty", "t", "detach", "d", "no-new-privs", "ignore-paused", "help", "h"})
		if set.Parse(words[1:]) != nil || set.NArg() == 0 || on(set, "help", "h") {
			return
		}
		if got := Parse(append([]string{"runc"}, words...)); got.ID != set.Arg(0) {
			t.Errorf("%q: runc reads %q, Parse %+v", words, set.Arg(0), got)
		}
	})
}
