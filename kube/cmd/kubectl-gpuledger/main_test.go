package main

import (
	"strings"
	"testing"
)

func TestExitStatus(t *testing.T) {
	for args, want := range map[string]int{
		"foo": 2, "inspect x": 2, "inspect --foo": 2, "explain": 2, "explain a b": 2, "inspect --help": 0,
		"inspect --kubeconfig /nowhere": 1, "explain --kubeconfig /nowhere a": 1,
		"explain a --kubeconfig /nowhere -n b --json": 1, "explain a -n": 2, "explain a --foo": 2,
		"cgpu --help": 0, "cgpu --foo": 2, "cgpu -d node --kubeconfig /nowhere": 1,
	} {
		if got := run(append([]string{"kubectl-gpuledger"}, strings.Fields(args)...)); got != want {
			t.Errorf("%s: exit status %d, want %d", args, got, want)
		}
	}
}
