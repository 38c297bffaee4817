package engines

import (
	"os"
	"slices"
	"testing"
)

// TestPodmansStoppedContainersCount: Podman stores the handler's name with each container, and is
// asked for it.
func TestPodmansStoppedContainersCount(t *testing.T) {
	podman := t.TempDir() + "/podman"
	must(t, os.WriteFile(podman, []byte(`#!/bin/sh
case "$*" in
"ps --all --quiet --no-trunc") echo a1; echo b2; echo c3 ;;
"container inspect --format {{.OCIRuntime}} {{.Name}} a1 b2 c3")
  echo "gpuledger trial"; echo "crun other"; echo "no such container c3" >&2; exit 125 ;;
esac
`), 0o755))
	if got := storedByPodman(podman); !slices.Equal(got, []string{"trial"}) {
		t.Errorf("%q", got)
	}
}
