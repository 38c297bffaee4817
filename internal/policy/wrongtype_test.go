package policy

import (
	"strings"
	"testing"
)

// Errors about the file use the names in the file, not those of the program that reads it.
func TestTypeErrorsUseTheFilesNames(t *testing.T) {
	for text, want := range map[string]string{
		"[[pool]]\ngpus = 5":                          "2: pool.gpus: want a list of strings, not a number",
		"[[pool]]\ngpus = [5]":                        "2: pool.gpus: want a list of strings, not a number",
		"[[pool]]\ngpus = [\"0\"]\nmodes = \"limit\"": "3: pool.modes: want a list of strings, not a string",
		"[pool]\ngpus = [\"0\"]":                      "1: pool: want tables, each as [[pool]]",
		"policy = 3":                                  "1: policy: want a table, as [policy], not a number",
		"[policy]\nexempt = \"a\"":                    "2: policy.exempt: want tables, each as [[policy.exempt]], not a string",
		"[[policy.exempt]]\nnamespace = [\"a\"]":      "2: policy.exempt.namespace: want a string in quotes, not a list",
		"[policy]\nmode = true":                       `2: policy.mode: want enforce or report, not "true"`,
		"[policy]\nmode = enforce":                    "2: policy.mode: want a string in quotes",
		"[policy]\nmode.x = 1":                        "2: policy.mode: want a string in quotes",
		"engine = docker":                             "1: engine: want a string in quotes",
		"state_dir = 5":                               "1: state_dir: want a string in quotes, not a number",
		"state_dir = true":                            "1: state_dir: want a string in quotes",
		"state_dir = {a = 1}":                         "1: state_dir: want a string in quotes",
		"state_dir = /var":                            "1: state_dir: want a string in quotes",
		"state_dir = 1979-05-27T07:32:00Z":            "1: state_dir: want a string in quotes",
		"[daemon]\ninterval = 1s":                     "2: daemon.interval: want a string in quotes, not a number",
		"[audit]\nkeep = \"4\"":                       "2: audit.keep: want a whole number, not a string",
		"[audit]\nkeep = 4.5":                         "2: audit.keep: want a whole number, not a number with a fraction",
		"[audit]\nkeep = 99999999999999999999":        "2: audit.keep: want a whole number",
		// the library panics on it
		"[audit]\nkeep = 1979-05-27": "2: audit.keep: want a whole number",
	} {
		_, err := Parse([]byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "struct") {
			t.Errorf("%s: the words of Go: %v", text, err)
		}
	}
}
