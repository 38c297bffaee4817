package cmdline

import (
	"bytes"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// program is one with a flag of each kind, commands and a subcommand. Its commands print what they
// were given.
func program(out *bytes.Buffer) *cli.App {
	flags := func() []cli.Flag {
		return []cli.Flag{&cli.StringFlag{Name: "config"}, &cli.BoolFlag{Name: "force"},
			&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}},
			&cli.GenericFlag{Name: "gpus", Value: new(Number)}, &cli.DurationFlag{Name: "interval"},
			&cli.GenericFlag{Name: "ttl", Value: new(Duration)}}
	}
	say := func(c *cli.Context) error {
		out.WriteString(strings.Join(append([]string{c.Command.Name, "config=" + c.String("config"),
			"n=" + c.String("n")}, c.Args().Slice()...), " "))
		if c.Bool("force") {
			out.WriteString(" forced")
		}
		return nil
	}
	wrong := func(c *cli.Context, err error, _ bool) error {
		out.WriteString(Wrong(err, c.Command.Flags))
		return nil
	}
	app := &cli.App{Name: "p", Flags: []cli.Flag{&cli.StringFlag{Name: "config"}}, Writer: out,
		OnUsageError: wrong, Commands: []*cli.Command{
			{Name: "release", Flags: flags(), Action: say, OnUsageError: wrong},
			{Name: "run", Flags: flags(), Action: say, OnUsageError: wrong},
			{Name: "inventory", Flags: flags(), Subcommands: []*cli.Command{{Name: "refresh", Aliases: []string{"scan"}, Flags: flags(), Action: say, OnUsageError: wrong}}},
		}}
	return app
}

func TestAFlagStandsWhereItLikes(t *testing.T) {
	for line, want := range map[string]string{
		"release":                                "release config= n=",
		"release --force A":                      "release config= n= A forced",
		"release A --force":                      "release config= n= A forced",
		"release A --force B -n NS":              "release config= n=NS A B forced",
		"release A -n=NS B":                      "release config= n=NS A B",
		"release A --namespace --force":          "release config= n=--force A",
		"--config x release A --force":           "release config= n= A forced",
		"--config release release --config y A":  "release config=y n= A",
		"release A -":                            "release config= n= A -",
		"release A -- --force":                   "release config= n= A --force",
		"release --force -- -- A":                "release config= n= -- A forced",
		"release -- A --force":                   "release config= n= A --force",
		"inventory refresh A --force":            "refresh config= n= A forced",
		"inventory scan A --config x":            "refresh config=x n= A",
		"inventory --config x refresh A --force": "refresh config= n= A forced",
		"run --force -n NS A --force B -n x":     "run config= n=NS A --force B -n x forced",
		"run -n NS -- A --force":                 "run config= n=NS A --force",
		"run A -- --force":                       "run config= n= A -- --force",
		"release A --config":                     "--config needs a value",
		"release A -n":                           "-n needs a value",
		"release A --nonsense":                   "there is no flag --nonsense",
		"release A -x":                           "there is no flag -x",
		"release ---force":                       "---force is no flag",
		"release --gpus two":                     `--gpus: want a whole number, not "two"`,
		"release --gpus 99999999999999999999":    `--gpus: "99999999999999999999" is out of range`,
		`release --interval 5"`:                  `--interval: want a duration with its unit, as 90s, 30m or 12h, not "5\""`,
		`release --ttl 5"`:                       `--ttl: want a duration with its unit, as 90s, 30m, 12h or 7d, not "5\""`,
		"release --ttl 999999999h":               `--ttl: "999999999h" is too large`,
		"release --force=perhaps":                `--force: want true, false or nothing, not "perhaps"`,
	} {
		var out bytes.Buffer
		app := program(&out)
		if err := app.Run(Ordered(app, append([]string{"p"}, strings.Fields(line)...), "run")); err != nil ||
			out.String() != want {
			t.Errorf("%s:\ngot  %s, %v\nwant %s", line, out.String(), err, want)
		}
	}
}

func TestTheWordsGivenStayAsTheyAre(t *testing.T) {
	args := []string{"p", "release", "A", "--force", "B"}
	Ordered(program(new(bytes.Buffer)), args)
	if got := strings.Join(args, " "); got != "p release A --force B" {
		t.Errorf("they are %s", got)
	}
}
