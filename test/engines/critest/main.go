// Command critest runs the tests of sigs.k8s.io/cri-tools, which validate a container engine
// through CRI. Theirs is a test binary, which `go tool` cannot name.
package main

import (
	"flag"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"sigs.k8s.io/cri-tools/pkg/framework"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)

// run stands for the *testing.T that a test binary gives to Ginkgo.
type run struct{}

func (run) Fail() {}

func main() {
	framework.RegisterFlags()
	flag.Parse()
	gomega.RegisterFailHandler(ginkgo.Fail)
	if !ginkgo.RunSpecs(run{}, "CRI") {
		os.Exit(1)
	}
}
