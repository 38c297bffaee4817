package daemontest

import (
	"os"
	"testing"
)

// BrokenDirectory has no program of a test know of users and groups what the files of /etc do not
// say: `id` and `getent` fail.
func BrokenDirectory(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"id", "getent"} {
		Must(t, os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\nexit 1\n"), 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
