package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

func configureCommand() *cli.Command {
	return &cli.Command{
		Name:      "configure",
		Usage:     "put gpuledger into an engine's configuration, or remove it",
		UsageText: "gpuledger configure containerd|crio|podman|docker [--as-default] [--dry-run] [--undo]",
		Subcommands: []*cli.Command{
			configureEngine("containerd", grant.Containerd), configureEngine("crio", grant.CRIO),
			configureEngine("podman", grant.Podman), configureEngine("docker", grant.Docker),
		},
	}
}

func configureEngine(name string, engine grant.Engine) *cli.Command {
	return &cli.Command{
		Name:      name,
		Usage:     "configure " + string(engine),
		UsageText: "gpuledger configure " + name + " --as-default --dry-run",
		Description: "Adds the runtime handler \"gpuledger\", shows every change as a diff, and keeps " +
			"the originals under the state directory. --undo restores them to the byte; in a file that " +
			"was changed since, it removes only gpuledger's lines. All files are changed, or none. A " +
			"second call changes nothing.\n\nWithout --restart the engine is not restarted. Until it " +
			"is, an undo leaves gpuledger's own configuration where it is, because the engine still " +
			"calls gpuledger-runtime. It also leaves what is needed to stop running containers, and " +
			"says which containers these are.\n\nWith --as-default every container of the engine goes " +
			"through gpuledger. Containers that run now and that the policy would refuse are listed " +
			"first. Unless the configuration says otherwise, policy.mode becomes \"report\" and " +
			"policy.privileged becomes \"strip\". A later call without --as-default leaves gpuledger " +
			"the default; --undo takes that back.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "as-default", Usage: "make gpuledger the handler of containers that choose none"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
			&cli.BoolFlag{Name: "undo", Usage: "restore what was there before"},
			&cli.BoolFlag{Name: "restart", Usage: "then make the engine read its configuration (containers keep running)"},
			&cli.StringFlag{Name: "mode", Usage: "write policy.mode: enforce or report"},
			&cli.StringFlag{Name: "privileged", Usage: "write policy.privileged: refuse or strip"},
			&cli.BoolFlag{Name: "ask", Usage: "let the engine's containers ask for a share when they are created (ask.engines)"},
			&cli.StringFlag{Name: "file", Usage: "the engine's main configuration `FILE` (default: the engine's own default)"},
			&cli.StringFlag{Name: "runtime", Usage: "`PATH` of gpuledger-runtime (default: beside gpuledger)"},
			&cli.StringFlag{Name: "root", Usage: "configure the system in `DIR`, for example an image; all other paths are relative to it", Value: "/"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			o, err := configureOptions(c, engine)
			if err != nil {
				return err
			}
			a := configureAnswer{Engine: engine, DryRun: c.Bool("dry-run"),
				Files: []changeJSON{}, Notes: []string{}}
			if c.Bool("undo") {
				return hintRoot(a.undo(c, o))
			}
			return hintRoot(a.apply(c, o))
		},
	}
}

// configureOptions reads the flags. Below another root nothing is taken from this machine.
func configureOptions(c *cli.Context, engine grant.Engine) (o configure.Options, err error) {
	o = configure.Options{Engine: engine, File: c.String("file"), Runtime: c.String("runtime"),
		Config: configFile(c), AsDefault: c.Bool("as-default"), Ask: c.Bool("ask")}
	if o.Root, err = filepath.Abs(c.String("root")); err != nil {
		return o, fmt.Errorf("cannot find the root: %w", err)
	}
	if c.Bool("undo") && (o.AsDefault || o.Ask || c.IsSet("mode") || c.IsSet("privileged")) {
		return o, usage("--undo restores everything: it takes neither --as-default nor --ask nor --mode " +
			"nor --privileged")
	}
	if o.Root != "/" && c.Bool("restart") {
		return o, usage("--restart: no engine runs below --root")
	}
	if c.IsSet("mode") {
		if err := o.Mode.UnmarshalText([]byte(c.String("mode"))); err != nil || o.Mode == grant.Disabled {
			return o, usage("--mode: want enforce or report, not %q", c.String("mode"))
		}
	}
	if c.IsSet("privileged") {
		if err := o.Privileged.UnmarshalText([]byte(c.String("privileged"))); err != nil {
			return o, usage("--privileged: want refuse or strip, not %q", c.String("privileged"))
		}
	}
	return o, absolutePaths(&o)
}

// absolutePaths fills in paths that were not given, and makes relative ones absolute.
func absolutePaths(o *configure.Options) error {
	switch {
	case o.Root != "/" && o.Config == "":
		o.Config = policy.DefaultPath
	case o.Root == "/":
		o.Config = policy.Path(o.Config)
	}
	if o.Runtime == "" {
		o.Runtime = "/usr/bin/gpuledger-runtime"
		if self, err := os.Executable(); err == nil && o.Root == "/" {
			o.Runtime = filepath.Join(filepath.Dir(self), "gpuledger-runtime")
		}
	}
	for _, path := range []*string{&o.Config, &o.Runtime, &o.File} {
		if *path == "" || filepath.IsAbs(*path) {
			continue
		}
		if o.Root != "/" {
			return usage("%q: want an absolute path below --root", *path)
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("cannot find %s: %w", *path, err)
		}
		*path = abs
	}
	return nil
}

// configureAnswer is what configure prints with --json.
type configureAnswer struct {
	Engine  grant.Engine      `json:"engine"`
	Changed bool              `json:"changed"` // or would be, with dry_run
	DryRun  bool              `json:"dry_run"`
	Files   []changeJSON      `json:"files"`
	Running *configure.Survey `json:"running,omitempty"` // with --as-default
	Notes   []string          `json:"notes"`
	Waits   string            `json:"waits,omitempty"` // with --undo: what keeps gpuledger's own files
	Restart *engines.Restart  `json:"restart,omitempty"`

	// an earlier call changed the files, and the engine has run since before that
	Unread bool `json:"unread,omitempty"`
	// without --as-default: an earlier call made gpuledger the default, and this one leaves it so
	StillDefault bool `json:"still_default,omitempty"`
}

// changeJSON is one file.
type changeJSON struct {
	Path   string `json:"path"`
	Action string `json:"action"` // create, edit, link, restore, remove, keep
	Why    string `json:"why,omitempty"`
	Diff   string `json:"diff,omitempty"`
}

func (a *configureAnswer) enter(changes []configure.FileChange) {
	for _, c := range changes {
		a.Files = slices.DeleteFunc(a.Files, func(f changeJSON) bool {
			return f.Path == c.Path && f.Action == "keep"
		})
		a.Files = append(a.Files, changeJSON{c.Path, c.Action, c.Why, c.Diff})
		a.Changed = a.Changed || c.Action != "keep"
	}
}

func (a *configureAnswer) apply(c *cli.Context, o configure.Options) error {
	plan, err := configure.New(o)
	if err != nil {
		return err
	}
	o.File, a.StillDefault, a.Unread = plan.File, plan.StillDefault, len(plan.Older) > 0
	if o.AsDefault && o.Root == "/" {
		s := plan.Survey(host.Default())
		a.Running = &s
	}
	a.enter(plan.Changes)
	a.Notes = append(a.Notes, plan.Notes...)
	if !a.DryRun {
		if err := plan.Apply(); err != nil {
			return err
		}
	}
	failed := a.restart(c, o, plan.Policy.StateDir)
	return errors.Join(failed, a.answer(c, string(plan.Policy.Rules.Mode)))
}

func (a *configureAnswer) undo(c *cli.Context, o configure.Options) error {
	state, err := configure.StateDir(o)
	if err != nil {
		return err
	}
	if o.File, err = configure.File(o, state); err != nil {
		return err
	}
	o.Restarted = a.DryRun && c.Bool("restart") && o.Root == "/" // what a restart would allow
	done, err := configure.Undo(o, state, a.DryRun)
	if err != nil {
		return err
	}
	a.enter(done.Changes)
	if len(done.Changes) == 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("%s keeps nothing of `configure` for %s: nothing to undo",
			state, o.Engine))
	}
	failed := a.restart(c, o, state)
	if failed == nil && len(done.Named)+len(done.Callers) > 0 && a.Restart != nil && a.Restart.Done {
		// what a distribution has written anew by now, and what the engine needed until now
		o.Restarted = true
		if done, failed = configure.Undo(o, state, false); failed == nil {
			a.enter(done.Changes)
		}
	}
	if a.Waits = done.Waits(); a.Waits != "" && !slices.ContainsFunc(done.Changes,
		func(f configure.FileChange) bool { return f.Why == a.Waits }) {
		a.Notes = append(a.Notes, a.Waits)
	}
	if err := errors.Join(failed, a.answer(c, "")); err != nil {
		return err
	}
	if done.Kept > 0 {
		return fmt.Errorf("cannot undo everything: %d of the files were changed since by another program or "+
			"user; take out gpuledger's lines by hand and run it again", done.Kept)
	}
	if len(done.Named) > 0 {
		return fmt.Errorf("cannot undo everything: %s still names gpuledger; %s",
			strings.Join(done.Named, ", "), done.Advice)
	}
	if a.Waits != "" && c.Bool("restart") { // it could not be restarted from here
		return fmt.Errorf("cannot undo everything yet: %s", a.Waits)
	}
	return nil
}

// restart restarts the engine if --restart is given.
func (a *configureAnswer) restart(c *cli.Context, o configure.Options, stateDir string) error {
	if o.Root != "/" {
		return nil
	}
	r := engines.RestartOf(o.Installation())
	a.Restart = &r
	if !c.Bool("restart") || a.DryRun {
		if c.Bool("undo") && o.Engine == grant.Docker && r.Command != "" {
			r.Command = "gpuledger configure docker --undo --restart" // see configure.Reload
		}
		return nil
	}
	return a.reloaded(c.Bool("undo"), configure.Reload(o, stateDir, r.Do))
}

// reloaded makes a note of a dockerd that does not say if it has read its file. After an undo that
// is an error, because dockerd may call what would be removed.
func (a *configureAnswer) reloaded(undo bool, err error) error {
	var unknown *configure.UnknownError
	if !undo && errors.As(err, &unknown) {
		a.Notes = append(a.Notes, err.Error())
		return nil
	}
	return err
}

// answer prints what was done.
func (a *configureAnswer) answer(c *cli.Context, mode string) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, a)
	}
	a.print(c.App.Writer, mode)
	return nil
}

// print prints the answer for people. Running containers come first, because a default handler
// decides about them.
func (a *configureAnswer) print(w io.Writer, mode string) {
	if a.Running != nil {
		printSurvey(w, a.Running, mode)
	}
	for _, f := range a.Files {
		switch {
		case f.Action == "keep" && f.Why == "":
		case f.Why != "":
			fmt.Fprintf(w, "%s %s: %s\n", f.Action, f.Path, f.Why)
		default:
			fmt.Fprintf(w, "%s %s\n", f.Action, f.Path)
		}
		fmt.Fprint(w, f.Diff)
	}
	for _, n := range a.Notes {
		fmt.Fprintln(w, "note: "+n)
	}
	switch {
	case !a.Changed && a.Unread:
		fmt.Fprintf(w, "nothing to change, but %s has run since before the last change\n", a.Engine)
	case !a.Changed:
		fmt.Fprintln(w, "nothing to change")
	case a.DryRun:
		fmt.Fprintln(w, "dry run: nothing was changed")
	}
	if a.Restart == nil || a.DryRun {
		return
	}
	if a.Restart.Done {
		fmt.Fprintln(w, "done: "+a.Restart.Command)
	} else if hint := a.Restart.Hint(); hint != "" && (a.Changed || a.Unread) {
		fmt.Fprintln(w, hint)
	}
}

func printSurvey(w io.Writer, s *configure.Survey, mode string) {
	fmt.Fprintf(w, "containers of this engine that run now: %d; the policy would refuse: %d",
		s.Running, len(s.Refused))
	if len(s.Refused) > 0 && mode == string(grant.Report) {
		fmt.Fprint(w, `, and only record it, because policy.mode is "report"`)
	}
	fmt.Fprintln(w)
	for _, r := range s.Refused {
		who := r.Container
		if r.Pod != "" {
			who = r.Pod + " " + who
		}
		fmt.Fprintf(w, "  %s: refuse (%s): %s\n", who, r.Code, r.Message)
	}
}
