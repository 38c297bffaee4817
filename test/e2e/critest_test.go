//go:build e2e

package e2e

import (
	"cmp"
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
// privilege where the policy is enforced: they are refused.
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
			if mode == "enforce" {
				mustRefuse(t, bare, differ)
			}
		})
	}
}

// mustRefuse fails a test unless there are tests with privilege that pass bare, and gpuledger
// refuses each of them.
func mustRefuse(t *testing.T, bare map[string]string, differ map[string][2]string) {
	t.Helper()
	privileged := 0
	for name, result := range bare {
		if !withPrivilege.MatchString(name) || result != "passed" {
			continue
		}
		privileged++
		if differ[name][1] != resultRefused {
			t.Errorf("%s: a container that reaches each GPU was not refused", name)
		}
	}
	if privileged == 0 {
		t.Error("no test with privilege passes bare, so none shows that gpuledger refuses them")
	}
}

// again runs tests that differ again, bare and through gpuledger-runtime, and returns those that
// never pass or fail in both. It prints the others.
func (s *site) again(mode string, differ map[string][2]string) map[string][2]string {
	for try := 1; try < tries && len(differ) > 0; try++ {
		var names []string
		for name := range differ {
			names = append(names, regexp.QuoteMeta(name))
		}
		only, run := strings.Join(names, "|"), fmt.Sprintf("%s-%d", mode, try)
		bare, ours := s.validate(run+"-bare", pastHandler, only), s.validate(run, s.entry.handler, only)
		maps.DeleteFunc(differ, func(name string, first [2]string) bool {
			if !same(bare[name], ours[name]) {
				return false
			}
			fmt.Printf("%s: bare %s, through us %s, %d times, then %s in both: %s\n",
				mode, first[0], first[1], try, bare[name], name)
			return true
		})
	}
	return differ
}

// same reports whether a test has one result in two runs. One that is skipped, or does not run, has
// no result.
func same(bare, ours string) bool {
	return bare == ours && (bare == "passed" || bare == "failed")
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
	for _, result := range []string{"passed", "failed", resultRefused, "skipped"} {
		note(s.T, outcome{Engine: s.engine.name, Client: "CRI", Entry: s.entry.name,
			Case: mode + ": " + result, Result: fmt.Sprint(counts[result])})
	}
}

// resultRefused is the result of a test that failed with an error of gpuledger's. The others are
// Ginkgo's.
const resultRefused = "refused"

// validate runs tests with a runtime handler of the engine and returns how each of them ended. only
// is a regular expression of their names; "" is all.
func (s *site) validate(name, handler, only string) map[string]string {
	s.T.Helper()
	images, report := filepath.Join(s.dir, "images.yaml"), filepath.Join(s.dir, "log", name+".xml")
	writeFile(s.T, images, "defaultTestContainerImage: "+image+"\nwebServerTestImage: "+webImage+"\n")
	socket := "unix://" + containerdSocket
	r := s.command(built("critest/critest"), "--runtime-endpoint="+socket, "--image-endpoint="+socket,
		"--runtime-handler="+handler, "--test-images-file="+images, "--ginkgo.skip="+withoutRegistry,
		"--ginkgo.focus="+only, "--ginkgo.no-color", "--ginkgo.junit-report="+report)
	results, passed := s.junit(report)
	if passed && r.Code != 0 || !passed && r.Code != 1 {
		s.T.Fatalf("critest exits with %d, and its report says passed: %v\n%s%s",
			r.Code, passed, r.Stdout, r.Stderr)
	}
	return results
}

// junit reads the results of a report of Ginkgo's, and whether all of it passed, what runs before
// and after the tests included.
func (s *site) junit(path string) (results map[string]string, passed bool) {
	s.T.Helper()
	data, err := os.ReadFile(path)
	must(s.T, err)
	var report struct {
		Cases []struct {
			Name    string `xml:"name,attr"`
			Status  string `xml:"status,attr"`
			Failure string `xml:"failure"`
		} `xml:"testsuite>testcase"`
	}
	must(s.T, xml.Unmarshal(data, &report))
	results, passed = map[string]string{}, true
	for _, c := range report.Cases {
		passed = passed && slices.Contains([]string{"passed", "skipped", "pending"}, c.Status)
		if c.Status == "failed" && strings.Contains(c.Failure, "gpuledger: refused (") {
			c.Status = resultRefused
		}
		if name, is := strings.CutPrefix(c.Name, "[It] "); is {
			results[name] = c.Status
		}
	}
	return results, passed
}

// differences are the tests that have two results, and those that ran once only.
func differences(bare, ours map[string]string) map[string][2]string {
	differ := map[string][2]string{}
	for name := range bare {
		if bare[name] != ours[name] {
			differ[name] = [2]string{bare[name], cmp.Or(ours[name], "did not run")}
		}
	}
	for name := range ours {
		if _, ran := bare[name]; !ran {
			differ[name] = [2]string{"did not run", ours[name]}
		}
	}
	return differ
}
