package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// withNVML has the node's daemon sample the stand-in's NVML, as if the inventory had come from it.
func (n *gpuNode) withNVML() {
	t := n.T.(*testing.T)
	t.Helper()
	inv := grant.Inventory{}
	snapshot := n.Dir + "/state/inventory.json"
	must(t, json.Unmarshal([]byte(read(t, snapshot)), &inv))
	inv.Source, inv.Majors = "nvml", map[string]int{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509}
	data, err := json.Marshal(inv)
	must(t, err, os.WriteFile(snapshot, data, 0o600))
	n.Write("config.toml", strings.Replace(read(t, n.Config), `source = "simulated"`, `source = "nvml"`, 1))
	var addresses []string
	for _, g := range inv.GPUs {
		addresses = append(addresses, g.PCI)
	}
	driverProc(t, addresses...)
	devices := n.Write("devices", strings.Replace(read(t, "/proc/devices"), "Block devices:",
		"195 nvidia\n508 nvidia-uvm\n509 nvidia-caps\n\nBlock devices:", 1))
	rig.Mount(t, devices, "/proc/devices", "", syscall.MS_BIND, "")
	if _, err := os.Stat("/sys/bus/pci"); err == nil { // the addresses are of no device of this machine
		rig.Mount(t, "bus", "/sys/bus/pci", "tmpfs", 0, "")
	}
	n.Env = append(n.Env, "FAKEDRIVER_DIR="+n.Dir+"/book")
}

// libraries is the directory of the stand-in's libraries.
func (n *gpuNode) libraries() string {
	found, _ := filepath.Glob(n.built + "/driver/usr/lib/*")
	return found[0]
}

// onTheNode starts the client as a process of the node.
func (n *gpuNode) onTheNode(words ...string) int {
	n.T.Helper()
	cmd := exec.Command(n.built+"/gpu", words...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + n.libraries(), "FAKEDRIVER_DIR=" + n.Dir + "/book"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// TestUseOutsideTheLedgerIsFound: a driver that accounts its memory, real containers and a real
// proxy. One container allocates within its grant and then more from the library behind the proxy,
// one keeps to its grant, one belongs to another runtime, and one program is the node's own. Each
// is found with its process, container, pod and grant. Then the policy stops two of them, and the
// other two go on.
func TestUseOutsideTheLedgerIsFound(t *testing.T) {
	n := newGPUNode(t, rig.Setup{Engine: "containerd", GPUs: 1, Memory: "16384MiB", Config: adopts + watches +
		"[enforcement]\nshim = \"{shim}\"\n"})
	n.withNVML()
	over := n.container("over", inPod("train"), allocated("train", "0", "1GiB"),
		rig.Shell("exec /bin/gpu 512 past:/run/gpuledger/driver/libcuda.so.1 2048 hold"))
	start(t, over)
	within := n.holding("within", n.Grant("--memory", "2GiB"), "exec /bin/gpu 2000 1000 hold")
	start(t, within)
	id := strings.Repeat("d0c4e5", 10) + "abcd"
	other := n.container(id, rig.Shell("exec /bin/gpu 3000 hold"), rig.Env("LD_LIBRARY_PATH=/lib/stand-in"),
		func(spec *specs.Spec) {
			spec.Linux.CgroupsPath = strings.TrimSuffix(spec.Linux.CgroupsPath, id) + "docker/" + id
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/lib/stand-in", Type: "bind",
				Source: n.libraries(), Options: []string{"bind", "ro"}})
		})
	for _, args := range [][]string{{"create", "--bundle", other.Dir, other.ID}, {"start", other.ID}} {
		if r := rig.Run(n.Real(args...)); r.Code != 0 {
			t.Fatalf("%s: %+v", args[0], r)
		}
	}
	host := n.onTheNode("700", "hold")
	// A program uses 1 MiB for its context before it allocates, and the watch would find that.
	rig.Eventually(t, "all memory is in use", func() bool { return n.used(0) >= 2560+2000+3000+700 })
	s := siteOf(t, n.Daemon("--nri", "off"))
	owner := grant.ID("")
	for _, g := range n.Grants() {
		if g.Source == grant.Adopted {
			owner = g.ID
		}
	}
	// Two contexts of 1 MiB each in the program that has two drivers.
	messages := []string{fmt.Sprintf(`container "train" of pod team/job-0 uses 2562MiB of GPU 0, 1538MiB `+
		`more than the 1GiB of its grant %s`, owner),
		fmt.Sprintf("process %d (gpu) of the node uses 701MiB of GPU 0 without a grant", host),
		"container " + id[:12] + " of docker uses 3001MiB of GPU 0 without a grant"}
	for _, message := range messages {
		s.eventually("/", strings.ReplaceAll(message, `"`, "&#34;"))
	}
	s.eventually("/metrics", `gpuledger_findings{gpu="`+n.gpus[0].UUID+`",kind="outside-ledger"} 2`,
		`gpuledger_findings{gpu="`+n.gpus[0].UUID+`",kind="over-grant"} 1`,
		`grant="`+string(owner)+`",namespace="team",pod="job-0"} 2.686451712e+09`)
	wantFound(t, n.Node, "over-grant", found{Container: "over", Grant: string(owner),
		PIDs: []int{over.Init()}, Message: messages[0], Reaction: "report"})
	wantFound(t, n.Node, "outside-ledger", found{PIDs: []int{host}, Command: "gpu", Message: messages[1],
		Reaction: "report"},
		found{Container: id, Engine: "docker", PIDs: []int{other.Init()}, Message: messages[2],
			Reaction: "report"})
	s.passes(5)
	for _, b := range []*rig.Bundle{over, within, other} {
		if b.Init() == 0 {
			t.Errorf("%s was stopped where policy only reports", b.ID)
		}
	}
	n.Write("config.toml", read(t, n.Config)+stops)
	rig.Eventually(t, "those that policy names are stopped", func() bool {
		return over.Init() == 0 && other.Init() == 0
	})
	rig.Eventually(t, "that is in the audit log", func() bool {
		return len(findings(t, n.Node, "stopped", "over-grant")) == 1 &&
			len(findings(t, n.Node, "stopped", "outside-ledger")) == 1
	})
	rig.Eventually(t, "their memory is free", func() bool { return n.used(0) < 2000+700+10 })
	s.passes(10)
	if within.Init() == 0 || !rig.Lives(host) {
		t.Error("a process that keeps to its grant, or is the node's own, was stopped")
	}
	n.CheckSound("after the stops")
}

// wantFound compares the audit log's lines about a kind of finding with the wanted ones, in the
// fields that these set.
func wantFound(t *testing.T, n *rig.Node, kind string, want ...found) {
	t.Helper()
	got := findings(t, n, "found", kind)
	is := func(g, w found) bool {
		return g.Message == w.Message && g.Container == w.Container && g.Grant == w.Grant &&
			slices.Equal(g.PIDs, w.PIDs) && g.Reaction == w.Reaction && g.Engine == w.Engine &&
			(w.Command == "" || g.Command == w.Command)
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g found) bool { return is(g, w) }) {
			t.Errorf("the audit log has no %+v; it has %+v", w, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d findings, want %d: %+v", len(got), len(want), got)
	}
}
