// Command bench measures what gpuledger adds to a container's create and to other subcommands. It
// compares with the bare runtime and with nvidia-container-runtime, all in one run. It is a command
// and not a test, because a busy machine must not fail a condition on time. make bench builds what
// it needs and runs it from the checkout.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	testrig "github.com/gpuledger/gpuledger/test/rig"
)

// insideEnv marks the second start, which has a mount namespace of its own.
const insideEnv = "GPULEDGER_BENCH_INSIDE"

type options struct {
	pairs    int
	json     bool
	markdown bool
	disk     bool
	only     string
	bin      string
	runtime  string
	rcuAsIs  bool
	readBack bool
	parts    string
	calls    int
	against  string
	peers    bool
	engines  string
}

func main() {
	inMachine := testrig.EnterMachine()
	var o options
	flag.IntVar(&o.pairs, "pairs", 100, "measured `rounds` of each comparison, at least 40")
	flag.BoolVar(&o.json, "json", false, "print one JSON document")
	flag.BoolVar(&o.markdown, "markdown", false, "print the tables as Markdown")
	flag.BoolVar(&o.disk, "disk",
		false,
		"keep bindings, bundles and runtime state on the checkout's file system too, not on a tmpfs as "+
			"under /run")
	flag.StringVar(&o.only, "only", "",
		"measure only what has this `TEXT` in its name; \"scale\": the node at scale, which is not "+
			"measured otherwise")
	flag.IntVar(&o.calls, "calls", 100,
		"how `often` the node at scale is asked for each thing, at least 10")
	flag.StringVar(&o.parts, "parts", "10,3,1", "the sizes of the node at scale, as `DIVISORS` of the whole")
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of the binaries that make build and make bench write")
	flag.StringVar(&o.runtime, "runtime", "runc", "the bare OCI `runtime` to compare with")
	flag.StringVar(&o.against, "against", "",
		"a `folder` with the gpuledger and gpuledger-runtime of another version, which the node at scale "+
			"calls in turns with these")
	flag.BoolVar(&o.rcuAsIs, "rcu-as-is", false, "leave the kernel's RCU grace periods as they are")
	flag.BoolVar(&o.readBack, "read-back", false,
		"have the page cache forget the installed programs first, as a boot does")
	flag.BoolVar(&o.peers, "peers", false, "compare with what does similar work, in a machine of its own")
	flag.StringVar(&o.engines, "engines", ".cache/engines",
		"`folder` of what test/engines/build.sh builds, for -peers")
	flag.Parse()
	if flag.NArg() > 0 || o.pairs < 40 || o.calls < 10 {
		fmt.Fprintln(
			os.Stderr,
			"usage: bench [-pairs N] [-json|-markdown] [-disk] [-only TEXT] [-bin DIR] [-runtime RUNC] "+
				"[-rcu-as-is] [-read-back] [-peers]   (N is at least 40)")
		os.Exit(2)
	}
	if err := start(o, inMachine); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// start runs the benchmark in a mount namespace of its own, so that no container's mount reaches
// the machine.
func start(o options, inMachine bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(insideEnv) == "1" || inMachine {
		return measureAll(ctx, o)
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("cannot start containers: make bench needs root")
	}
	if o.peers {
		return startMachine(o)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inner := exec.Command(self, os.Args[1:]...)
	inner.Env = append(os.Environ(), insideEnv+"=1")
	inner.Stdin, inner.Stdout, inner.Stderr = os.Stdin, os.Stdout, os.Stderr
	inner.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	restore := expedite(o)
	defer restore()
	if err := inner.Start(); err != nil {
		return fmt.Errorf("cannot make a mount namespace: %w", err)
	}
	go func() {
		<-ctx.Done()
		_ = inner.Process.Signal(syscall.SIGTERM)
	}()
	if err := inner.Wait(); err != nil {
		restore()
		os.Exit(1) // the child has printed why
	}
	return nil
}

func measureAll(ctx context.Context, o options) (err error) {
	r, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if cleanErr := r.clean(); err == nil {
			err = cleanErr
		}
	}()
	if o.only == scaleName {
		report, err := r.scale()
		if len(report.Sizes) > 0 { // also of a run that was interrupted
			err = errors.Join(err, report.write(os.Stdout, o.json))
		}
		return err
	}
	report := Report{Machine: r.machine(), Pairs: o.pairs}
	measured := scenarios
	if o.peers {
		measured = peerScenarios
		report.Machine.Engines = r.engineVersions()
	}
	for _, scenario := range measured {
		if !strings.Contains(scenario.name, o.only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", scenario.name)
		rows, err := scenario.run(r)
		if err != nil {
			return fmt.Errorf("%s: %w", scenario.name, err)
		}
		report.Rows = append(report.Rows, rows...)
	}
	if o.peers {
		if report.Calls, err = r.peerCalls(); err != nil {
			return err
		}
	}
	report.Machine.LoadAfter = loadAverage()
	switch {
	case o.json:
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	case o.markdown:
		report.writeMarkdown(os.Stdout)
	default:
		report.writeText(os.Stdout)
	}
	return nil
}

// A scenario is one comparison, with a name for -only.
type scenario struct {
	name string
	run  func(*rig) ([]Row, error)
}

var scenarios = []scenario{
	{"create without a GPU", createNoGPU},
	{"create without a GPU, the wrappers alone", createNoGPUAlone},
	{"list", list},
	{"life without a GPU", lives},
	{"create with a grant", createGranted},
	{"create with a grant and the driver's files", createWithDriver},
	{"create with a grant, the wrapper alone", createGrantedAlone},
	{"create that asks, the wrapper alone", createAsked},
	{"inventory of eight GPUs", refreshInventory},
	{"64 grants at once", grantsAtOnce},
	{"admit at 1 and at 1,000 grants", admitAtScale},
	{"sizes", sizes},
}

// absolute is a path under the folder of binaries. The error for a missing binary names the command
// that builds it.
func absolute(o options, name string) (string, error) {
	path, err := filepath.Abs(filepath.Join(o.bin, name))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("cannot find %s; make bench builds it", path)
	}
	return path, nil
}
