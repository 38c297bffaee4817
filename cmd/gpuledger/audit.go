package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

func auditCommand() *cli.Command {
	return &cli.Command{
		Name:      "audit",
		Usage:     "show the entries of the audit log: decisions, findings and switches",
		UsageText: "gpuledger audit --since 24h --code no-capacity",
		Description: "Reads the audit log and its rotated files, the oldest entry first. If a mode " +
			"stands in parentheses after a verdict, the verdict was only recorded, and the container " +
			"started. A TIME is 2026-11-21T19:10:31Z, \"2026-11-21 19:10\" or 2026-11-21, in UTC like " +
			"the log, or how long ago: 90m, 12h or 7d. The fields of --json: " +
			grant.Docs + "audit.md",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "since", Usage: "entries from this `TIME` on"},
			&cli.StringFlag{Name: "until", Usage: "entries before this `TIME`"},
			&cli.StringFlag{Name: "code", Usage: "refusals with this `CODE`, or findings of this kind"},
			&cli.StringFlag{Name: "container", Usage: "entries of the container with this `ID`, or the beginning of it, or NAMESPACE/POD[/CONTAINER]"},
			&cli.StringFlag{Name: "grant", Usage: "entries that name the grant with this `ID`"},
			&cli.BoolFlag{Name: "follow", Usage: "also print new entries, until interrupted"},
			&cli.BoolFlag{Name: "json", Usage: "print the lines of the log as they are"},
		},
		Action: audit,
	}
}

func audit(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	n := openAnyway(c)
	filter, err := filterOf(c, n.Host.Now())
	if err != nil {
		return err
	}
	if n.Broken != nil {
		warn(c.App.ErrWriter, []string{n.Broken.Error()})
	}
	log, err := openLog(n)
	if err != nil {
		return err
	}
	defer log.Close()
	p := &entryPrinter{filter: filter, raw: c.Bool("json"), table: rollingTable{w: c.App.Writer}}
	if err := log.Read(p.entry); err != nil {
		return err
	}
	if log.Files() == 0 {
		fmt.Fprintf(c.App.ErrWriter, "gpuledger: note: there is no %s: nothing was recorded yet\n",
			n.Policy.Audit.File)
	}
	if !c.Bool("follow") {
		warn(c.App.ErrWriter, log.Warnings())
		return p.end()
	}
	err = follow(log, p)
	warn(c.App.ErrWriter, log.Warnings())
	return err
}

// openLog opens the audit log of the node, or says why there is none.
func openLog(n *node.Node) (*auditlog.Log, error) {
	if n.Policy.Audit.File == "" {
		return nil, &grant.Refusal{Message: `cannot read the audit log: the configuration keeps none (file ` +
			`= "" in [audit])`,
			Hint: "name a file there; what was decided before is recorded nowhere"}
	}
	log, err := auditlog.Open(n.Policy.Audit.File)
	if err != nil && errors.Is(err, fs.ErrPermission) {
		return nil, &grant.Refusal{Message: err.Error(), Hint: "root and the group of the file can read it"}
	}
	return log, err
}

// follow prints new entries until it is interrupted.
func follow(log *auditlog.Log, p *entryPrinter) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)
	for {
		if err := p.table.flush(); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(time.Second / 2):
		}
		if err := log.More(p.entry); err != nil {
			return err
		}
	}
}

// filterOf reads the flags. A value that no entry can match is a usage error.
func filterOf(c *cli.Context, now time.Time) (f auditlog.Filter, err error) {
	if f.Since, err = momentOf(c, "since", now); err != nil {
		return f, err
	}
	if f.Until, err = momentOf(c, "until", now); err != nil {
		return f, err
	}
	f.Code, f.Container = c.String("code"), c.String("container")
	switch {
	case c.IsSet("until") && c.Bool("follow"):
		return f, usage("--follow shows what comes: leave --until out")
	case c.IsSet("since") && c.IsSet("until") && !f.Since.Before(f.Until):
		return f, usage("--since: want a time before that of --until")
	case c.IsSet("code") && !isCode(f.Code):
		return f, usage("--code: there is no code %q; %srefusals.md lists those of refusals, "+
			"%[2]sdaemon.md those of findings", grant.Printable(f.Code), grant.Docs)
	case c.IsSet("container") && f.Container == "":
		return f, usage("--container: want an id, the beginning of one, or NAMESPACE/POD[/CONTAINER]")
	}
	if c.IsSet("grant") {
		// people often paste the whole reference
		reference, err := grant.ParseReference(c.String("grant"))
		if err != nil {
			return f, usage("--grant: %q is no grant id; `gpuledger grants` lists them",
				typedID(c.String("grant")))
		}
		f.Grant = reference.ID
	}
	return f, nil
}

// momentOf returns the time that a flag names; the zero time if it is not given.
func momentOf(c *cli.Context, flag string, now time.Time) (at time.Time, err error) {
	if !c.IsSet(flag) {
		return at, nil
	}
	if at, err = moment(c.String(flag), now); err != nil {
		return at, usage("--%s: %v", flag, err)
	}
	return at, nil
}

func isCode(text string) bool {
	return slices.Contains(grant.Codes, grant.Code(text)) ||
		slices.Contains(grant.FindingKinds, grant.FindingKind(text))
}

// moment reads a point in time, or how long ago it is.
func moment(text string, now time.Time) (time.Time, error) {
	if ago, err := grant.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05",
		"2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("want a time, as 2026-11-21T19:10:31Z, \"2026-11-21 19:10\" or "+
		"2026-11-21, or how long ago, as 90m, 12h or 7d, not %q", grant.Printable(text))
}

// entryPrinter prints the entries that match a filter.
type entryPrinter struct {
	filter auditlog.Filter
	raw    bool
	any    bool
	table  rollingTable
}

func (p *entryPrinter) entry(e *auditlog.Entry) error {
	if !p.filter.Wants(e) {
		return nil
	}
	if p.raw {
		_, err := p.table.w.Write(append(e.Line, '\n'))
		return err
	}
	if !p.any {
		p.any = true
		if err := p.table.add([]string{"TIME", "VERDICT", "CODE", "CONTAINER", "POD", "ENGINE",
			"TEXT"}); err != nil {
			return err
		}
	}
	return p.table.add(entryRow(e))
}

// end prints the remaining rows, or that there are no entries.
func (p *entryPrinter) end() error {
	if !p.raw && !p.any {
		_, err := fmt.Fprintln(p.table.w, "no entries")
		return err
	}
	return p.table.flush()
}

func entryRow(e *auditlog.Entry) []string {
	verdict := e.Verdict + e.Action
	if e.Mode != "" {
		verdict += " (" + e.Mode + ")"
	}
	row := []string{e.Time.UTC().Format(time.RFC3339), verdict, e.Code + e.Finding, shortID(e.Container),
		e.PodName(), e.Engine, entryText(e)}
	for i, cell := range row {
		if row[i] = plain(cell); i < len(row)-1 {
			row[i] = dash(row[i])
		}
	}
	return row
}

// entryText returns the last cell of an entry's row: what the other cells do not show.
func entryText(e *auditlog.Entry) string {
	var parts []string
	add := func(before string, list ...string) {
		if text := strings.Join(list, ", "); text != "" {
			parts = append(parts, before+text)
		}
	}
	add("", strings.TrimPrefix(e.Message, "refused ("+e.Code+"): ")) // the code has a column
	if e.Verdict == string(grant.Admit) || e.User != nil {
		add("grant ", e.Grant)
		add("strength ", e.Strength)
	}
	if e.User != nil {
		add("user ", users.Name(*e.User))
	}
	switch {
	case e.Verdict == string(grant.Refused):
	case e.Mode != "":
		add("would be taken out: ", e.Removed...)
	default:
		add("taken out: ", e.Removed...)
	}
	add("recorded: ", e.Recorded...)
	switch {
	case e.Action == "disabled" && e.Until.IsZero():
		add("until ", "`gpuledger enable`")
	case e.Action == "disabled":
		add("until ", e.Until.UTC().Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}

var longID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// maxID is how much of a container's id a table shows, in characters.
const maxID = 24

// shortID shortens a container's id as engines do in their tables. --container accepts it.
func shortID(id string) string {
	if longID.MatchString(id) {
		return id[:12]
	}
	return shorten(id, maxID)
}

// plain replaces the characters that a terminal would obey: tenants may have written the text.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}

// block is the number of rows that are aligned together.
const block = 500

// rollingTable prints a table of any length, but holds only one block of rows. Columns never become
// narrower from block to block.
type rollingTable struct {
	w      io.Writer
	widths []int
	rows   [][]string
}

func (t *rollingTable) add(row []string) error {
	t.rows = append(t.rows, row)
	if len(t.rows) < block {
		return nil
	}
	return t.flush()
}

// flush prints the rows. The last cell of a row is not padded.
func (t *rollingTable) flush() error {
	for _, row := range t.rows {
		for i, cell := range row[:len(row)-1] {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, row := range t.rows {
		line := ""
		for i, cell := range row[:len(row)-1] {
			line += cell + strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+gap)
		}
		text.WriteString(strings.TrimRight(line+row[len(row)-1], " ") + "\n")
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.w, text.String())
	return err
}
