package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// test is one test of a package, and the mutants that it reaches.
type test struct {
	pkg, program, name string
	took               time.Duration
	reaches            []bool
}

// outcome is what became of a mutant.
type outcome struct {
	mutant
	by string // the package whose tests killed it; "" where it survives
}

// trace runs every test once, each on its own, and takes down which mutants it reaches.
func trace(tested []string, programs map[string]string, mutants int, work string) ([]test, error) {
	var tests []test
	for _, pkg := range tested {
		list, err := program(pkg, programs[pkg], "-test.list=.").Output()
		if err != nil {
			return nil, fmt.Errorf("cannot list the tests of %s: %w", pkg, err)
		}
		began := time.Now()
		for _, name := range strings.Fields(string(list)) {
			if !strings.HasPrefix(name, "Test") {
				continue
			}
			t, err := traced(test{pkg: pkg, program: programs[pkg], name: name}, mutants,
				filepath.Join(work, "reached"))
			if err != nil {
				return nil, err
			}
			tests = append(tests, t)
		}
		fmt.Printf("%s: %.0f s without a mutant\n", pkg, time.Since(began).Seconds())
	}
	return tests, nil
}

func traced(t test, mutants int, file string) (test, error) {
	if err := os.WriteFile(file, make([]byte, mutants+1), 0o600); err != nil {
		return t, err
	}
	began := time.Now()
	cmd := program(t.pkg, t.program, "-test.run=^"+t.name+"$")
	cmd.Env = append(cmd.Env, "MUTANTS_REACHED="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return t, fmt.Errorf("%s of %s fails without a mutant: %w\n%s", t.name, t.pkg, err, out)
	}
	t.took = time.Since(began)
	data, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	t.reaches = make([]bool, len(data))
	for i, b := range data {
		t.reaches[i] = b != 0
	}
	return t, nil
}

// program runs a package's tests where the go command runs them. Its processes are a group, to be
// killed together.
func program(pkg, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = pkg
	cmd.Env = os.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// batch is as many tests as take this long together: most mutants die in the first one.
const batch = 300 * time.Millisecond

// outcomeOf runs the tests that reach a mutant, those of its own package first and the quick ones
// before the long ones.
func outcomeOf(m mutant, tests []test) outcome {
	tests = slices.DeleteFunc(slices.Clone(tests), func(t test) bool { return !t.reaches[m.id] })
	slices.SortStableFunc(tests, func(a, b test) int {
		if own := order(b.pkg == m.pkg) - order(a.pkg == m.pkg); own != 0 {
			return own
		}
		if a.pkg != b.pkg {
			return slices.Index(tested, a.pkg) - slices.Index(tested, b.pkg)
		}
		return int(a.took - b.took)
	})
	for len(tests) > 0 {
		n, took := 1, tests[0].took
		for n < len(tests) && tests[n].pkg == tests[0].pkg && took+tests[n].took <= batch {
			took += tests[n].took
			n++
		}
		if fails(m, tests[:n], took) {
			return outcome{m, tests[0].pkg}
		}
		tests = tests[n:]
	}
	return outcome{m, ""}
}

func order(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fails reports whether one of some tests of a package notices the mutant. A program that runs ten
// times as long as usual has.
func fails(m mutant, tests []test, usual time.Duration) bool {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*usual+5*time.Second)
	defer cancel()
	cmd := program(tests[0].pkg, tests[0].program, "-test.failfast", "-test.run=^("+strings.Join(names, "|")+
		")$")
	cmd.Env = append(cmd.Env, fmt.Sprintf("MUTANT=%d", m.id))
	if err := cmd.Start(); err != nil {
		return false
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err != nil
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		return true
	}
}
