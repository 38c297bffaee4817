//go:build e2e

package e2e

import (
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// withoutRegistry are the tests of cri-tools that pull images, and its benchmarks. (Some others
// name an image that is not here, or need a network. They fail, bare as through us.)
const withoutRegistry = "benchmark|Image (Manager|Consistency|Identifier)|SupplementalGroupsPolicy"

// withPrivilege are the tests whose containers are privileged, so that they reach each GPU.
var withPrivilege = regexp.MustCompile("Container Mount Propagation|when privileged$|Privileged is true$")

// tries is how often a test that differs runs: other work of the machine disturbs some of them.
const tries = 3

// critest runs the tests with which cri-tools validate an engine, with the engine's runtime bare
// and through gpuledger-runtime, on a node with GPUs. Each has the same result, but for those with
// privilege where the policy is enforced: they fail.
func critest(t *testing.T, s *site) {
	bare := s.validate("bare", pastHandler, "")
	for _, mode := range []string{"report", "enforce"} {
		t.Run(mode, func(t *testing.T) {
			s := s.in(t)
			s.policy(fmt.Sprintf("mode = %q", mode))
			ours := s.validate(mode, s.entry.handler, "")
			s.noteResults(mode, ours)
			differ := s.again(mode, differences(bare, ours))
			for _, name := range slices.Sorted(maps.Keys(differ)) {
				if mode != "enforce" || !withPrivilege.MatchString(name) {
					t.Errorf("%s: bare %s, through us %s", name, differ[name][0], differ[name][1])
				}
			}
			for name, result := range bare {
				refused := differ[name][1] == "failed"
				if mode == "enforce" && withPrivilege.MatchString(name) && result == "passed" && !refused {
					t.Errorf("%s: a container that reaches each GPU was not refused", name)
				}
			}
		})
	}
}

// again runs tests that differ again, bare and through gpuledger-runtime, and returns those that
// differ each time.
func (s *site) again(mode string, differ map[string][2]string) map[string][2]string {
	for try := 1; try < tries && len(differ) > 0; try++ {
		var names []string
		for name := range differ {
			names = append(names, regexp.QuoteMeta(name))
		}
		only, run := strings.Join(names, "|"), fmt.Sprintf("%s-%d", mode, try)
		now := differences(s.validate(run+"-bare", pastHandler, only), s.validate(run, s.entry.handler, only))
		maps.DeleteFunc(differ, func(name string, _ [2]string) bool { return now[name][0] == now[name][1] })
	}
	return differ
}

// noteResults adds the number of tests to the table.
func (s *site) noteResults(mode string, results map[string]string) {
	counts := map[string]int{}
	for _, result := range results {
		counts[result]++
	}
	if counts["passed"] == 0 {
		s.T.Fatalf("no test of cri-tools passes; %d fail", counts["failed"])
	}
	for _, result := range []string{"passed", "failed", "skipped"} {
		note(s.T, outcome{Engine: s.engine.name, Client: "CRI", Entry: s.entry.name,
			Case: mode + ": " + result, Result: fmt.Sprint(counts[result])})
	}
}

// validate runs tests with a runtime handler of the engine and returns how each of them ended. only
// is a regular expression of their names; "" is all.
func (s *site) validate(name, handler, only string) map[string]string {
	s.T.Helper()
	images, report := filepath.Join(s.dir, "images.yaml"), filepath.Join(s.dir, "log", name+".xml")
	writeFile(s.T, images, "defaultTestContainerImage: "+image+"\nwebServerTestImage: "+webImage+"\n")
	socket := "unix://" + containerdSocket
	_ = s.command(built("critest/critest"), "--runtime-endpoint="+socket, "--image-endpoint="+socket,
		"--runtime-handler="+handler, "--test-images-file="+images, "--ginkgo.skip="+withoutRegistry,
		"--ginkgo.focus="+only, "--ginkgo.no-color", "--ginkgo.junit-report="+report)
	return s.junit(report)
}

// junit reads the results of a report of Ginkgo's.
func (s *site) junit(path string) map[string]string {
	s.T.Helper()
	data, err := os.ReadFile(path)
	must(s.T, err)
	var report struct {
		Cases []struct {
			Name   string `xml:"name,attr"`
			Status string `xml:"status,attr"`
		} `xml:"testsuite>testcase"`
	}
	must(s.T, xml.Unmarshal(data, &report))
	results := map[string]string{}
	for _, c := range report.Cases {
		if strings.HasPrefix(c.Name, "[It] ") {
			results[strings.TrimPrefix(c.Name, "[It] ")] = c.Status
		}
	}
	return results
}

// differences are the tests that have two results, and those that ran once only.
func differences(bare, ours map[string]string) map[string][2]string {
	differ := map[string][2]string{}
	for name := range bare {
		if bare[name] != ours[name] {
			differ[name] = [2]string{bare[name], ours[name]}
		}
	}
	for name := range ours {
		if _, ran := bare[name]; !ran {
			differ[name] = [2]string{"did not run", ours[name]}
		}
	}
	return differ
}
