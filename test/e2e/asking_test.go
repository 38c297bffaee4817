//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// askingPage shows the files of programs that start containers by Docker or Podman, which the tests
// here give to these programs.
const askingPage = "../../docs/asking.md"

// hasCompose reports whether users of an engine write files for Compose.
func hasCompose(e engine) bool { return e.trust == grant.Podman || e.trust == grant.Docker }

// askPages gives the page's files to the programs that they are for. Each container has a share of
// a GPU as long as it runs.
func askPages(t *testing.T, s *site, cl client) {
	page, err := os.ReadFile(askingPage)
	must(t, err)
	for _, c := range []struct {
		name string
		on   bool // the engine has it
		why  string
		test func(*testing.T, *site, string)
	}{
		{"Compose", true, "", composeAsks},
		{"Compose, the name of a size", s.engine.name == "docker-moby2",
			"Docker has CDI names since 25, Podman Compose passes no device on", composeNames},
		{"Compose, too much", true, "", composeIsRefused},
		{"devcontainer", s.engine.name != "docker-moby2",
			"it needs a docker client, and Debian's is too old for moby 2", devcontainerAsks},
	} {
		o := outcome{Engine: s.engine.name, Client: cl.name(), Entry: s.entry.name, Case: c.name,
			Result: "ok"}
		if !c.on {
			o.Result, o.Why = "-", c.why
			note(t, o)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					o.Result = "FAIL"
				}
				note(t, o)
			}()
			c.test(t, s.in(t), string(page))
		})
	}
}

// snippets are the code blocks of a language in a section of the page, with this machine's image.
func snippets(t *testing.T, page, section, language string) (blocks []string) {
	t.Helper()
	_, text, found := strings.Cut(page, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, block := range strings.Split(text, "```"+language+"\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		blocks = append(blocks, strings.ReplaceAll(block, "IMAGE", image))
	}
	if !found || len(blocks) == 0 {
		t.Fatalf("docs/asking.md has no %s in the section %q", language, section)
	}
	return blocks
}

// opensBoth is a script that prints the results of opening both GPUs. The service of the page runs
// it in this machine, which has no network.
const (
	opensBoth = `open() { cat "$1" 2>&1 | sed "s/.*: //"; }; open /dev/nvidia0; open /dev/nvidia1`
	inDocker  = "services:\n  train:\n    network_mode: none\n"
	inPodman  = "services:\n  train:\n"
	command   = "    command: [\"/bin/sh\", \"-c\", '" + opensBoth + "; sleep 1000']\n"
)

// withoutNetwork is Podman for podman-compose 1.0, which gives each container a network.
const withoutNetwork = `skip= words=$#
while [ $words -gt 0 ]; do
  word=$1 words=$((words - 1))
  shift
  case $skip$word in
  --net | --network-alias) skip=the-value- ;;
  the-value-*) skip= ;;
  *) set -- "$@" "$word" ;;
  esac
done
exec podman "$@"
`

// compose is the command of the engine's Compose for a project of the page's file, with what this
// machine needs in a second one.
func compose(s *site, file string) func(args ...string) rig.Result {
	dir := filepath.Join(s.dir, "compose")
	must(s.T, os.RemoveAll(dir))
	writeFile(s.T, filepath.Join(dir, "compose.yaml"), file)
	program, machine := []string{built("compose/cmd")}, inDocker+strings.ReplaceAll(command, "$", "$$")
	if s.engine.trust == grant.Podman {
		rig.Need(s.T, "podman-compose")
		path := filepath.Join(dir, "podman")
		script(s.T, path, withoutNetwork)
		writeFile(s.T, "/etc/containers/containers.conf.d/network.conf", "[containers]\nnetns = \"none\"\n")
		program, machine = []string{"podman-compose", "--podman-path", path}, inPodman+command
	}
	writeFile(s.T, filepath.Join(dir, "machine.yaml"), machine)
	return func(args ...string) rig.Result {
		words := append(slices.Concat(program, []string{"-f", "compose.yaml", "-f", "machine.yaml"}), args...)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+s.dir, "DOCKER_HOST=unix:///run/docker.sock")
		r := rig.Run(cmd)
		s.T.Logf("%s: %+v", strings.Join(words, " "), r)
		return r
	}
}

// composeAsks has the page's first file.
func composeAsks(t *testing.T, s *site, page string) {
	upAndDown(s, snippets(t, page, "Compose", "yaml")[0])
}

// composeNames has the page's first file with the second one's lines in place of the reservation
// and the variable.
func composeNames(t *testing.T, s *site, page string) {
	files := snippets(t, page, "Compose", "yaml")
	if len(files) != 2 {
		t.Fatalf("the page has %d files for Compose, want 2", len(files))
	}
	file := regexp.MustCompile(`(?m)^ *devices:.*\n`).ReplaceAllLiteralString(files[0], files[1])
	upAndDown(s, regexp.MustCompile(`(?m)^ *environment:.*\n`).ReplaceAllLiteralString(file, ""))
}

// composeIsRefused has the page's first file with more than a GPU has.
func composeIsRefused(t *testing.T, s *site, page string) {
	run := compose(s, strings.Replace(snippets(t, page, "Compose", "yaml")[0], "4GiB", "4000GiB", 1))
	r := run("up", "--detach")
	if text := r.Stdout + r.Stderr; !strings.Contains(text, "gpuledger: refused (no-capacity): ") {
		t.Errorf("more than a GPU has: %+v", r)
	}
	run("down")
	s.nothingAsked()
}

// upAndDown starts the page's service, and wants it to reach one GPU with 4 GiB until it ends.
func upAndDown(s *site, file string) {
	run := compose(s, file)
	if r := run("up", "--detach"); r.Code != 0 {
		s.T.Fatalf("up: %+v", r)
	}
	s.hasAsked(func() string { return run("logs", "train").Stdout })
	if r := run("down", "-t", "0"); r.Code != 0 {
		s.T.Errorf("down: %+v", r)
	}
	s.nothingAsked()
}

// hasAsked wants one container that asked for 4 GiB, and reaches that GPU alone.
func (s *site) hasAsked(said func() string) {
	s.T.Helper()
	if all := s.Grants(); len(all) != 1 || all[0].Source != "asked" || len(all[0].Bindings) != 1 ||
		len(all[0].GPUs) != 1 || all[0].GPUs[0].Memory != 4*grant.GiB {
		s.T.Errorf("granted: %+v, want 4 GiB of one GPU for a container that asked", all)
	}
	var text string
	eventually(s.T, "the container has looked at both GPUs", func() bool {
		text = said()
		return strings.Count(text, strings.TrimSpace(let))+strings.Count(text, strings.TrimSpace(absent)) == 2
	})
	if strings.Count(text, strings.TrimSpace(let)) != 1 {
		s.T.Errorf("it reaches\n%s\nwant one GPU", text)
	}
}

// nothingAsked wants all grants to be gone that containers asked for.
func (s *site) nothingAsked() {
	s.T.Helper()
	eventually(s.T, "nothing is granted that was asked for", func() bool { return len(s.Grants()) == 0 })
}

// requirements is what the page says that Docker's devcontainers may have, too.
const requirements = `"hostRequirements": {"gpu": "optional"}`

// failsOn is why no devcontainer with these starts.
var failsOn = map[grant.Engine]string{grant.Podman: "Command failed: podman info -f {{.Runtimes.nvidia}}"}

// devcontainerAsks starts the page's devcontainer.
func devcontainerAsks(t *testing.T, s *site, page string) {
	rig.Need(t, s.engineName(), "node")
	dir := filepath.Join(s.dir, "workspace")
	file := snippets(t, page, "Devcontainers", "json")[0]
	withGPU := strings.Replace(file, "{", "{"+requirements+",", 1)
	if !strings.Contains(page, requirements) {
		t.Fatalf("docs/asking.md does not have %s", requirements)
	}
	devcontainer := func(args ...string) rig.Result {
		words := append([]string{built("devcontainers/node_modules/.bin/devcontainer"), args[0],
			"--docker-path", s.engineName(), "--workspace-folder", dir,
			"--mount-workspace-git-root", "false"}, args[1:]...)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+s.dir, "DOCKER_HOST=unix:///run/docker.sock")
		r := rig.Run(cmd)
		t.Logf("%s: %+v", strings.Join(words, " "), r)
		return r
	}
	for _, c := range []struct {
		file  string
		more  []string
		gpus  bool // the container is started with --gpus all
		fails string
	}{
		{file: file},
		{file: withGPU, fails: failsOn[s.engine.trust]},
		{file: withGPU, more: []string{"--gpu-availability", "all"}, gpus: true},
	} {
		if c.gpus && s.engine.trust == grant.Podman { // Podman 4.3 has no --gpus
			continue
		}
		writeFile(t, filepath.Join(dir, ".devcontainer/devcontainer.json"), c.file)
		r := devcontainer(append([]string{"up"}, c.more...)...)
		if (r.Code != 0) != (c.fails != "") || !strings.Contains(r.Stderr, c.fails) {
			t.Fatalf("%s: %+v, want %q", c.file, r, c.fails)
		}
		if c.fails != "" {
			continue
		}
		s.hasAsked(func() string { return devcontainer("exec", "/bin/sh", "-c", opensBoth).Stdout })
		id := regexp.MustCompile(`"containerId":"([0-9a-f]+)"`).FindStringSubmatch(r.Stdout)
		if id == nil {
			t.Fatalf("no container in %s", r.Stdout)
		}
		if strings.Contains(r.Stderr, "--gpus all ") != c.gpus {
			t.Errorf("%s: want --gpus to be passed: %t", c.file, c.gpus)
		}
		s.succeeds(s.engineName(), "rm", "--force", id[1])
		s.nothingAsked()
	}
}
