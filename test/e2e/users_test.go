//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
	"github.com/gpuledger/gpuledger/test/transcript"
)

// hasUsers reports whether users of a machine type the commands of an engine that is here. The
// client of Debian's Docker is too old for moby 2.
func hasUsers(e engine) bool { return e.trust == grant.Podman || e.name == "docker-20.10" }

// The sections of docs/users.md that are typed, and how many commands an administrator and a user
// may need until a container runs.
const (
	usersSection  = "Two share a GPU, a third one waits"
	ownSection    = "The same with rootless Podman"
	ofAnAdmin     = 4
	ofAUser       = 1
	usersPage     = "../../docs/users.md"
	usersPrograms = "/run/e2e/bin"
	usersHomes    = "/run/e2e/home/" // the machine's own, which /home is not
)

var (
	printedID   = regexp.MustCompile(`granted (g-[a-z]{12})`)
	containerID = regexp.MustCompile(`(?m)^[0-9a-f]{64}\n`)
	engineRun   = regexp.MustCompile(`podman run|podman stop|configure podman`)
)

// isPodman reports whether users have an engine of their own, without root.
func isPodman(e engine) bool { return e.trust == grant.Podman }

// users types the page's story: two users of the machine share a GPU, one asks for too much, one
// waits in the queue of gpuledgerd, and has its turn when the first one leaves.
func users(t *testing.T, s *site, cl client) {
	s.tells(t, cl, usersSection, s.laidForUsers)
	_ = s.command(cl.name(), "rm", "--force", "bert")
}

// rootlessUsers types the same story for users with a Podman of their own, without root. The driver
// has made its nodes for root alone, as its option says.
func rootlessUsers(t *testing.T, s *site, cl client) {
	rig.Need(t, "newuidmap", "crun")
	s.tells(t, cl, ownSection, func(steps []transcript.Step) {
		s.laidForUsers(steps)
		for _, name := range []string{"nvidia0", "nvidia1", "nvidiactl"} {
			must(t, os.Chmod("/dev/"+name, 0o660))
		}
		must(t, os.MkdirAll("/etc/modprobe.d", 0o755), os.Chmod(s.images[image], 0o644),
			os.Chmod(filepath.Dir(s.images[image]), 0o755))
		for _, user := range usersOf(steps) {
			s.homeOf(t, user)
		}
	})
}

// tells types a section of the page.
func (s *site) tells(t *testing.T, cl client, section string, lay func([]transcript.Step)) {
	o := outcome{Engine: s.engine.name, Client: cl.name(), Entry: s.entry.name, Case: "the story of users",
		Result: "ok"}
	defer func() {
		if t.Failed() {
			o.Result = "FAIL"
		}
		note(t, o)
	}()
	page, err := os.ReadFile(usersPage)
	must(t, err)
	steps := transcript.Steps(string(page), section)
	countCommands(t, steps)
	lay(steps)
	var waiting *typing
	ids := map[string]string{} // of the page's grants
	for _, step := range steps {
		for shown, id := range ids {
			step.Command = strings.ReplaceAll(step.Command, shown, id)
		}
		typing := s.types(cl, step)
		if strings.Contains(step.Command, "--wait") {
			eventually(t, step.User+" waits", func() bool {
				return strings.Contains(typing.said(), "waiting, ")
			})
			if typing.over() {
				t.Fatalf("$ %s\ndid not wait:\n%s", step.Command, typing.said())
			}
			waiting = typing
			continue
		}
		typing.compare(t)
		shown, is := printedID.FindStringSubmatch(step.Says), printedID.FindStringSubmatch(typing.said())
		if shown != nil && is != nil {
			ids[shown[1]] = is[1]
		}
	}
	if waiting == nil {
		t.Fatal("the page shows nobody who waits")
	}
	waiting.compare(t)
	s.CheckSound("after the story")
}

// countCommands wants the page to need no more commands than it promises.
func countCommands(t *testing.T, steps []transcript.Step) {
	t.Helper()
	admins, runs, left := 0, map[string]int{}, map[string]bool{}
	for _, step := range steps {
		switch {
		case step.User == "":
			admins++
		case left[step.User]:
		case strings.Contains(step.Command, " stop "):
			left[step.User] = true
		default:
			runs[step.User]++
		}
	}
	if admins == 0 || admins > ofAnAdmin || len(runs) < 4 {
		t.Errorf("the page has %d commands of an administrator, want up to %d, and of users %v", admins,
			ofAnAdmin, runs)
	}
	for user, n := range runs {
		if n > ofAUser {
			t.Errorf("%s needs %d commands, want %d", user, n, ofAUser)
		}
	}
}

// laidForUsers makes the page's users, and what a package brings.
func (s *site) laidForUsers(steps []transcript.Step) {
	t := s.T
	rig.Need(t, "useradd", "setpriv")
	for _, user := range usersOf(steps) {
		s.succeeds("useradd", "--no-create-home", user)
	}
	must(t, os.MkdirAll(usersPrograms, 0o755))
	for _, name := range []string{"gpuledger", "gpuledger-runtime"} {
		must(t, copyProgram(rig.Binary(t, name), filepath.Join(usersPrograms, name)))
	}
	s.installPackagedConfig()
	must(t, os.Chmod(s.Dir, 0o711), os.Chmod(s.dir, 0o755))
	if s.engine.trust == grant.Podman {
		writeFile(t, "/etc/containers/containers.conf.d/network.conf", "[containers]\nnetns = \"none\"\n")
	}
	must(t, os.Remove(filepath.Join(s.Dir, "state/inventory.json"))) // gpuledgerd takes the first one
	s.succeeds(s.engineName(), "tag", image, "busybox:latest")
}

// installPackagedConfig gives the node the file that packages bring, with the node's own settings
// in its tables: commands of the page edit that file.
func (s *site) installPackagedConfig() {
	t := s.T
	packaged, err := exec.Command("sed", "-Ef", "../../packaging/config.sed", "../../configs/config.toml").
		Output()
	must(t, err)
	own, err := os.ReadFile(s.Config)
	must(t, err)
	const usual = "/etc/gpuledger/config.toml"
	must(t, os.Remove(usual), os.Remove(s.Config))
	writeFile(t, usual, withSettings(string(packaged), string(own)))
	must(t, os.Symlink(usual, s.Config))
}

// withSettings is a configuration with the settings of another one, each in its table.
func withSettings(config, settings string) string {
	var tables []string
	of, table := map[string]string{}, ""
	for line := range strings.Lines(settings) {
		if strings.HasPrefix(line, "[") {
			table = line
			tables = append(tables, line)
			continue
		}
		of[table] += line
	}
	all := of[""]
	for line := range strings.Lines(config) {
		all += line + of[line]
		delete(of, line)
	}
	for _, table := range tables { // which the file has as a comment
		if of[table] != "" {
			all += table + of[table]
		}
	}
	return all
}

// usersOf are the users who type the steps.
func usersOf(steps []transcript.Step) (names []string) {
	for _, step := range steps {
		if step.User != "" && !slices.Contains(names, step.User) {
			names = append(names, step.User)
		}
	}
	return names
}

// homeOf gives a user a home, a runtime directory as logind does, and an image in its storage.
func (s *site) homeOf(t *testing.T, user string) {
	config := filepath.Join(usersHomes, user, ".config/containers")
	must(t, os.MkdirAll(config, 0o755), os.MkdirAll("/run/user", 0o755),
		os.Mkdir("/run/user/"+user, 0o700))
	writeFile(t, filepath.Join(config, "storage.conf"), "[storage]\ndriver = \"vfs\"\n")
	writeFile(t, filepath.Join(config, "containers.conf"), "[engine]\nlock_type = \"file\"\n")
	s.succeeds("chown", "--recursive", user+":", usersHomes+user, "/run/user/"+user)
	for _, command := range []string{"load --quiet --input " + s.images[image],
		"tag " + image + " busybox"} {
		s.succeeds("sh", "-c", "cd /; "+asUser(user)+"podman "+command+" 2>&1")
	}
	t.Cleanup(func() { // the process by which a user's Podman keeps its user namespace
		_ = exec.Command("pkill", "-KILL", "-u", user).Run()
	})
}

// asUser is what a command of a user's begins with.
func asUser(user string) string {
	return fmt.Sprintf("setpriv --reuid=%[1]s --regid=%[1]s --init-groups env -u TMPDIR "+
		"HOME=%[2]s%[1]s USER=%[1]s XDG_RUNTIME_DIR=/run/user/%[1]s ", user, usersHomes)
}

// typing is a command that someone has typed.
type typing struct {
	step transcript.Step
	log  string
	end  chan error
}

// types begins a command in a shell: gpuledger runs as the user, what sudo runs as root.
func (s *site) types(cl client, step transcript.Step) *typing {
	t := s.T
	t.Helper()
	command := step.Command
	if cl.name() == "docker" {
		command = engineRun.ReplaceAllStringFunc(command, func(words string) string {
			return strings.ReplaceAll(words, "podman", "docker")
		})
		if strings.Contains(command, "configure docker") {
			command += " --restart"
		}
	}
	if s.engine.name == "podman-runc" {
		command = strings.ReplaceAll(command, "--runtime crun", "--runtime runc")
	}
	if strings.HasPrefix(command, "systemctl ") {
		d := s.Daemon("--nri", "off")
		eventually(t, "it serves users", func() bool {
			return strings.Contains(d.Log(), "serving the users")
		})
		eventually(t, "it has taken the inventory", func() bool {
			return there(filepath.Join(s.Dir, "state/inventory.json"))
		})
	}
	as, podman := "", ""
	if step.User != "" {
		as = asUser(step.User)
		podman = "podman() { " + as + "podman \"$@\"; }\n"
	}
	functions := fmt.Sprintf("exec 2>&1 </dev/null\ncd /\napt() { :; }\nsystemctl() { :; }\n"+
		"sudo() { command \"$@\"; }\ngpuledger() { %s%s/gpuledger \"$@\"; }\n%s", as, usersPrograms, podman)
	log, err := os.CreateTemp("", "typed-")
	must(t, err)
	defer log.Close()
	bash := exec.Command("bash", "-c", functions+command)
	bash.Stdout = log
	must(t, bash.Start())
	typed := &typing{step: step, log: log.Name(), end: make(chan error, 1)}
	go func() { typed.end <- bash.Wait() }()
	t.Cleanup(func() { _ = bash.Process.Kill() })
	return typed
}

func (c *typing) said() string {
	text, _ := os.ReadFile(c.log)
	return string(text)
}

func (c *typing) over() bool { return len(c.end) > 0 }

// compare waits for the end and compares what was printed with the page. The nodes have no driver
// here, so what the kernel lets open one finds no device behind it.
func (c *typing) compare(t *testing.T) {
	t.Helper()
	eventually(t, c.step.Command+" ends", c.over)
	said := containerID.ReplaceAllString(c.said(), "")
	said = strings.ReplaceAll(said, "sh: can't open /dev/nvidia0: No such device or address\n", "open\n")
	t.Logf("%s$ %s\n%s", c.step.User, c.step.Command, said)
	if !transcript.Agrees(said, c.step.Says) {
		t.Errorf("%s$ %s\nprints\n%s\nbut the page has\n%s", c.step.User, c.step.Command, said, c.step.Says)
	}
}
