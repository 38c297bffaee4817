package nvmlchild

import (
	"os"
	"path/filepath"
	"strings"
)

// Program is the program of that name beside this one, or else the first in $PATH.
func Program(name string) string {
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), name); isFile(path) {
			return path
		}
	}
	return name
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// ErrorLine is the first line of what a program of gpuledger printed, without the program's name.
func ErrorLine(out string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return strings.TrimPrefix(line, "gpuledger: ")
}
