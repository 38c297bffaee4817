package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const (
	wrapperName = "gpuledger-runtime"
	peerName    = "nvidia-container-runtime"
)

// A node is one simulated node: a config, a ledger and an inventory of its own.
type node struct {
	rig *rig
	env []string
}

// newNode simulates two GPUs. realRuntime is the program that gpuledger-runtime finally executes.
func (r *rig) newNode(name, realRuntime string) (*node, error) {
	return r.newNodeOf(name, realRuntime, []string{"--gpus", "2", "--memory", "16160MiB", "--name",
		"Tesla V100-SXM2-16GB"}, "")
}

// newNodeOf has the GPUs that `gpuledger inventory simulate` makes of the arguments, and more TOML.
func (r *rig) newNodeOf(name, realRuntime string, gpus []string, more string) (*node, error) {
	dir := r.path("nodes", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.toml")
	description := filepath.Join(dir, "gpus.json")
	text := fmt.Sprintf("state_dir = %q\nrun_dir = %q\nengine = \"none\"\n[runtime]\npath = [%q]\n"+
		"[inventory]\nsource = \"simulated\"\nfile = %q\n[audit]\nfile = %q\n",
		filepath.Join(dir, "state"), r.path("run/nodes", name), realRuntime, description,
		filepath.Join(dir, "audit.jsonl")) + more
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	n := &node{rig: r, env: []string{"GPULEDGER_CONFIG=" + config}}
	simulate := append([]string{"inventory", "simulate", "--out", description}, gpus...)
	return n, errors.Join(r.run(n.cli(simulate...)), r.run(n.cli("inventory", "refresh")))
}

func (n *node) cli(args ...string) *exec.Cmd {
	return n.rig.command(n.env, append([]string{n.rig.cli}, args...)...)
}

// grant makes a bearer grant and returns its reference.
func (n *node) grant(args ...string) (string, error) {
	cmd := n.cli(append([]string{"grant", "--json"}, args...)...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.String())
	}
	var granted struct{ Reference string }
	if err := json.Unmarshal(output, &granted); err != nil || granted.Reference == "" {
		return "", fmt.Errorf("%s printed no reference: %s", strings.Join(cmd.Args, " "), output)
	}
	return granted.Reference, nil
}

// wrapping is one way of wrapping a real runtime.
type wrapping struct {
	name, path string
	env        []string
}

// wrappings are gpuledger's, with a node of its own, and the peer's with its defaults. Both execute
// realRuntime.
func (r *rig) wrappings(name, realRuntime string) ([]wrapping, error) {
	node, err := r.newNode(name, realRuntime)
	if err != nil {
		return nil, err
	}
	file := r.path("nodes", name, "peer.toml")
	text := fmt.Sprintf("[nvidia-container-runtime]\nruntimes = [%q]\n", realRuntime)
	return []wrapping{
		{wrapperName, r.wrapper, node.env},
		{peerName, r.peer, []string{"NVIDIA_CTK_CONFIG_FILE_PATH=" + file}},
	}, os.WriteFile(file, []byte(text), 0o644)
}

func createNoGPU(r *rig) ([]Row, error) {
	wrappings, err := r.wrappings("create", r.runtime)
	if err != nil {
		return nil, err
	}
	bundle, err := r.bundle("no-gpu", r.spec())
	if err != nil {
		return nil, err
	}
	contestants := []contestant{r.creating("create-bare", r.runtime, bundle, nil)}
	for _, w := range wrappings {
		contestants = append(contestants, r.creating("create-"+w.name, w.path, bundle, w.env))
	}
	rows, err := r.against("create, no GPU reached", wrappings, contestants)
	if err != nil {
		return nil, err
	}
	ours := &rows[0]
	ours.Goal, ours.Budget = "+2 ms", "+3 ms or 1.12"
	ours.within(ours.Added.Median <= 3 || ours.Ratio.Median <= 1.12, ours.Added.Median <= 2)
	return rows, nil
}

// createNoGPUAlone uses true(1) as the real runtime, and compares with true(1). A real create
// scatters by more than a wrapper adds. This measures the wrapper's own work, to a tenth of a
// millisecond.
func createNoGPUAlone(r *rig) ([]Row, error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	wrappings, err := r.wrappings("alone", nothing)
	if err != nil {
		return nil, err
	}
	bundle, err := r.bundle("alone", r.spec())
	if err != nil {
		return nil, err
	}
	argv := []string{"--root", r.path("run/roots", "alone"), "create", "--bundle", bundle, containerID}
	return r.against("the same, real runtime true(1)", wrappings, r.withArguments(wrappings, nothing, argv))
}

func list(r *rig) ([]Row, error) {
	wrappings, err := r.wrappings("list", r.runtime)
	if err != nil {
		return nil, err
	}
	root := r.path("run/roots", "empty")
	if err := os.MkdirAll(root, 0o700); err != nil { // runc 1.5 lists none that is missing
		return nil, err
	}
	argv := []string{"--root", root, "list"}
	rows, err := r.against("list (any other subcommand)", wrappings,
		r.withArguments(wrappings, r.runtime, argv))
	if err != nil {
		return nil, err
	}
	ours := &rows[0]
	ours.Goal, ours.Budget = "+0.5 ms", "+1.6 ms"
	ours.within(ours.Added.Median <= 1.6, ours.Added.Median <= 0.5)
	return rows, nil
}

// withArguments are the bare program and its wrappings, all with the same arguments.
func (r *rig) withArguments(wrappings []wrapping, bare string, args []string) []contestant {
	var contestants []contestant
	for _, w := range append([]wrapping{{name: "bare", path: bare}}, wrappings...) {
		contestants = append(contestants, contestant{name: w.name, command: func() *exec.Cmd {
			return r.command(w.env, append([]string{w.path}, args...)...)
		}})
	}
	return contestants
}

// against compares the wrappings with the first contestant, which is bare. It returns one row each,
// gpuledger's first.
func (r *rig) against(what string, wrappings []wrapping, contestants []contestant) ([]Row, error) {
	times, err := r.compare(r.options.pairs, contestants...)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, w := range wrappings {
		rows = append(rows, comparison(what, w.name, times[0], times[i+1]))
	}
	return rows, nil
}

// granting is a contestant that creates a container with a grant.
func (r *rig) granting(name string, node *node, reference string,
	more ...func(*specs.Spec) error) (contestant, string, error) {
	own := annotated(map[string]string{"gpuledger.dev/grant": reference})
	return r.admitted(name, node, append([]func(*specs.Spec) error{own}, more...)...)
}

// admitted is a contestant that creates a container with GPUs.
func (r *rig) admitted(name string, node *node,
	more ...func(*specs.Spec) error) (contestant, string, error) {
	return r.editing(name, r.wrapper, node.env, more...)
}

// editing is a contestant whose runtime replaces config.json. So each round first restores the
// engine's config.json, and removes the ld.so.cache of the round before.
func (r *rig) editing(name, runtime string, env []string,
	more ...func(*specs.Spec) error) (contestant, string, error) {
	spec := r.spec()
	bundle, err := r.bundle(name, spec, more...)
	if err != nil {
		return contestant{}, "", err
	}
	config := filepath.Join(bundle, "config.json")
	asked, err := os.ReadFile(config)
	if err != nil {
		return contestant{}, "", err
	}
	cache := filepath.Join(spec.Root.Path, "etc/ld.so.cache")
	c := r.creating(name, runtime, bundle, env)
	c.before = func() error {
		if err := os.Remove(cache); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.WriteFile(config, asked, 0o644)
	}
	return c, bundle, nil
}

func createGranted(r *rig) ([]Row, error) {
	node, err := r.newNode("grant", r.runtime)
	if err != nil {
		return nil, err
	}
	return r.sameConfig("grant", "create, 2 GPUs, mode limit; bare: same final config.json", node,
		"/dev/nvidia1")
}

// sameConfig compares a create through the wrapper with one by the bare runtime, which gets the
// config.json that the wrapper made. The root file systems are alike. must is a text in that
// config.json that shows that the wrapper did its work.
func (r *rig) sameConfig(name, what string, node *node, must string,
	more ...func(*specs.Spec) error) ([]Row, error) {
	reference, err := node.grant("--memory", "8GiB", "--gpus", "2")
	if err != nil {
		return nil, err
	}
	ours, bundle, err := r.granting(name+"-ours", node, reference, more...)
	if err != nil {
		return nil, err
	}
	bare, ours, _, err := r.sides(ours, bundle, name+"-bare", must, more...)
	if err != nil {
		return nil, err
	}
	times, err := r.compare(r.options.pairs, bare, ours)
	if err != nil {
		return nil, err
	}
	row := comparison(what, wrapperName, times[0], times[1])
	row.Budget = "+4 ms"
	row.within(row.Added.Median <= 4, true)
	return []Row{row}, nil
}

// sides are a create by the bare runtime and the contestant's, which edits its config.json. The
// bare runtime gets the config.json that the contestant's runtime made, which is final. It must
// have a text that shows that this runtime did its work.
func (r *rig) sides(edits contestant, bundle, name, must string,
	more ...func(*specs.Spec) error) (bare, edited contestant, final []byte, err error) {
	if _, err := r.once(edits); err != nil {
		return bare, edited, nil, fmt.Errorf("%s: %w", edits.name, err)
	}
	if final, err = os.ReadFile(filepath.Join(bundle, "config.json")); err != nil {
		return bare, edited, nil, err
	}
	if !strings.Contains(string(final), must) {
		return bare, edited, nil, fmt.Errorf("%s started the container without %s", edits.name, must)
	}
	same, err := r.bundle(name, r.spec(), more...)
	if err != nil {
		return bare, edited, nil, err
	}
	own := strings.NewReplacer(bundle+"/", same+"/")
	if err := os.WriteFile(filepath.Join(same, "config.json"), []byte(own.Replace(string(final))),
		0o644); err != nil {
		return bare, edited, nil, err
	}
	bare = r.creating(name, r.runtime, same, nil)
	bare.before = func() error { return r.tidy(r.path("run/rootfs", name), final) }
	restore := edits.before
	edits.before = func() error {
		return errors.Join(r.tidy(r.path("run/rootfs", edits.name), final), restore())
	}
	return bare, edits, final, nil
}

// createGrantedAlone is a create with a grant, without and with a driver's files. As in
// createNoGPUAlone, the real runtime is true(1) and the comparison is with true(1). It starts
// nothing. The delete after it removes the binding, as an engine's does.
func createGrantedAlone(r *rig) ([]Row, error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	contestants := []contestant{{name: "bare", command: func() *exec.Cmd { return r.command(nil, nothing) }}}
	cases := []struct {
		what, name string
		node       func(name, realRuntime string) (*node, error)
		more       []func(*specs.Spec) error
	}{
		{what: "a grant, real runtime true(1)", name: "grant-alone", node: r.newNode},
		{"a grant and the driver's files, real runtime true(1)", "driver-alone", r.newDriverNode,
			[]func(*specs.Spec) error{withLoader}},
	}
	for _, c := range cases {
		node, err := c.node(c.name, nothing)
		if err != nil {
			return nil, err
		}
		reference, err := node.grant("--memory", "8GiB", "--gpus", "2")
		if err != nil {
			return nil, err
		}
		ours, _, err := r.granting(c.name, node, reference, c.more...)
		if err != nil {
			return nil, err
		}
		contestants = append(contestants, ours)
	}
	times, err := r.compare(r.options.pairs, contestants...)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, c := range cases {
		rows = append(rows, comparison(c.what, wrapperName, times[0], times[i+1]))
	}
	return rows, nil
}

// tidy removes the mount points of the driver's files that the runtime has made. Both sides then
// make them again, as in the new root file system that an engine gives each container.
func (r *rig) tidy(rootfs string, config []byte) error {
	var spec specs.Spec
	if err := json.Unmarshal(config, &spec); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if !strings.HasPrefix(m.Source, r.path("driver")) {
			continue
		}
		if err := os.Remove(filepath.Join(rootfs, m.Destination)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// grantsAtOnce starts 64 grants together on an empty ledger, several times, each time on a new one.
// It also measures 64 starts of the same program that use no ledger. The difference is the
// ledger's.
func grantsAtOnce(r *rig) ([]Row, error) {
	const processes, rounds = 64, 5
	var whole, starts []float64
	for round := range rounds {
		node, err := r.newNode(fmt.Sprintf("at-once-%d", round), r.runtime)
		if err != nil {
			return nil, err
		}
		for _, measured := range []struct {
			times *[]float64
			args  []string
		}{{&starts, []string{"--version"}}, {&whole, []string{"grant", "--memory", "256MiB"}}} {
			took, err := r.atOnce(processes, func() *exec.Cmd { return node.cli(measured.args...) })
			if err != nil {
				return nil, err
			}
			*measured.times = append(*measured.times, milliseconds(took))
		}
		if err := node.holds(processes); err != nil {
			return nil, err
		}
	}
	granted, started := Row{What: "64 grants at once, durable", Who: "gpuledger grant",
		Took: spread(whole)}, Row{
		What: "64 starts at once, no ledger", Who: "gpuledger --version", Took: spread(starts)}
	granted.Budget = "500 ms"
	granted.within(granted.Took.Median <= 500, true)
	return []Row{granted, started}, nil
}

// holds checks that the ledger has as many grants as were made and is sound.
func (n *node) holds(grants int) error {
	output, err := n.cli("grants", "--json").Output()
	if err != nil {
		return fmt.Errorf("cannot read the grants back: %w", err)
	}
	var held struct{ Grants []json.RawMessage }
	if err := json.Unmarshal(output, &held); err != nil {
		return fmt.Errorf("cannot read the grants back: %w", err)
	}
	if len(held.Grants) != grants {
		return fmt.Errorf("the ledger holds %d grants after %d were made", len(held.Grants), grants)
	}
	return n.rig.run(n.cli("check"))
}

// atOnce is the time from the first start to the last exit.
func (r *rig) atOnce(n int, command func() *exec.Cmd) (time.Duration, error) {
	failures := make(chan error, n)
	begin := time.Now()
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			var complaint strings.Builder
			cmd := command()
			cmd.Stderr = &complaint
			if err := cmd.Run(); err != nil {
				failures <- fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.String())
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	close(failures)
	return took, <-failures
}

// admitAtScale measures the wrapper alone. Its real runtime is true(1), which ends at once, so that
// a create's constant time does not hide the effect of the ledger's size. It starts nothing, and
// the binding ends with the process that made it.
func admitAtScale(r *rig) ([]Row, error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	var contestants []contestant
	for _, grants := range []int{1, 1000} {
		node, err := r.newNode(fmt.Sprintf("admit-%d", grants), nothing)
		if err != nil {
			return nil, err
		}
		reference, err := node.grant("--memory", "32MiB", "--gpus", "2")
		if err != nil {
			return nil, err
		}
		if err := node.fill(grants - 1); err != nil {
			return nil, err
		}
		c, _, err := r.granting(fmt.Sprintf("admit-%d", grants), node, reference)
		if err != nil {
			return nil, err
		}
		c.after = nil
		contestants = append(contestants, c)
	}
	times, err := r.compare(r.options.pairs, contestants...)
	if err != nil {
		return nil, err
	}
	clear(r.live) // no container was made
	row := comparison("admit alone, 1,000 grants against 1", wrapperName, times[0], times[1])
	row.Budget = "1.20"
	row.within(row.Ratio.Median <= 1.2, true)
	return []Row{row}, nil
}

// fill makes n small grants.
func (n *node) fill(grants int) error {
	const batch = 37 // 999 = 27 x 37
	for made := 0; made < grants; made += batch {
		if n.rig.ctx.Err() != nil {
			return errors.New("interrupted")
		}
		_, err := n.rig.atOnce(min(batch, grants-made),
			func() *exec.Cmd { return n.cli("grant", "--memory", "16MiB") })
		if err != nil {
			return err
		}
	}
	return n.holds(grants + 1)
}

func sizes(r *rig) ([]Row, error) {
	var rows []Row
	for _, binary := range []struct {
		name, path string
		hot        bool
	}{{wrapperName, r.wrapper, true}, {peerName, r.peer, false}} {
		info, err := os.Stat(binary.path)
		if err != nil {
			return nil, err
		}
		row := Row{What: "size of the binary", Who: binary.name, Bytes: info.Size()}
		if binary.hot {
			row.Budget = "5 MiB"
			row.within(info.Size() <= 5<<20, true)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// crunVersion is the version of the second bare runtime.
func (r *rig) crunVersion() string {
	if r.crun == "" {
		return "no crun"
	}
	return firstLine(r.crun, "--version")
}

// machine describes where the figures are measured.
func (r *rig) machine() Machine {
	return Machine{
		CPU:        cpuModel(),
		Cores:      runtime.NumCPU(),
		Kernel:     strings.TrimSpace(readFile("/proc/sys/kernel/osrelease")),
		Cgroups:    cgroupLayout(),
		FileSystem: fileSystem(r.dir),
		Run:        fileSystem(r.path("run")),
		Runtime:    firstLine(r.runtime, "--version") + " and " + r.crunVersion(),
		Ours:       firstLine(r.cli, "--version"),
		Peer:       "nvidia-container-runtime of the NVIDIA Container Toolkit " + peerVersion(),
		Installed:  r.installed(),
		RCU:        rcu(),
		LoadBefore: r.loadStart,
	}
}
