package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/test/transcript"
)

// TestLooksAgain: what only looks is typed until it says what is shown, and anything else once.
func TestLooksAgain(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\ncd " + dir + "\necho $1 >>calls\n[ $(grep -c $1 calls) -gt 1 ] && echo there\n"
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	typed := func(command string) error {
		shell := exec.Command("sh")
		shell.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		return typeAll([]transcript.Step{{Command: command, Says: "there\n"}}, shell)
	}
	if err := typed("kubectl logs granted"); err != nil {
		t.Errorf("a command that looks: %v", err)
	}
	if err := typed("kubectl apply -f file"); err == nil {
		t.Error("a command that changes something was typed twice")
	}
}
