package oci

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Command is an engine's call of a runtime, with the options that gpuledger needs. It is parsed as
// runc and crun do: global options, the subcommand, then its options and arguments in any order.
type Command struct {
	Name       string // the subcommand; "": none
	Root       string // --root
	RootAt     int    // index in argv of the word that ends with its value; 0: not given
	Log        string // --log
	LogFormat  string // --log-format
	Systemd    bool   // --systemd-cgroup, crun --cgroup-manager=systemd: systemd owns the container's cgroup
	CgroupsOff bool   // crun --cgroup-manager=disabled
	Bundle     string // --bundle
	Config     string // crun --config: another name for config.json
	ID         string // the last argument; of exec the container, "" if it is not known
	// index in argv of update's --resources value, with ResourcesPrefix before it; 0: not given
	Resources int

	ResourcesPrefix string // "" or "--resources="

	IDAt int // of exec, the index in argv of ID; 0: not known

	Help bool // the call has no arguments or asks only for help: runtimes then print help or an error
	// the first option that runtimes read differently: "-b/dir" and "-bundle", or a prefix such as
	// "--bun"
	Short string
}

// valued are the options that take a value, as "--name value" or "--name=value", with one dash or
// two. The global ones are those of runc and crun; an unknown global option could be of either
// kind.
var (
	globalValued = []string{"root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager"}
	globalFlags  = []string{"debug", "systemd-cgroup", "version", "v", "help", "h"}
	valued       = []struct {
		command string
		options []string
	}{
		{"create", []string{"bundle", "b", "config", "f", "console-socket", "pid-file",
			"pidfd-socket", "preserve-fds"}},
		{"run", []string{"bundle", "b", "config", "f", "console-socket", "pid-file",
			"pidfd-socket", "preserve-fds"}},
		{"restore", []string{"bundle", "b", "console-socket", "image-path", "work-path", "pid-file",
			"manage-cgroups-mode", "empty-ns", "lsm-profile", "lsm-mount-context"}},
		{"update", []string{"resources", "r", "blkio-weight", "cpu-period", "cpu-quota", "cpu-burst",
			"cpu-share", "cpu-rt-period", "cpu-rt-runtime", "cpu-idle",
			"cpuset-cpus", "cpuset-mems", "kernel-memory", "kernel-memory-tcp", "memory",
			"memory-reservation", "memory-swap", "pids-limit",
			"l3-cache-schema", "mem-bw-schema"}},
		{"delete", []string{"regex"}},
		{"exec", []string{"console-socket", "cwd", "env", "e", "user", "u", "additional-gids",
			"g", "process", "p",
			"pid-file", "pidfd-socket", "process-label", "apparmor", "preserve-fds", "cap", "c", "cgroup"}},
	}
)

func takesValue(command, option string) bool { return slices.Contains(optionsOf(command), option) }

// optionsOf lists the options of a subcommand that take a value.
func optionsOf(command string) []string {
	for _, v := range valued {
		if v.command == command {
			return v.options
		}
	}
	return nil
}

// execFlags are the options of exec that take no value.
var execFlags = []string{"tty", "t", "detach", "d", "no-new-privs", "ignore-paused"}

// Creates are the subcommands that start a container.
var Creates = []string{"create", "run", "restore"}

// judged are those and the others of which gpuledger reads the options.
var judged = append([]string{"exec", "update"}, Creates...)

// subcommands are the subcommands of runc and crun.
var subcommands = []string{"checkpoint", "create", "delete", "events", "exec", "features", "help", "init",
	"kill", "list", "mounts", "pause", "ps",
	"restore", "resume", "run", "spec", "start", "state", "update"}

// Parse parses argv. Its first element is the program's name.
func Parse(argv []string) Command {
	var c Command
	i, known := c.globals(argv)
	if i < len(argv) {
		c.Name = argv[i]
		if c.Name == "exec" {
			c.execArguments(argv, i+1, known)
		} else {
			c.arguments(argv, i+1)
		}
		rest := argv[i+1:]
		// With an option that runtimes read differently, this may be a container's id.
		c.Help = known && c.Short == "" && (len(rest) == 0 || len(rest) == 1 &&
			slices.Contains([]string{"-h", "--help"}, rest[0]))
	}
	return c
}

// globals reads the options before the subcommand and returns the subcommand's index. After an
// unknown option a word may be its value or the subcommand. It is the value in two cases: the next
// word is a judged subcommand, or it is no known subcommand and a later word is. So a new option
// can lead to more checks, never to fewer. known is false if there is an unknown option.
func (c *Command) globals(argv []string) (at int, known bool) {
	unknown, first := false, len(argv)
	for i := 1; i < len(argv); i++ {
		name, value, hasValue, isOption := option(argv[i])
		c.noteShort(argv[i], name, slices.Contains(globalValued, name) || slices.Contains(globalFlags, name))
		switch {
		case argv[i] == "--": // the options end here, the command does not
			return min(i+1, len(argv)), !unknown
		case !isOption && (!unknown || slices.Contains(subcommands, argv[i])):
			return i, !unknown
		case !isOption:
			first = min(first, i)
		case hasValue:
			c.global(name, value, i)
		case meansOne(argv[i], globalValued): // of "--roo state create", create is the subcommand
			if i++; i < len(argv) {
				c.global(name, argv[i], i)
			}
		case meansOne(argv[i], globalFlags):
			c.global(name, "true", i)
		default:
			if unknown = true; i+2 < len(argv) && slices.Contains(judged, argv[i+2]) {
				return i + 2, false
			}
		}
	}
	return first, !unknown
}

func (c *Command) global(name, value string, at int) {
	switch name {
	case "root":
		c.Root, c.RootAt = value, at
	case "log":
		c.Log = value
	case "log-format":
		c.LogFormat = value
	case "systemd-cgroup":
		c.Systemd = value != "false"
	case "cgroup-manager":
		c.CgroupsOff, c.Systemd = value == "disabled", value == "systemd"
	}
}

// arguments reads the words after the subcommand.
func (c *Command) arguments(argv []string, from int) {
	onlyWords := false
	for i := from; i < len(argv); i++ {
		name, value, hasValue, isOption := option(argv[i])
		if onlyWords || !isOption {
			if argv[i] == "--" && !onlyWords {
				onlyWords = true
				continue
			}
			c.ID = argv[i]
			continue
		}
		c.noteShort(argv[i], name, takesValue(c.Name, name))
		switch {
		case hasValue:
			c.local(name, value, i, argv[i][:len(argv[i])-len(value)])
		case takesValue(c.Name, name):
			if i++; i < len(argv) {
				c.local(name, argv[i], i, "")
			}
		}
	}
}

// execArguments finds the container of an exec: the first word that is no option and no option's
// value. All after it is the container's own command: runc and crun read no option there. After an
// option that is not known, the container is not known either.
func (c *Command) execArguments(argv []string, from int, known bool) {
	for i := from; i < len(argv) && known; i++ {
		name, _, hasValue, isOption := option(argv[i])
		valued := meansOne(argv[i], optionsOf("exec"))
		c.noteShort(argv[i], name, valued)
		switch {
		case argv[i] == "--":
			i++
			fallthrough
		case !isOption:
			if i < len(argv) {
				c.ID, c.IDAt = argv[i], i
			}
			return
		case hasValue:
		case valued:
			i++
		default:
			known = meansOne(argv[i], execFlags)
		}
	}
}

// ExecOptions returns the words of an exec that a runtime may read as options: those before the
// container's id, or all if it is not known.
func (c *Command) ExecOptions(argv []string) []string {
	if c.IDAt > 0 {
		return argv[:c.IDAt]
	}
	return argv
}

// LeavesCgroup returns the first --cgroup of an exec by which the process may get into a cgroup
// that is not below its container's, or "". runc up to 1.2 compares only how the paths begin, and
// crun before 1.29 walks them as the kernel does. "/" at the beginning leads to the container's own
// cgroup.
func LeavesCgroup(options []string) string {
	for _, value := range values(options, "cgroup") {
		// runc accepts "controller,controller:path"
		if slices.Contains(strings.FieldsFunc(value, func(r rune) bool {
			return strings.ContainsRune("/:,", r)
		}), "..") {
			return value
		}
	}
	return ""
}

func (c *Command) local(name, value string, index int, prefix string) {
	switch name {
	case "bundle", "b":
		c.Bundle = value
	case "config", "f":
		c.Config = value
	case "resources", "r":
		c.Resources, c.ResourcesPrefix = index, prefix
	}
}

// MaxDescriptors returns how many descriptors the real runtime passes to a container's process at
// most, by its arguments and $LISTEN_FDS. They are numbered from 0. A word counts as an option if
// any runtime may read it as that option.
func MaxDescriptors(argv []string, listenFDs string) int {
	handed := 3 // standard input, output and error
	for _, text := range append(values(argv, "preserve-fds"), listenFDs) {
		n, err := strconv.Atoi(text)
		if err != nil && text != "" { // runc reads "0x2" and "0b1", crun "1 and more"
			n = maxDescriptors
		}
		handed += min(max(n, 0), maxDescriptors)
	}
	return handed
}

// maxDescriptors is more than any process can have.
const maxDescriptors = 1 << 30

// values returns all values of an option, anywhere in the call, by any word that a runtime may read
// as that option: getopt accepts every prefix of its name.
func values(argv []string, of string) (list []string) {
	for i, word := range argv {
		_, value, hasValue, _ := option(word)
		if i == 0 || !means(word, of) {
			continue
		}
		if !hasValue && i+1 < len(argv) {
			value = argv[i+1]
		}
		list = append(list, value)
	}
	return list
}

// means reports whether a runtime may read a word as this option: getopt accepts every prefix of a
// name after two dashes.
func means(word, of string) bool {
	name, _, _, isOption := option(word)
	return isOption && (name == of || strings.HasPrefix(word, "--") && strings.HasPrefix(of, name))
}

func meansOne(word string, of []string) bool {
	return slices.ContainsFunc(of, func(o string) bool { return means(word, o) })
}

// judgedOptions are the options that determine what is judged.
var judgedOptions = []string{"root", "log", "log-format", "systemd-cgroup", "cgroup-manager",
	"bundle", "config", "resources"}

// noteShort records the first option that runtimes read differently. crun (getopt) reads one letter
// after one dash, followed by its value or more letters, and any unambiguous prefix of a name after
// two. runc (Go's flag) reads whole names after either.
func (c *Command) noteShort(word, name string, known bool) {
	attached := len(word) > 2 && word[0] == '-' && word[1] != '-'
	begun := len(name) > 0 && strings.HasPrefix(word, "--") && !known &&
		slices.ContainsFunc(judgedOptions, func(o string) bool {
			return strings.HasPrefix(o, name) && o != name
		})
	if c.Short == "" && (attached || begun) {
		c.Short = word
	}
}

// Ambiguous returns why the runtime at this path may read the command otherwise than Parse does, or
// nil. runc reads whole names, as Parse does, and refuses the rest itself.
func (c Command) Ambiguous(program string) error {
	if c.Short == "" || strings.HasPrefix(filepath.Base(program), "runc") {
		return nil
	}
	return fmt.Errorf("runtimes disagree on the option %s; write its name in full", grant.Printable(c.Short))
}

// option splits a word: "--name=value", "-name", "--name". "-" and "--" are not options.
func option(word string) (name, value string, hasValue, isOption bool) {
	name = strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if name == "" || name == word {
		return "", "", false, false
	}
	name, value, hasValue = strings.Cut(name, "=")
	return name, value, hasValue, true
}

// ConfigPath returns the path of the spec that the real runtime will read. A relative path starts
// at the engine's working directory. That is also true of another file name: crun resolves it
// before it enters the bundle.
func (c Command) ConfigPath() string {
	const usual = "config.json"
	if c.Config != "" && c.Config != usual {
		return c.Config
	}
	return filepath.Join(c.Bundle, usual)
}
