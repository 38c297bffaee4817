package main

import (
	"os"
	"slices"
	"testing"

	"github.com/urfave/cli/v2"
)

// The chart and the kustomization give the webhook a file and no schedulers. KAI's manifests name
// KAI's scheduler, and their pods would wait for it for ever.
func TestSchedulersThatPodsWithClaimsDoNotNeed(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		flags []string
		want  []string
	}{
		"KAI's names":             {`gpu-memory`, nil, []string{"kai-scheduler", "gpuledger-scheduler"}},
		"names of others":         {`aliyun.com/gpu-mem`, nil, []string{"gpuledger-scheduler"}},
		"schedulers by the flags": {`gpu-fraction`, []string{"--instead-of=a"}, []string{"a"}},
	} {
		file := t.TempDir() + "/resources.toml"
		must(t, os.WriteFile(file, []byte("[[resource]]\nname = \""+c.file+"\"\n"), 0o600))
		var got webhookArguments
		command := webhookCommand()
		command.Action = func(c *cli.Context) (err error) { got, err = readWebhook(c); return err }
		app := cli.App{Commands: []*cli.Command{command}}
		must(t, app.Run(append([]string{"gpuledger-kube", "webhook", "--agent=dra", "--resources-file", file},
			c.flags...)))
		if !slices.Equal(got.rules.Replaced, c.want) {
			t.Errorf("%s: %v, want %v", name, got.rules.Replaced, c.want)
		}
	}
}
