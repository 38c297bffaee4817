package daemontest

import (
	"os"
	"strings"
	"testing"
)

// BrokenDirectory has `id` and `getent` fail for a test's programs: of users and groups they know
// what the files of /etc say.
func BrokenDirectory(t *testing.T) {
	t.Helper()
	Directory(t, "exit 1", "exit 1")
}

// Directory has the scripts take the place of `id` and `getent` for a test's programs.
func Directory(t *testing.T, id, getent string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{"id": id, "getent": getent} {
		Must(t, os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// UserOfDirectory is a name that no look-up was for yet: answers are kept for a test's whole
// program.
func UserOfDirectory(t *testing.T) string {
	return "user" + strings.ReplaceAll(t.TempDir(), "/", "-")
}
