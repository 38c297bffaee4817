// Package setup puts gpuledger on a node from a container that has the node's file system, for
// nodes that a DaemonSet sets up. The image has the same tree as the packages. setup does in the
// node's own namespaces what the packages' scripts do.
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

// Trees says where the trees are. Tests have a layout of their own.
type Trees struct {
	Tree  string   // the tree to install
	Node  string   // the node's file system
	Enter []string // the command that runs a program in the node's namespaces

	// Settle is how long setup waits after an engine's restart. At its start containerd 1.6 finds
	// out which containers run. One that ends meanwhile counts as running for ever, and this
	// program runs in one.
	Settle time.Duration
}

// Cluster is the layout of the image and of the manifests in packaging/kubernetes. The pod uses the
// node's process ids, so process 1 is the node's.
var Cluster = Trees{Tree: "/node", Node: "/host",
	Enter:  []string{"nsenter", "--target", "1", "--mount", "--uts", "--ipc", "--net", "--"},
	Settle: 10 * time.Second}

const usageText = `usage: gpuledger-setup install --engine auto|containerd|crio|docker [--as-default] [--mode enforce|report] [--cluster FILE]
       gpuledger-setup remove --engine auto|containerd|crio|docker
       gpuledger-setup config --cluster FILE
       gpuledger-setup ready --cluster FILE
       gpuledger-setup leave
       gpuledger-setup wait
`

// configureFlags are the flags of `gpuledger configure` for the engine.
type configureFlags struct {
	engine    string
	asDefault bool
	mode      string // policy.mode, if the node's configuration names none; "": report
	cluster   string // the file, in this container, of what the cluster sets; "": the node's stays
}

// Main runs the program and returns its exit status: 0 done, 1 failed, 2 usage.
func Main(args []string, at Trees) int {
	if len(args) < 2 {
		return usage()
	}
	var o configureFlags
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.engine, "engine", "", "")
	flags.BoolVar(&o.asDefault, "as-default", false, "")
	flags.StringVar(&o.mode, "mode", "", "")
	flags.StringVar(&o.cluster, "cluster", "", "")
	if err := flags.Parse(args[2:]); err != nil || flags.NArg() > 0 {
		return usage()
	}
	var err error
	switch {
	case args[1] == "wait" && o == configureFlags{}:
		wait()
	case args[1] == "leave" && o == configureFlags{}:
		removeFile(clusterFile)
		wait()
	case args[1] == "config" && o.cluster != "" && o == configureFlags{cluster: o.cluster}:
		ctx, stop := untilToldToEnd()
		defer stop()
		follow(ctx, o.cluster, look)
	case args[1] == "ready" && o.cluster != "" && o == configureFlags{cluster: o.cluster}:
		err = ready(o.cluster)
	case args[1] == "install" && o.engine != "":
		var text []byte
		if o.cluster != "" { // this container's file system is not seen from the node's
			if text, err = os.ReadFile(o.cluster); err != nil {
				err = fmt.Errorf("cannot read what the cluster sets: %w", err)
				break
			}
		}
		err = on(at, func(n *node) error { return n.install(o, text) })
	case args[1] == "remove" && o.engine != "" && o == configureFlags{engine: o.engine}:
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

// wait keeps the pod running until it is told to end. A running pod is how the DaemonSet shows that
// the node is set up.
func wait() {
	ctx, stop := untilToldToEnd()
	defer stop()
	<-ctx.Done()
}

func untilToldToEnd() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
}

// on opens the tree and makes the node's file system this process's root. A link on the node then
// leads to the same file as on the node.
func on(at Trees, do func(*node) error) error {
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

// path is the search path for the node's programs. The image has none of its own.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// run runs a program of the node.
func (n *node) run(name string, args ...string) error {
	cmd := n.command(name, args...)
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot run %s %v: %w", name, args, err)
	}
	return nil
}

// output runs a program of the node and returns what it prints.
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
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr // an empty input of its own would need the node's /dev/null
	cmd.Env = []string{"PATH=" + path}
	fmt.Println("#", cmd.String())
	return cmd
}

// say prints what an administrator should know.
func say(format string, args ...any) { fmt.Printf("gpuledger-setup: "+format+"\n", args...) }
