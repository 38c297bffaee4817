package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestQuotas(t *testing.T) {
	for text, want := range map[string]string{
		"[[quota]]\nmemory = \"1GiB\"":                  "quota[0]: want user or group",
		"[[quota]]\nuser = \"a\"\ngroup = \"b\"":        "quota[0]: want user or group",
		"[[quota]]\nuser = \"a\"\nttl = \"soon\"":       `quota[0].ttl: want a duration above 0, as 12h or 7d, not "soon"`,
		"[[quota]]\nuser = \"a\"\nidle = \"-1s\"":       `quota[0].idle: want a duration above 0, as 12h or 7d, not "-1s"`,
		"[[quota]]\nuser = \"a\"\ngpus = -1":            "quota[0].gpus: want a number, not -1",
		"[[quota]]\nuser = \"a\"\ngrants = -1":          "quota[0].grants: want a number, not -1",
		"[users]\nsocket = \"run/x\"":                   "users.socket: want an absolute path outside of run_dir",
		"[users]\nsocket = \"/run/gpuledger/x\"":        "users.socket: want an absolute path outside of run_dir",
		"[users]\nsocket = \"/run/x/../gpuledger/y/z\"": "users.socket: want an absolute path outside of run_dir",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	p, err := Parse([]byte("[daemon]\ngrace = \"1d\"\n" +
		"[[quota]]\nuser = \"a\"\nttl = \"7d\"\nidle = \"1d12h\""))
	if err != nil || p.Quotas[0].MaxTTL() != 7*24*time.Hour || p.Quotas[0].MaxIdle() != 36*time.Hour {
		t.Errorf("days: %+v (%v)", p.Quotas, err)
	}
	for text, want := range map[string]string{"": "", "[users]\nsocket = \"/run/x/y\"": "/run/x/y",
		"[[quota]]\nuser = \"*\"":                                  grant.UsersSocket,
		"[users]\nsocket = \"/run/x/y\"\n[[quota]]\ngroup = \"g\"": "/run/x/y"} {
		if p, err := Parse([]byte(text)); err != nil || p.UsersSocket() != want {
			t.Errorf("%s: %q (%v), want %q", text, p.UsersSocket(), err, want)
		}
	}
}
