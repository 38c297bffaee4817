package main

import (
	"fmt"
	"os"

	"github.com/gpuledger/gpuledger/kube/dialect"
)

// readNames reads the names that pods ask by. Without a file they are ours.
func readNames(file string) (names dialect.Config, err error) {
	if file == "" {
		return names, names.Ready()
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return names, fmt.Errorf("cannot read the names of resources: %w", err)
	}
	if names, err = dialect.Decode(text); err != nil {
		return names, fmt.Errorf("%s: %w", file, err)
	}
	return names, nil
}
