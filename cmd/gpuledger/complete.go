package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// The last word with which a completion script calls the program. The answer has one suggestion on
// each line; with askDescribed, a tab and a description follow.
const (
	askNext      = "--generate-bash-completion"
	askDescribed = "--generate-described-completion"
)

// suggestion is a word that may follow, and its description.
type suggestion struct{ word, is string }

// answerShell prints suggestions, if a completion script called the program.
func answerShell(w io.Writer, app *cli.App, args []string) (asked bool) {
	last := len(args) - 1
	if last < 1 || args[last] != askNext && args[last] != askDescribed {
		return false
	}
	for _, c := range next(app, args[1:last], readCompletionData) {
		if args[last] == askDescribed && c.is != "" {
			c.word += "\t" + c.is
		}
		fmt.Fprintln(w, c.word)
	}
	return true
}

// next lists what may follow the words. If the last word is empty or begins with "-", it is the one
// that is being typed: scripts send any other as empty, and the shell drops suggestions that do not
// match. look reads the ledger if a suggestion needs it.
func next(app *cli.App, words []string, look func(config string) completionData) []suggestion {
	l := line{commands: app.Commands, flags: app.Flags}
	current := ""
	if n := len(words) - 1; n >= 0 && (words[n] == "" || words[n][0] == '-') {
		words, current = words[:n], words[n]
	}
	for _, word := range words {
		l.read(word)
	}
	flag, _, assigned := strings.Cut(current, "=")
	switch {
	case l.setting != "":
		return l.values(l.setting, look)
	case assigned && !l.ended:
		var all []suggestion
		for _, c := range l.values(strings.TrimLeft(flag, "-"), look) {
			all = append(all, suggestion{flag + "=" + c.word, c.is})
		}
		return all
	case current != "" && !l.ended:
		return l.unset()
	case len(l.commands) > 0:
		return visible(l.commands)
	}
	return l.values("", look)
}

// line is the state of the command line after the words so far.
type line struct {
	name     string         // of the command, with its subcommand
	commands []*cli.Command // that may follow
	flags    []cli.Flag
	set      []string // flags that were given
	setting  string   // the flag that gets its value next
	ended    bool     // after "--": no flag follows
	config   string
}

func (l *line) read(word string) {
	switch {
	case l.setting != "" && word == "=": // bash takes --flag=value apart
	case l.setting != "":
		l.assign(l.setting, word)
		l.setting = ""
	case l.ended:
	case word == "--":
		l.ended = true
	case cmdline.IsFlag(word):
		name, value, assigned := strings.Cut(strings.TrimLeft(word, "-"), "=")
		l.set = append(l.set, name)
		if assigned {
			l.assign(name, value)
		} else if cmdline.WantsValue(word, l.flags) {
			l.setting = name
		}
	default:
		if i := slices.IndexFunc(l.commands, func(c *cli.Command) bool { return c.HasName(word) }); i >= 0 {
			c := l.commands[i]
			l.name = strings.TrimPrefix(l.name+" "+c.Name, " ")
			l.commands, l.flags, l.set = c.Subcommands, c.Flags, nil
		}
	}
}

func (l *line) assign(flag, value string) {
	if flag == "config" {
		l.config = value
	}
}

func visible(commands []*cli.Command) (all []suggestion) {
	for _, c := range commands {
		if !c.Hidden {
			all = append(all, suggestion{c.Name, c.Usage})
		}
	}
	return all
}

// unset lists the flags that can still be given.
func (l *line) unset() []suggestion {
	all := []suggestion{}
	flags := append(slices.Clone(l.flags), cli.HelpFlag)
	if l.name == "" {
		flags = append(flags, cli.VersionFlag)
	}
	for _, f := range flags {
		v, canHide := f.(cli.VisibleFlag)
		_, again := f.(*cli.StringSliceFlag)
		given := slices.ContainsFunc(f.Names(), func(name string) bool {
			return slices.Contains(l.set, name)
		})
		if canHide && !v.IsVisible() || given && !again {
			continue
		}
		usage := ""
		if d, is := f.(cli.DocGenerationFlag); is {
			usage = strings.ReplaceAll(d.GetUsage(), "`", "")
		}
		all = append(all, suggestion{"--" + f.Names()[0], usage})
	}
	return all
}

// choices lists the values of a command's flag (or of its arguments, under "") that are known. For
// all others the shell offers files.
var choices = map[string]func(completionData) []suggestion{
	"grant mode":           of(grant.Modes...),
	"grant place":          of(grant.Binpack, grant.Spread),
	"grant owner":          of(grant.Bearer, "pod:", "claim:"),
	"grant for":            of("pod:", "namespace:"),
	"grant gpu":            gpuNames,
	"grant profile":        profiles,
	"grant update":         grantIDs,
	"release ":             grantIDs,
	"audit code":           codes,
	"audit container":      recordedContainers,
	"audit grant":          grantIDs,
	"completion ":          of("bash", "zsh", "fish"),
	"configure mode":       of(grant.Enforce, grant.Report),
	"configure privileged": of(grant.RefusePrivileged, grant.Strip),
}

func (l *line) values(flag string, look func(config string) completionData) []suggestion {
	command, _, _ := strings.Cut(l.name, " ") // the subcommands of configure have the same flags
	choose := choices[command+" "+flag]
	if choose == nil {
		return nil
	}
	return choose(look(l.config))
}

// completionData is what choices need: the ledger, and the path of the audit log.
type completionData struct {
	grants.Overview
	audit string
}

// readCompletionData reads what the caller may read: a user other than root gets nothing, and no
// message.
func readCompletionData(config string) completionData {
	n := node.Open(policy.Path(config), host.Default())
	o, err := grants.Read(n)
	if err != nil || n.Broken != nil {
		return completionData{}
	}
	return completionData{o, n.Policy.Audit.File}
}

// of returns suggestions that are the same on every node.
func of[T ~string](words ...T) func(completionData) []suggestion {
	return func(completionData) []suggestion {
		list := make([]suggestion, len(words))
		for i, word := range words {
			list[i].word = string(word)
		}
		return list
	}
}

func grantIDs(o completionData) (all []suggestion) {
	for _, g := range o.Grants {
		is := fmt.Sprintf("%s %s %s %s", g.State(o.Now), g.Mode, shares(g), g.Label)
		all = append(all, suggestion{string(g.ID), strings.TrimSpace(is)})
	}
	return all
}

func gpuNames(o completionData) (all []suggestion) {
	for _, g := range o.Inventory.GPUs {
		is := g.Name + ", " + g.Memory.String()
		all = append(all, suggestion{strconv.Itoa(g.Index), is}, suggestion{g.UUID, is})
		for _, m := range g.MIG {
			all = append(all, suggestion{m.UUID, is + ", MIG " + m.Profile})
		}
	}
	return all
}

func profiles(o completionData) (all []suggestion) {
	for _, g := range o.Inventory.GPUs {
		for _, m := range g.MIG {
			if c := (suggestion{m.Profile, "MIG devices"}); !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

func codes(o completionData) []suggestion {
	return slices.Concat(of(grant.Codes...)(o), of(grant.FindingKinds...)(o))
}

// shellWord matches an id of a container that no shell expands. bash expands suggestions, and a
// tenant may choose the id.
var shellWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.+-]*$`)

// recorded is how much of the audit log's end is read for containers, in bytes.
const recorded = 256 << 10

// recordedContainers lists the containers at the end of the audit log, the last one first.
func recordedContainers(o completionData) (all []suggestion) {
	log, err := auditlog.OpenEnd(o.audit, recorded)
	if err != nil {
		return nil
	}
	defer log.Close()
	_ = log.Read(func(e *auditlog.Entry) error {
		if c := (suggestion{e.Container, plain(strings.TrimSpace(e.Code + " " +
			e.PodName()))}); shellWord.MatchString(c.word) {
			all = slices.DeleteFunc(all, func(o suggestion) bool { return o.word == c.word })
			all = append(all, c)
		}
		return nil
	})
	slices.Reverse(all)
	return all
}
