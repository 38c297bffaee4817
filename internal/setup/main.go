// Package setup puts gpuledger on a node from a container that has the node's file system: for
// nodes that are set up by a DaemonSet. The image carries the same tree as the packages; what the
// packages' scripts do is done in the node's own namespaces.
package setup

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// Place says where things are. Tests have a place of their own.
type Place struct {
	Tree  string   // what is to be installed
	Node  string   // the node's file system
	Enter []string // how a program of the node's is run in its own namespaces

	// Settle is for how long nothing is done after an engine's restart. containerd 1.6 takes a
	// container that ends while it finds out what runs for running for ever, and this program is in
	// one.
	Settle time.Duration
}

// Cluster is the place in the image and the manifests of packaging/kubernetes. The pod has the
// node's process ids, so process 1 is the node's.
var Cluster = Place{Tree: "/node", Node: "/host",
	Enter:  []string{"nsenter", "--target", "1", "--mount", "--uts", "--ipc", "--net", "--"},
	Settle: 10 * time.Second}

const usageText = `usage: gpuledger-setup install --engine containerd|crio|docker [--as-default] [--mode enforce|report]
       gpuledger-setup remove --engine containerd|crio|docker
       gpuledger-setup wait
`

// options are what the engine is configured with: flags of `gpuledger configure`.
type options struct {
	engine    string
	asDefault bool
	mode      string // policy.mode where the node's configuration names none; "": report
}

// Main is the program. It returns its exit status: 0 done, 1 failed, 2 usage.
func Main(args []string, at Place) int {
	if len(args) < 2 {
		return usage()
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.engine, "engine", "", "")
	flags.BoolVar(&o.asDefault, "as-default", false, "")
	flags.StringVar(&o.mode, "mode", "", "")
	if err := flags.Parse(args[2:]); err != nil || flags.NArg() > 0 {
		return usage()
	}
	var err error
	switch {
	case args[1] == "wait" && o == options{}:
		wait()
	case args[1] == "install" && o.engine != "":
		err = on(at, func(n *node) error { return n.install(o) })
	case args[1] == "remove" && o.engine != "" && !o.asDefault && o.mode == "":
		err = on(at, func(n *node) error { return n.remove(o) })
	default:
		return usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpuledger-setup: "+err.Error())
		return 1
	}
	return 0
}

func usage() int {
	fmt.Fprint(os.Stderr, usageText)
	return 2
}

// wait keeps the pod, and so the DaemonSet's word that the node is set up, until it is told to end.
func wait() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	<-ctx.Done()
}

// on opens the tree, and then makes the node's file system this process's: a link on the node leads
// where it leads there.
func on(at Place, do func(*node) error) error {
	tree, err := os.OpenRoot(at.Tree)
	if err != nil {
		return fmt.Errorf("cannot open what is to be installed: %w", err)
	}
	defer tree.Close()
	if err := syscall.Chroot(at.Node); err != nil {
		return fmt.Errorf("cannot go to the node's file system %q: %w", at.Node, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := os.Setenv("PATH", path); err != nil {
		return err
	}
	return do(&node{tree: tree.FS(), enter: at.Enter, settle: at.Settle})
}

// path is where a node's programs are. The image has none.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// run runs a program of the node's.
func (n *node) run(name string, args ...string) error {
	cmd := n.command(name, args...)
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot run %s %v: %w", name, args, err)
	}
	return nil
}

// output runs a program of the node's, and gives what it prints.
func (n *node) output(name string, args ...string) ([]byte, error) {
	out, err := n.command(name, args...).Output()
	if err != nil {
		return out, fmt.Errorf("cannot run %s %v: %w", name, args, err)
	}
	return out, nil
}

func (n *node) command(name string, args ...string) *exec.Cmd {
	argv := append(append([]string{}, n.enter...), append([]string{name}, args...)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr // its own empty input would need the node's /dev/null
	cmd.Env = []string{"PATH=" + path}
	fmt.Println("#", cmd.String())
	return cmd
}

// say prints what an administrator should know.
func say(format string, args ...any) { fmt.Printf("gpuledger-setup: "+format+"\n", args...) }
