package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "run a program, which is in no container, with a grant",
		UsageText: "gpuledger run --memory 4GiB -- python train.py\n" +
			"gpuledger run --memory 4GiB --wait 1h -- python train.py\n" +
			"gpuledger run --memory 4GiB --user anna -- runuser -u anna -- python train.py",
		Description: "The grant belongs to the program and to the processes that it starts. It ends " +
			"with the last of them. In mode limit a program that root runs gets the shim, which a " +
			"program can avoid (" +
			grant.Docs + "strength.md). For a user without root gpuledgerd makes the grant, within the " +
			"quota, and there is no shim. The exit status is the program's.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "memory", Usage: "memory over all GPUs, for example 4GiB or 512MiB"},
			&cli.GenericFlag{Name: "gpus", Value: new(cmdline.Number), Usage: "number of GPUs", DefaultText: "1"},
			&cli.StringSliceFlag{Name: "gpu", Usage: "exactly this GPU, by `UUID|INDEX`; may be given again"},
			&cli.GenericFlag{Name: "compute", Value: new(cmdline.Number), Usage: "`PERCENT` of each GPU's compute, 1 to 100", DefaultText: "no share"},
			&cli.StringFlag{Name: "mode", Usage: "exclusive, timeslice or limit", Value: string(grant.Limit)},
			waitFlag(),
			&cli.StringFlag{Name: "user", Usage: "the `USER` of this node to whom the grant belongs, by name or uid"},
			&cli.StringFlag{Name: "inside", Hidden: true},
			&cli.StringFlag{Name: "owner", Value: string(grant.Bearer), Hidden: true}, // askFrom reads it
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usage("want a program to run: gpuledger run --memory 4GiB -- PROGRAM")
			}
			if c.IsSet("inside") {
				return becomeProgram(c.String("inside"), c.Args().Slice())
			}
			if err := checkWait(c); err != nil {
				return err
			}
			program, err := exec.LookPath(c.Args().First())
			if err != nil {
				return fmt.Errorf("cannot run: %w", err)
			}
			argv := slices.Concat([]string{program}, c.Args().Tail())
			if client, is := asUser(c); is {
				return runAsUser(c, client, argv)
			}
			return runProgram(c, argv)
		},
	}
}

// runAsUser becomes the program: gpuledgerd knows this process by its cgroup from then on.
func runAsUser(c *cli.Context, client users.Client, argv []string) error {
	if err := onlyRoot(c, "user"); err != nil {
		return err
	}
	ask, err := runAsk(c)
	if err != nil {
		return err
	}
	g, _, sentence, err := enterByDaemon(c, client.Run, ask, nil)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.ErrWriter, sentence)
	return becomeArgv(argv, withGPUs(os.Environ(), g))
}

func becomeArgv(argv, env []string) error {
	return fmt.Errorf("cannot run %s: %w", grant.Printable(argv[0]), unix.Exec(argv[0], argv, env))
}

// runAsk reads the flags of a program's grant.
func runAsk(c *cli.Context) (admission.Ask, error) {
	ask, err := askFrom(c)
	if err != nil {
		return ask, err
	}
	switch ask.Mode {
	case grant.Exclusive, grant.Timeslice, grant.Limit:
	default:
		return ask, usage("--mode: a program without a container gets no GPU in mode %s", ask.Mode)
	}
	ask.Label = grant.Printable(filepath.Base(c.Args().First()))
	return ask, nil
}

// runProgram runs the program and waits for its end. It keeps its thread: the kernel sends the
// parent-death signal when the thread that started the program ends (prctl(2), PR_SET_PDEATHSIG).
func runProgram(c *cli.Context, argv []string) error {
	runtime.LockOSThread()
	n, err := open(c)
	if err != nil {
		return err
	}
	ask, err := runAsk(c)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	entered, err := enterProgram(c, n, ask, signals)
	if err != nil {
		return err
	}
	defer removeCgroup(entered.Cgroup)
	g := entered.Grant
	inv, _ := n.Inventory()
	inside, err := json.Marshal(surroundings{Cgroup: entered.Cgroup,
		Stage: filepath.Join(n.Policy.RunDir, "run"), Mounts: admission.NodeMounts(g, inv, n.Policy)})
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.ErrWriter, grants.Sentence(n, "granted", g))
	cmd := exec.Command("/proc/self/exe",
		slices.Concat([]string{"run", "--inside", string(inside), "--"}, argv)...)
	cmd.Env = withGPUs(os.Environ(), g)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	return wait(cmd, signals)
}

// enterProgram enters the grant of the program, and catches the program's signals first: one that
// ended this process would leave the cgroup. With --wait gpuledgerd makes it, moves this process
// there and removes it, and a signal ends the wait.
func enterProgram(c *cli.Context, n *node.Node, ask admission.Ask,
	signals chan<- os.Signal) (grants.ProgramGrant, error) {
	if !c.IsSet("wait") {
		catch(signals)
		return grants.EnterThisProgram(n, ask)
	}
	g, _, _, err := enterByDaemon(c, rootsClient(n).Run, ask, nil)
	catch(signals)
	return grants.ProgramGrant{Grant: g}, err
}

// catch has the signals that are passed on to the program sent to a channel.
func catch(signals chan<- os.Signal) {
	passed := notIgnored(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	if len(passed) > 0 {
		signal.Notify(signals, passed...)
	}
}

// removeCgroup removes the cgroup of the program, if it has one that gpuledgerd does not remove. A
// process that ends with the program can be in it for a moment longer. One that goes on keeps it.
func removeCgroup(dir string) {
	for end := time.Now().Add(time.Second); errors.Is(os.Remove(dir), unix.EBUSY) &&
		time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// withGPUs names the grant's GPUs in an environment, as programs and NVIDIA's tools read them. What
// was there under these names is removed: of two values getenv(3) returns the first.
func withGPUs(env []string, g grant.Grant) []string {
	all := strings.Join(g.UUIDs(), ",")
	for _, name := range []string{"CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES="} {
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, name) })
		env = append(env, name+all)
	}
	return env
}

// wait starts the program, passes signals on to it, and returns its exit status. A terminal sends
// its signals to both, except those that come before the program.
func wait(cmd *exec.Cmd, signals <-chan os.Signal) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	for range len(signals) {
		_ = cmd.Process.Signal(<-signals)
	}
	terminal, err := os.Open("/dev/tty")
	if err == nil {
		_ = terminal.Close()
	}
	go func() {
		for s := range signals {
			if err != nil || s != unix.SIGINT && s != unix.SIGQUIT {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case errors.As(err, &exit):
		status := exit.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return programStatus(128 + int(status.Signal()))
		}
		return programStatus(status.ExitStatus())
	default:
		return err
	}
}

// programStatus is the exit status of a program that has run. It needs no message.
type programStatus int

func (s programStatus) Error() string { return fmt.Sprintf("the program ended with status %d", int(s)) }

// surroundings are what the program gets before it starts.
type surroundings struct {
	Cgroup string // "": the process is in it already
	Stage  string // a directory of the node on which a tmpfs is mounted
	Mounts []*cdispec.Mount
}

// becomeProgram runs in a process and a mount namespace of its own. It joins the grant's cgroup,
// mounts the shim and executes the program. After it has joined, it may outlive its parent.
func becomeProgram(inside string, argv []string) error {
	var s surroundings
	err := json.Unmarshal([]byte(inside), &s)
	if err == nil && s.Cgroup != "" {
		err = os.WriteFile(filepath.Join(s.Cgroup, "cgroup.procs"), []byte("0"), 0)
	}
	if err == nil {
		err = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0)
	}
	if err == nil && len(s.Mounts) > 0 {
		err = mountShim(s)
	}
	if err == nil {
		return becomeArgv(argv, os.Environ())
	}
	return fmt.Errorf("cannot run %s: %w", grant.Printable(argv[0]), err)
}

// mountShim builds the shim's directory on a tmpfs, mounts the proxies over the driver's libraries,
// and moves the tmpfs to where the proxies look.
func mountShim(s surroundings) error {
	if err := os.MkdirAll(s.Stage, 0o755); err != nil {
		return err
	}
	err := unix.Mount("gpuledger", s.Stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64k")
	if err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if below, is := strings.CutPrefix(m.ContainerPath, grant.ShimPlace+"/"); is {
			target := filepath.Join(s.Stage, below)
			err := os.MkdirAll(filepath.Dir(target), 0o755)
			if err == nil {
				err = os.WriteFile(target, nil, 0o644)
			}
			if err == nil {
				err = bind(m, target)
			}
			if err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(grant.ShimPlace, 0o755); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if !strings.HasPrefix(m.ContainerPath, grant.ShimPlace+"/") {
			if err := bind(m, m.ContainerPath); err != nil {
				return err
			}
		}
	}
	return unix.Mount(s.Stage, grant.ShimPlace, "", unix.MS_MOVE, "")
}

func bind(m *cdispec.Mount, target string) error {
	flags := uintptr(unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV)
	if slices.Contains(m.Options, "ro") {
		flags |= unix.MS_RDONLY
	}
	err := unix.Mount(m.HostPath, target, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", target, "", unix.MS_REMOUNT|flags, "")
	}
	if err != nil {
		return fmt.Errorf("cannot mount %s at %s: %w", m.HostPath, target, err)
	}
	return nil
}
