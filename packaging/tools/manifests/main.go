// Command manifests reads Kubernetes manifests as strictly as an API server does that is asked with
// --validate=strict: every document must be of a kind that it knows, every field one of that
// kind's, and the API server's own validation must have nothing to say, of names, of selectors, of
// volumes, of the expressions in policies and classes. It prints kind and name of each.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "manifests: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	objects, err := validated(text)
	if err != nil {
		return err
	}
	for _, o := range objects {
		fmt.Println(strings.ToLower(o.kind) + "/" + o.name)
	}
	return nil
}
