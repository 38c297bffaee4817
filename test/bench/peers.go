package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	testrig "github.com/gpuledger/gpuledger/test/rig"
)

// machineVar begins the names of a run's folders, so that they can be removed after a kill, too.
const machineVar = "GPULEDGER_BENCH_MACHINE"

// startMachine runs the comparison with peers in a machine of its own, where engines have their
// usual paths. Crun 1.8 wants one version of cgroups there.
func startMachine(o options) error {
	module, err := os.Getwd()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d-", os.Getpid())
	restore := expedite(o)
	status := testrig.InMachine(module, testrig.V1, os.Args[1:], machineVar+"="+name)
	restore()
	left, _ := filepath.Glob(".cache/bench-" + name + "*")
	trees, _ := filepath.Glob(filepath.Join(o.bin, "installed-"+name+"*"))
	for _, dir := range append(left, trees...) {
		err = errors.Join(err, exec.Command("rm", "-rf", "--one-file-system", dir).Run())
	}
	if err != nil {
		return err
	}
	os.Exit(status) // the machine's process has printed why, if it failed
	return nil
}

// What -peers measures with an OCI runtime and through engines. Each compares with peers that do
// similar work, and checks that they have done it.
var peerScenarios = []scenario{
	{"create without a GPU", createNoGPU},
	{"create with GPUs, beside a toolkit with CDI", createBesideToolkit},
	{"containers of Podman", podmanRuns},
	{"containers of containerd", containerdRuns},
}

// peerCalls are the measurements of libraries in a container.
func (r *rig) peerCalls() ([]Call, error) {
	var calls []Call
	for _, measure := range []struct {
		name string
		run  func(*rig) ([]Call, error)
	}{{"calls under a library", callCosts}, {"kills under a library", kills}} {
		if !strings.Contains(measure.name, r.options.only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", measure.name)
		more, err := measure.run(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", measure.name, err)
		}
		calls = append(calls, more...)
	}
	return calls, nil
}

// nativeKind is the kind of the devices in the CDI file that stands for NVIDIA's.
const (
	nativeKind = "peers.example.com/gpu"
	nativeName = nativeKind + "=all"
	driverMark = "/lib/x86_64-linux-gnu/libnvoptix.so.1" // a file of the driver in a container
)

// withGrant is a create by gpuledger with a grant of two GPUs and a whole driver, and the bare
// runtime with the config.json that this makes. It writes the CDI file with the same nodes and
// files.
func (r *rig) withGrant(name string) (bare, ours contestant, final []byte, err error) {
	node, err := r.newDriverNode(name, r.runtime)
	if err != nil {
		return bare, ours, nil, err
	}
	reference, err := node.grant("--memory", "8GiB", "--gpus", "2")
	if err != nil {
		return bare, ours, nil, err
	}
	ours, bundle, err := r.granting(name+"-ours", node, reference, withLoader)
	if err != nil {
		return bare, ours, nil, err
	}
	bare, ours, final, err = r.sides(ours, bundle, name+"-ours-bare", driverMark, withLoader)
	if err != nil {
		return bare, ours, nil, err
	}
	return bare, ours, final, r.writeCDI(final)
}

// nativeEdits are the GPUs and the driver's files of a container, as a CDI file has them: where
// ours has a proxy of a library, the library itself, and nothing else of ours. It has no hooks.
// NVIDIA's files have some, which write ld.so.cache and make links; ours does this without a
// process.
func (r *rig) nativeEdits(config []byte) (edits cdispec.ContainerEdits, err error) {
	var spec specs.Spec
	if err := json.Unmarshal(config, &spec); err != nil {
		return edits, err
	}
	for _, d := range spec.Linux.Devices {
		edits.DeviceNodes = append(edits.DeviceNodes, &cdispec.DeviceNode{Path: d.Path, Type: d.Type,
			Major: d.Major, Minor: d.Minor, Permissions: "rw"})
	}
	behind := map[string]string{} // a proxy: the driver's library
	for _, m := range spec.Mounts {
		if strings.HasPrefix(m.Destination, "/run/gpuledger/driver/") {
			behind[strings.TrimSuffix(filepath.Base(m.Destination), ".1")] = m.Source
		}
	}
	for _, m := range spec.Mounts {
		switch {
		case strings.HasPrefix(m.Destination, "/run/gpuledger/"):
			continue
		case strings.HasPrefix(m.Source, r.tree):
			m.Source = behind[strings.TrimSuffix(filepath.Base(m.Destination), ".1")]
		case !strings.HasPrefix(m.Source, r.path("driver")):
			continue
		}
		edits.Mounts = append(edits.Mounts, &cdispec.Mount{HostPath: m.Source, ContainerPath: m.Destination,
			Options: m.Options})
	}
	if len(edits.DeviceNodes) < 3 || len(edits.Mounts) < len(driverLibraries) {
		err = fmt.Errorf("a container has only %d device nodes and %d files of the driver",
			len(edits.DeviceNodes), len(edits.Mounts))
	}
	return edits, err
}

// writeCDI writes /etc/cdi/peers.json for the native edits of a container of ours.
func (r *rig) writeCDI(config []byte) error {
	edits, err := r.nativeEdits(config)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(cdispec.Spec{Version: "0.5.0", Kind: nativeKind,
		Devices: []cdispec.Device{{Name: "all", ContainerEdits: edits}}}, "", "  ")
	if err != nil {
		return err
	}
	return writeEtc("cdi/peers.json", string(data))
}

// createBesideToolkit compares a create with two GPUs and the driver's files: by gpuledger, with a
// grant, and by nvidia-container-runtime in its mode cdi. Each is compared with the bare runtime
// that gets the config.json which that wrapper made.
func createBesideToolkit(r *rig) ([]Row, error) {
	bare, ours, final, err := r.withGrant("toolkit")
	if err != nil {
		return nil, err
	}
	file := r.path("nodes/toolkit/peer.toml")
	config := fmt.Sprintf("[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [%q]\n", r.runtime)
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	asking := func(s *specs.Spec) error {
		s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES="+nativeName)
		return withLoader(s)
	}
	theirs, bundle, err := r.editing("toolkit-nvidia", r.peer,
		[]string{"NVIDIA_CTK_CONFIG_FILE_PATH=" + file}, asking)
	if err != nil {
		return nil, err
	}
	bareTheirs, theirs, finalTheirs, err := r.sides(theirs, bundle, "toolkit-nvidia-bare", driverMark, asking)
	if err != nil {
		return nil, err
	}
	if err := r.sameEdits(final, finalTheirs); err != nil {
		return nil, err
	}
	times, err := r.compare(r.options.pairs, bare, ours, bareTheirs, theirs)
	if err != nil {
		return nil, err
	}
	const what = "create, 2 GPUs and the driver's files; bare: same final config.json"
	return []Row{comparison(what, wrapperName, times[0], times[1]),
		comparison(what, peerName+", mode cdi", times[2], times[3])}, nil
}

// sameEdits checks that two containers have the same device nodes and files of the driver.
func (r *rig) sameEdits(ours, theirs []byte) error {
	var have [2]map[string]bool
	for i, config := range [][]byte{ours, theirs} {
		edits, err := r.nativeEdits(config)
		if err != nil {
			return err
		}
		have[i] = map[string]bool{}
		for _, d := range edits.DeviceNodes {
			have[i][fmt.Sprintf("%s %s %d:%d", d.Path, d.Type, d.Major, d.Minor)] = true
		}
		for _, m := range edits.Mounts {
			have[i][m.HostPath+" at "+m.ContainerPath] = true
		}
	}
	for i := range have {
		for what := range have[i] {
			if !have[1-i][what] {
				return fmt.Errorf("only one of the containers has %s", what)
			}
		}
	}
	return nil
}
