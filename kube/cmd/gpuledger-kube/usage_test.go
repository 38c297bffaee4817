package main

import (
	"os"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"foo":       `cannot understand "foo": there is no such command`,
		"dra --foo": "there is no flag --foo; see `gpuledger-kube dra --help`",
		"dra": "cannot serve a node without its name in the cluster: " +
			"give --node-name",
		"dra --node-name n x":             `cannot understand "x": dra takes no arguments`,
		"dra --node-name n --interval 0":  "cannot look at the ledger every 0s: --interval has to be longer",
		"dra --node-name n --reclaim -1s": "cannot look for claims every -1s: --reclaim has to be longer",
		"device-plugin --interval -1s":    "cannot look at the ledger every -1s",
		"device-plugin --unit 3":          `cannot use --unit "3"`,
		"device-plugin --mode exclusive":  `cannot use --mode "exclusive"`,
		"device-plugin --placed-by me":    `cannot use --placed-by "me": want node or scheduler`,
		"device-plugin --placed-by scheduler --unit 1GiB": "cannot use --unit " +
			"where a scheduler places",
		"device-plugin --resources-file /x":         "cannot use --resources-file where no scheduler places",
		"webhook --agent x":                         `cannot use --agent "x": want dra or device-plugin`,
		"webhook --service x":                       `cannot use --service "x": want NAMESPACE/NAME`,
		"webhook --url http://a":                    `cannot use --url "http://a": want https://HOST:PORT`,
		"webhook --interval 0":                      "cannot look at the certificate every 0s",
		"device-plugin --resources foo":             `there is no "foo"`,
		"device-plugin --resources memory,memory":   `it has "memory" twice`,
		"device-plugin --resources memory,gpu,more": `there is no "more"`,
		"scheduler --policy most":                   `cannot use --policy "most": want binpack or spread`,
		"scheduler --extender :9839": "cannot serve the extender at :9839, which others can reach, without " +
			"certificates",
		"scheduler --extender 10.0.0.1":            `cannot use --extender "10.0.0.1"`,
		"scheduler --resources-file /nowhere/file": "cannot read the names of resources: open /nowhere/file",
		"scheduler --tls-cert x":                   "--tls-cert, --tls-key and --client-ca belong together",
		"scheduler --move-after -1s":               "cannot move a pod after -1s",
	} {
		log := t.TempDir() + "/log"
		cmd, err := program(log, strings.Fields(args)...)
		must(t, err)
		_ = cmd.Run()
		logged, err := os.ReadFile(log)
		must(t, err)
		if cmd.ProcessState.ExitCode() != 2 || !strings.HasPrefix(string(logged), "gpuledger-kube: ") ||
			!strings.Contains(string(logged), want) || strings.Count(string(logged), "\n") != 1 {
			t.Errorf("%s: exit status %d, printed\n%s\nwant 2 and one line with %q", args,
				cmd.ProcessState.ExitCode(),
				logged, want)
		}
	}
}
