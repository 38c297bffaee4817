package usage

import (
	"bytes"
	"errors"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestUsageErrorsAreOneSentence(t *testing.T) {
	failed := errors.New("cannot do it")
	for name, c := range map[string]struct {
		args   []string
		want   string
		status int
	}{
		"nothing":              {nil, "", 0},
		"help of a command":    {[]string{"one", "--help"}, "", 0},
		"a command":            {[]string{"none"}, "", 0},
		"a command that fails": {[]string{"one", "-v", "x"}, "cannot do it", 1},
		"no command": {[]string{"foo"},
			`cannot understand "foo": there is no such command; see ` + "`a program --help`", 2},
		"a flag that is not there": {[]string{"--foo"},
			"cannot understand the arguments: there is no flag --foo; see `a program --help`", 2},
		"a command's flag likewise": {[]string{"none", "--foo"},
			"cannot understand the arguments: there is no flag --foo; see `a program none --help`", 2},
		"a flag without its value": {[]string{"one", "-v"},
			"cannot understand the arguments: -v needs a value; see `a program one --help`", 2},
		"an argument of what takes none": {[]string{"none", "x"},
			`cannot understand "x": none takes no arguments; see ` + "`a program none --help`", 2},
		"the library's command of itself": {[]string{"help"},
			`cannot understand "help": there is no such command; see ` + "`a program --help`", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			app := &cli.App{Name: "a program", Writer: &out, ErrWriter: &out, Commands: []*cli.Command{
				{Name: "none", Action: func(*cli.Context) error { return nil }},
				{Name: "one", ArgsUsage: "THING", Flags: []cli.Flag{&cli.StringFlag{Name: "v"}},
					Action: func(*cli.Context) error { return failed }},
			}}
			Strict(app)
			err := app.Run(append([]string{"/usr/bin/program"}, c.args...))
			if got := Status(err); got != c.status || (err != nil && err.Error() != c.want) ||
				(err == nil) != (c.want == "") || err != nil && out.Len() > 0 {
				t.Errorf("got status %d, %v, and printed %q; want status %d, %s", got, err,
					out.String(), c.status,
					c.want)
			}
		})
	}
}
