package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
)

// listenHere has this program listen on a socket of this name in its directory until its standard
// input ends, as another process than the test's.
const listenHere = "GPULEDGER_TEST_LISTENS"

// listenOnce is set for a process that calls listen on its descriptor 3 and closes it.
const listenOnce = "GPULEDGER_TEST_LISTEN_ONCE"

// askProgram names a program that this process asks, as gpuledgerd does.
const askProgram = "GPULEDGER_TEST_ASKS"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "mps" { // as a launcher it would run all tests
		os.Exit(1)
	}
	if program := os.Getenv(askProgram); program != "" {
		_, err := machine{}.Ask(context.Background(), program, nil, "quit")
		fmt.Println(err)
		return
	}
	if os.Getenv(listenOnce) != "" {
		if err := errors.Join(unix.Listen(3, 8), unix.Close(3)); err != nil {
			fmt.Println(err)
		}
		fmt.Println("listens")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	name := os.Getenv(listenHere)
	if name == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("unixpacket", name)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listens")
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(l) // else it is closed with the garbage
}

// stage is a node with MPS daemons, each of which is this process, and a program that answers for
// them. The program records its questions, and before it answers it runs the file trick in the
// daemon's directory.
type stage struct {
	t    *testing.T
	node *node.Node
}

const answers = `#!/bin/sh
read question
dir=${CUDA_MPS_PIPE_DIRECTORY%/pipe}
echo "$question" >>$dir/asked
[ ! -e $dir/trick ] || . $dir/trick
case $question in
get_server_list) cat $dir/servers ;;
get_server_status*) echo ACTIVE ;;
get_default_device_pinned_mem_limit*) echo 1G ;;
get_default_active_thread_percentage) echo 100.0 ;;
get_active_thread_percentage*) echo 100.0 ;;
esac
`

func newStage(t *testing.T) stage { return newStageOf(t, "580.65.06") }

// newStageOf is a stage whose inventory has a driver of this version.
func newStageOf(t *testing.T, version string) stage {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	must(t, os.WriteFile(config, []byte(fmt.Sprintf("state_dir = %q\nrun_dir = %q\n[inventory]\nsource = "+
		"\"simulated\"\nfile = \"x\"\n", dir+"/state", dir+"/run")), 0o600))
	s := stage{t, node.Open(config, host.Default())}
	must(t, s.node.Broken, os.MkdirAll(dir+"/state", 0o700),
		os.WriteFile(filepath.Join(dir, grant.MPSControl), []byte(answers), 0o755),
		os.WriteFile(filepath.Join(dir, grant.MPSServer), []byte("#!/bin/sh\n"), 0o755))
	boot, err := s.node.Host.BootID()
	must(t, err, gpu.Write(gpu.Path(s.node.Policy.StateDir),
		grant.Inventory{Version: 1, BootID: boot, Taken: time.Now(), Source: "simulated",
			Driver: grant.Driver{Root: dir, Version: version, Files: []grant.DriverFile{
				{Kind: grant.FileBinary, Path: "/" + grant.MPSControl, Target: "/usr/bin/" + grant.MPSControl},
				{Kind: grant.FileBinary, Path: "/" + grant.MPSServer, Target: "/usr/sbin/" + grant.MPSServer}}}}))
	return s
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// daemon is one over a GPU, which listens, with a server of its own.
func (s stage) daemon(uuid string) *daemon {
	s.t.Helper()
	name := grant.MPSName([]string{uuid})
	d := s.again(name)
	must(s.t, os.MkdirAll(filepath.Join(d.dir, "pipe"), 0o755))
	s.t.Chdir(filepath.Join(d.dir, "pipe")) // a socket's path is short
	for _, name := range []string{"control", "control_privileged"} {
		listener, err := net.Listen("unixpacket", name)
		must(s.t, err)
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		s.t.Cleanup(func() { _ = listener.Close() })
	}
	must(s.t, s.becomes(d.dir, s.self()))
	s.serve(d)
	return d
}

// again is the daemon as a new gpuledgerd sees it.
func (s stage) again(name string) *daemon {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return &daemon{name: name, dir: grant.MPSDir(s.node.Policy.RunDir, name), node: s.node, log: log,
		system: patient{}}
}

// patient is this machine, where a program may take long to answer: the machine may be busy.
type patient struct{ machine }

func (patient) Ask(ctx context.Context, program string, env []string, command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute) // bounds a failure
	defer cancel()
	return machine{}.Ask(ctx, program, env, command)
}

func (s stage) self() grant.Process {
	self, err := s.node.Host.Self()
	must(s.t, err)
	return self
}

// serve starts a server, and returns what ends it.
func (s stage) serve(d *daemon) (end func()) {
	server := exec.Command("sleep", "1000")
	must(s.t, server.Start(), os.WriteFile(filepath.Join(d.dir, "servers"),
		[]byte(fmt.Sprintln(server.Process.Pid)), 0o600))
	end = func() { _ = server.Process.Kill(); _ = server.Wait() }
	s.t.Cleanup(end)
	return end
}

// steal puts another process's socket in place of the daemon's, and returns what undoes that.
func (s stage) steal(d *daemon) (back func()) { return s.stealNamed(d, "control") }

func (s stage) stealNamed(d *daemon, name string) (back func()) {
	return s.replace(d, name, exec.Command("sh", "-c", `"$0"; true`, os.Args[0])) // no child of the daemon's
}

func (s stage) replace(d *daemon, name string, thief *exec.Cmd) (back func()) {
	s.t.Helper()
	pipe := filepath.Join(d.dir, "pipe")
	must(s.t, os.Rename(filepath.Join(pipe, name), filepath.Join(pipe, "elsewhere")))
	thief.Env, thief.Dir = append(os.Environ(), listenHere+"="+name), pipe
	in, err := thief.StdinPipe()
	must(s.t, err)
	out, err := thief.StdoutPipe()
	must(s.t, err, thief.Start())
	s.t.Cleanup(func() { _ = in.Close(); _ = thief.Wait() })
	if line, _ := io.ReadAll(io.LimitReader(out, 8)); string(line) != "listens\n" {
		s.t.Fatalf("the thief says %s", line)
	}
	return func() { must(s.t, os.Rename(filepath.Join(pipe, "elsewhere"), filepath.Join(pipe, name))) }
}

// TestSocketIsHeldByItsListener: the kernel names the process that called listen on a socket, even
// if that number belongs to a server of the daemon's by now, and another process has the socket.
func TestSocketIsHeldByItsListener(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	s.serve(d)
	must(t, s.pass(context.Background(), d, true))
	control := filepath.Join(d.dir, "pipe/control")
	must(t, os.Rename(control, control+".real"))
	thief, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err, unix.Bind(thief, &unix.SockaddrUnix{Name: control}))
	held := os.NewFile(uintptr(thief), "thief")
	defer held.Close()
	server := exec.Command(os.Args[0])
	server.Env, server.ExtraFiles = append(os.Environ(), listenOnce+"=yes"), []*os.File{held}
	in, err := server.StdinPipe()
	must(t, err)
	out, err := server.StdoutPipe()
	must(t, err, server.Start())
	defer func() { _ = in.Close(); _ = server.Wait() }()
	if line, _ := io.ReadAll(io.LimitReader(out, 8)); string(line) != "listens\n" {
		t.Fatalf("it says %q", line)
	}
	if pid, _, err := host.Listener(control); err != nil || pid != server.Process.Pid {
		t.Fatalf("the kernel names process %d (%v), not the daemon's child %d", pid, err, server.Process.Pid)
	}
	if _, _, err := d.ownSockets(s.self()); err == nil {
		t.Error("it is taken for the daemon's")
	}
}

// unlisted is a machine whose list of sockets cannot be read.
type unlisted struct{ patient }

func (unlisted) HoldsListener(host.Host, int, string) (bool, error) {
	return false, errors.New("out of memory")
}

// TestAnUnknownListenerReplacesNothing: the message does not say that the daemon should be ended.
func TestAnUnknownListenerReplacesNothing(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	d.system = unlisted{}
	_, _, err := d.ownSockets(s.self())
	if want := "cannot tell whether it listens on its socket control: out of memory"; err == nil ||
		err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	d.system = patient{}
	if _, _, err := d.ownSockets(s.self()); err != nil {
		t.Errorf("in the next pass: %v", err)
	}
}

// asked is what the program was asked about a daemon since the last call.
func (s stage) asked(d *daemon) string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "asked"))
	_ = os.Remove(filepath.Join(d.dir, "asked"))
	return string(text)
}

func wanted(uuid string) want {
	return want{uuids: []string{uuid}, limits: map[string]grant.Bytes{uuid: grant.GiB}, threads: 100}
}

// pass plans and does what is to be done about a daemon over GPU-0 that runs.
func (s stage) pass(ctx context.Context, d *daemon, isWanted bool) error {
	all := map[string]want{}
	if isWanted {
		all[d.name] = wanted("GPU-0")
	}
	next := plan([]facts{d.facts()}, all, false, time.Now())[0]
	return d.apply(ctx, next.action, all[d.name])
}

// TestSocketIsTheDaemons: only a socket on which the daemon itself listens is taken for the
// daemon's, whatever gpuledgerd knew or read before. Another one is asked nothing, and is not
// written down.
func TestSocketIsTheDaemons(t *testing.T) {
	ctx := context.Background()
	for name, then := range map[string]func(s stage, d *daemon, end func()) *daemon{
		"nothing more":        func(_ stage, d *daemon, _ func()) *daemon { return d },
		"a server that ended": func(_ stage, d *daemon, end func()) *daemon { end(); return d },
		"a server that ended, seen by the next gpuledgerd": func(s stage, d *daemon, end func()) *daemon {
			end()
			return s.again(d.name)
		},
		"another gpuledgerd": func(s stage, d *daemon, _ func()) *daemon { return s.again(d.name) },
		"another gpuledgerd, without state.json": func(s stage, d *daemon, _ func()) *daemon {
			must(t, os.Remove(filepath.Join(d.dir, "state.json")))
			return s.again(d.name)
		},
		"another gpuledgerd, with half of state.json": func(s stage, d *daemon, _ func()) *daemon {
			must(t, os.WriteFile(filepath.Join(d.dir, "state.json"),
				[]byte(`{"version": 1, "gpus": [`), 0o600))
			return s.again(d.name)
		},
		"another gpuledgerd, to which the one before says that it is the daemon's": func(s stage, d *daemon,
			_ func()) *daemon {
			state, _ := mpsstate.Read(s.node.Host, d.dir)
			state.Socket, _, _ = mpsstate.Socket(mpsstate.SocketPath(d.dir))
			must(t, mpsstate.Write(s.node.Host, d.dir, state))
			return s.again(d.name)
		},
		"no grant for a moment": func(s stage, d *daemon, _ func()) *daemon {
			if err := s.pass(ctx, d, false); err == nil || !strings.Contains(err.Error(),
				mpsstate.OtherSocket) {
				t.Errorf("it is told to end: %v", err)
			}
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			d := s.daemon("GPU-0")
			end := s.serve(d)
			must(t, s.pass(ctx, d, true))
			own := d.state.Socket
			back := s.steal(d)
			s.asked(d)
			d = then(s, d, end)
			d.detectEnd()
			err := s.pass(ctx, d, true)
			if err == nil || !strings.Contains(err.Error(), mpsstate.OtherSocket) {
				t.Errorf("ready by another's socket: %v", err)
			}
			if state, _ := mpsstate.Read(s.node.Host, d.dir); !strings.Contains(state.Problem,
				mpsstate.OtherSocket) ||
				state.Socket != own && state.Socket != [2]uint64{} || state.Daemon != s.self() {
				t.Errorf("it is written down: %+v", state)
			}
			if questions := s.asked(d); questions != "" {
				t.Errorf("whoever listens there is asked %s", questions)
			}
			s.serve(d)
			back()
			must(t, s.pass(ctx, d, true))
			if state, _ := mpsstate.Read(s.node.Host, d.dir); state.Problem != "" || state.Socket != own {
				t.Errorf("with its own back: %+v", state)
			}
		})
	}
	t.Run("before the first look", func(t *testing.T) {
		s := newStage(t)
		d := s.daemon("GPU-0")
		s.steal(d)
		if err := s.pass(ctx, d, true); err == nil || !strings.Contains(err.Error(), mpsstate.OtherSocket) ||
			s.asked(d) != "" {
			t.Errorf("the first socket is another's: %v", err)
		}
	})
	for what, name := range map[string]string{mpsstate.OtherSocket: "control",
		mpsstate.OtherPrivileged: "control_privileged"} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			d := s.daemon("GPU-0")
			must(t, s.pass(ctx, d, true))
			own := d.state.Privileged
			back := s.stealNamed(d, name)
			s.asked(d)
			for _, isWanted := range []bool{true, false} {
				if err := s.pass(ctx, d, isWanted); err == nil || !strings.Contains(err.Error(), what) {
					t.Errorf("wanted: %v: %v", isWanted, err)
				}
			}
			if questions := s.asked(d); questions != "" {
				t.Errorf("whoever listens there is asked %s", questions)
			}
			back()
			must(t, s.pass(ctx, d, true))
			state, _ := mpsstate.Read(s.node.Host, d.dir)
			if state.Problem != "" || state.Privileged != own || own == [2]uint64{} {
				t.Errorf("with its own back: %+v", state)
			}
			must(t, os.Remove(filepath.Join(d.dir, "pipe", name)))
			if err := s.pass(ctx, d, true); err == nil || s.asked(d) == "" {
				t.Errorf("without it: %v", err)
			}
			if err := s.pass(ctx, d, true); err == nil || !strings.Contains(err.Error(), "it has no ") ||
				s.asked(d) != "" {
				t.Errorf("without it: %v", err)
			}
		})
	}
	t.Run("the socket of a process that it has started", func(t *testing.T) {
		s := newStage(t)
		d := s.daemon("GPU-0")
		s.replace(d, "control", exec.Command(os.Args[0]))
		must(t, s.pass(ctx, d, true))
	})
	t.Run("nobody listens", func(t *testing.T) {
		s := newStage(t)
		d := s.daemon("GPU-0")
		in := filepath.Join(d.dir, "pipe")
		must(t, os.Remove(in+"/control"))
		l, err := net.Listen("unixpacket", "control")
		must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		must(t, l.Close())
		if err := s.pass(ctx, d, true); err == nil || !strings.Contains(err.Error(), "does not listen") ||
			s.asked(d) != "" {
			t.Errorf("a socket on which nobody listens: %v", err)
		}
	})
}

// TestTheEndOfAServerKeepsItsDaemon: the daemon is still known by its process and its socket.
func TestTheEndOfAServerKeepsItsDaemon(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	end := s.serve(d)
	must(t, s.pass(context.Background(), d, true))
	before := d.state
	end()
	if !d.detectEnd() {
		t.Fatal("nobody has ended")
	}
	state, _ := mpsstate.Read(s.node.Host, d.dir)
	if state.Daemon != before.Daemon || state.Socket != before.Socket || len(state.Servers) > 0 ||
		!strings.Contains(state.Problem, "server (process") {
		t.Errorf("%+v became %+v", before, state)
	}
	if d.detectEnd() {
		t.Error("its end is told twice")
	}
	gone := exec.Command("true")
	must(t, gone.Run())
	state.Daemon = grant.Process{PID: gone.Process.Pid, Start: 1}
	must(t, d.writeState(state))
	d.putOff(fmt.Errorf("mute"), time.Hour)
	if d.detectEnd(); !d.askedAgain.IsZero() {
		t.Error("for its silence the next one is put off")
	}
	if state, _ = mpsstate.Read(s.node.Host, d.dir); state.Daemon.PID != 0 || state.Socket != [2]uint64{} {
		t.Errorf("of a daemon that has ended there is still %+v", state)
	}
	if strings.Contains(state.Problem, noReason) {
		t.Errorf("a daemon that was ready had no GPU: %s", state.Problem)
	}
	state.Daemon, state.Socket = grant.Process{PID: gone.Process.Pid, Start: 1}, [2]uint64{}
	must(t, d.writeState(state))
	d.detectEnd()
	if state, _ = mpsstate.Read(s.node.Host, d.dir); !strings.Contains(state.Problem, noReason) {
		t.Errorf("a daemon that was never ready, and printed nothing: %s", state.Problem)
	}
}

// TestAContainerThatWasStartedAgain: it has the same id as before, and the daemon that runs now.
func TestAContainerThatWasStartedAgain(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	end := s.serve(d)
	m := &Manager{Node: func() *node.Node { return s.node }, Log: d.log, System: patient{}}
	g := held(grant.MPS, 0, grant.GiB, []string{"a", "b"}, "GPU-0")
	passes := func(what, lost string) {
		t.Helper()
		err := m.ensure(t.Context(), grants.Overview{View: grant.View{Grants: []grant.Grant{g}}})
		reported := fmt.Sprintf("these containers lost their contexts: [%s]; start them again", lost)
		if (err != nil) != (lost != "") || err != nil && !strings.Contains(err.Error(), reported) {
			t.Errorf("%s: %v, want %q", what, err, lost)
		}
	}
	passes("at first", "")
	end()
	end = s.serve(d)
	passes("its server has ended", "a b")
	end()
	s.serve(d)
	passes("so has the next one", "a b")
	next := m.daemons[d.name].lost.At
	m = &Manager{Node: m.Node, Log: m.Log, System: m.System}
	passes("gpuledgerd was started again", "a b")
	if at := m.daemons[d.name].lost.At; !at.Equal(next) {
		t.Errorf("the next gpuledgerd says that they lost them at %s, want %s", at, next)
	}
	g.Bindings[1].Creator.Start++
	passes("one was started again", "a")
	g.Bindings[0].Creator.PID++
	passes("so was the other", "")
	m = &Manager{Node: m.Node, Log: m.Log, System: m.System}
	passes("nothing is left for the next gpuledgerd", "")
	if _, err := os.Stat(filepath.Join(d.dir, lostFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", lostFile, err)
	}
	g.Bindings[0].Reserved = true
	passes("one is reserved for", "")
	own := m.daemons[d.name]
	must(t, own.lost.set(s.node.Host, own.dir, []boundContainer{own.users[0]}, d.now()))
	g.Bindings[0].Reserved, g.Bindings[0].Creator = false, s.self()
	passes("it starts for the first time", "a")
	g.Bindings[0].Creator.Start++
	passes("and again", "")
}

// TestAnswersOfAnother: answers of a process that has the place of the daemon's socket do not
// count, and that process is not told to end.
func TestAnswersOfAnother(t *testing.T) {
	ctx := context.Background()
	const trick = "cd $dir/pipe\n[ -e elsewhere ] || { mv control elsewhere; mv thief control; }\n"
	s := newStage(t)
	d := s.daemon("GPU-0")
	pipe := filepath.Join(d.dir, "pipe")
	s.steal(d)
	must(t, os.Rename(pipe+"/control", pipe+"/thief"), os.Rename(pipe+"/elsewhere", pipe+"/control"))
	must(t, os.WriteFile(filepath.Join(d.dir, "trick"), []byte(trick), 0o600))
	if err := s.pass(ctx, d, true); err == nil || !strings.Contains(err.Error(), mpsstate.OtherSocket) ||
		d.state.Problem == "" {
		t.Errorf("what another has answered: %v, %+v", err, d.state)
	}
	if s.asked(d) == "" {
		t.Error("the trick was not played")
	}
	must(t, os.Rename(pipe+"/control", pipe+"/thief"), os.Rename(pipe+"/elsewhere", pipe+"/control"))
	err := s.pass(ctx, d, false)
	if questions := s.asked(d); err == nil || !strings.Contains(err.Error(), mpsstate.OtherSocket) ||
		questions == "" || strings.Contains(questions, "quit") {
		t.Errorf("asked %s: %v", questions, err)
	}
	must(t, os.Remove(filepath.Join(d.dir, "trick")), os.Rename(pipe+"/elsewhere", pipe+"/control"))
	must(t, s.pass(ctx, d, false))
	if questions := s.asked(d); !strings.HasSuffix(questions, "\nquit\n") {
		t.Errorf("afterwards it is asked %s", questions)
	}
}

// TestAnswersOfAnotherThatIsGone: nor do they count if the daemon's socket is back in its place
// afterwards.
func TestAnswersOfAnotherThatIsGone(t *testing.T) {
	for _, name := range []string{"control", "control_privileged"} {
		t.Run(name, func(t *testing.T) { answersOfAnotherThatIsGone(t, name) })
	}
}

func answersOfAnotherThatIsGone(t *testing.T, socket string) {
	t.Helper()
	ctx := context.Background()
	s := newStage(t)
	d := s.daemon("GPU-0")
	trick := filepath.Join(d.dir, "trick")
	play := func() {
		move := fmt.Sprintf("(cd $dir/pipe; mv %[1]s elsewhere; mv elsewhere %[1]s)\n", socket)
		must(t, os.WriteFile(trick, []byte(move), 0o600))
	}
	play()
	if err := s.pass(ctx, d, true); err == nil || !strings.Contains(err.Error(), errMoved.Error()) ||
		d.state.Problem == "" {
		t.Errorf("what another has answered: %v, %+v", err, d.state)
	}
	must(t, os.Remove(trick), s.pass(ctx, d, true))
	s.asked(d)
	play()
	err := s.pass(ctx, d, false)
	if questions := s.asked(d); err == nil || !strings.Contains(err.Error(), errMoved.Error()) ||
		questions == "" || strings.Contains(questions, "quit") {
		t.Errorf("asked %s: %v", questions, err)
	}
	must(t, os.Remove(trick), s.pass(ctx, d, false))
	if questions := s.asked(d); !strings.HasSuffix(questions, "\nquit\n") {
		t.Errorf("afterwards it is asked %s", questions)
	}
}

// TestSocketThatIsJustMoved: a stamp is taken when the next change would have another one.
func TestSocketThatIsJustMoved(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	must(t, os.Chmod(filepath.Join(d.dir, "pipe/control"), 0o777))
	both, err := d.socketStamps(context.Background())
	stamp := both.control
	if must(t, err); stamp == (host.Stamp{}) || !stamp.Before(time.Now()) {
		t.Errorf("the stamp of a socket that was changed at %s is taken at %s", stamp.Changed(), time.Now())
	}
}

// TestAnswersAreBounded: no more is kept of what a program prints than an answer can have.
func TestAnswersAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), grant.MPSControl)
	for _, way := range []string{"", ">&2"} {
		must(t, os.WriteFile(path, []byte("#!/bin/sh\nexec yes tenant "+way+"\n"), 0o755))
		c := control{program: path, env: []string{"PATH=/usr/bin:/bin"}, system: patient{}}
		if _, err := c.ask(context.Background(), "get_server_list"); err == nil ||
			!strings.Contains(err.Error(), "with more than 65536 bytes") {
			t.Errorf("%s %v", way, err)
		}
	}
	must(t, os.WriteFile(path, []byte("#!/bin/sh\nhead -c 65536 /dev/zero | tr '\\0' 1\n"), 0o755))
	c := control{program: path, env: []string{"PATH=/usr/bin:/bin"}, system: patient{}}
	if text, err := c.ask(context.Background(), "get_server_list"); err != nil || len(text) != maxAnswer {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// TestDaemonsAreAskedAtOnce: each of two daemons answers only after the other one was asked, too.
func TestDaemonsAreAskedAtOnce(t *testing.T) {
	s := newStage(t)
	var all []grant.Grant
	var daemons []*daemon
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		daemons = append(daemons, s.daemon(uuid))
		all = append(all, held(grant.MPS, 0, grant.GiB, nil, uuid))
	}
	for i, d := range daemons {
		must(t, os.WriteFile(filepath.Join(d.dir, "trick"),
			[]byte("until [ -e "+daemons[1-i].dir+"/asked ]; do sleep 0.01; done\n"), 0o600))
	}
	m := &Manager{Node: func() *node.Node { return s.node }, Log: daemons[0].log, System: patient{}}
	must(t, m.ensure(context.Background(), grants.Overview{View: grant.View{Grants: all}}))
	for _, d := range daemons {
		if state, known := mpsstate.Read(s.node.Host, d.dir); !known || state.Problem != "" ||
			len(state.Servers) != 1 {
			t.Errorf("%+v", state)
		}
	}
}

// TestSilenceIsPutOff: a daemon that did not answer in time is not asked in every pass, with grants
// or without. One that reports a problem is.
func TestSilenceIsPutOff(t *testing.T) {
	ctx := context.Background()
	s := newStage(t)
	d := s.daemon("GPU-0")
	d.putOff(nil, time.Hour)
	d.putOff(fmt.Errorf("deaf"), answerTime/2)
	must(t, s.pass(ctx, d, true))
	if s.asked(d) == "" {
		t.Error("it is not asked")
	}
	d.putOff(fmt.Errorf("mute"), time.Hour)
	must(t, d.writeState(grant.MPSDaemon{GPUs: []string{"GPU-0"}, Daemon: s.self(),
		Problem: "it does not answer"}))
	for what, err := range map[string]error{"ready": s.pass(ctx, d, true), "ended": s.pass(ctx, d, false)} {
		if err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if questions := s.asked(d); questions != "" {
		t.Errorf("it is asked %s", questions)
	}
}
