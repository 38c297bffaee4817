package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
	"github.com/gpuledger/gpuledger/test/transcript"
)

// TestReadme runs the commands of the README and the tour, in order and as they are printed, and
// compares the output. It does what the pages describe in words: it puts the references into the
// annotations of the bundles, and the variable into the image.
func TestReadme(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	rig.Need(t, "jq")
	n.Must("inventory", "simulate", "--gpus", "2", "--memory", "16160MiB", "--name", "Tesla V100-SXM2-16GB",
		"--out", n.Dir+"/node.json")
	n.Must("inventory", "refresh")
	bundles := map[string]*rig.Bundle{}
	for id, edit := range map[string]rig.Edit{
		"train": together(), "infer": together(), "thief": together(),
		"greedy": rig.Env("NVIDIA_VISIBLE_DEVICES=all"),
		"privileged": func(s *specs.Spec) {
			rig.Privileged(s)
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		},
	} {
		bundles[id] = n.Bundle(id, edit)
		for _, applet := range []string{"sh", "ls", "mknod", "head"} {
			must(t, exec.Command("ln", "-s", "busybox", filepath.Join(bundles[id].Dir,
				"rootfs/bin", applet)).Run())
		}
	}
	shell := typist(t, n)
	refusal, tour := transcript.Steps(read(t, "../README.md"), "A refusal"),
		transcript.Steps(read(t, "../docs/tour.md"), "The tour")
	if len(refusal) != 1 || len(tour) < 10 {
		t.Fatalf("the README has %d commands and the tour %d", len(refusal), len(tour))
	}
	for _, s := range append(refusal, tour...) {
		said := shell(s.Command)
		if !transcript.Agrees(said, s.Says) {
			t.Errorf("$ %s\nprints\n%s\nbut the page has\n%s", s.Command, said, s.Says)
		}
		if label := labelled.FindStringSubmatch(s.Command); label != nil {
			reference := referenceIn.FindString(said)
			annotate(t, bundles[label[1]], reference)
			annotate(t, bundles["thief"], strings.Split(reference, ".")[0]+"."+strings.Repeat("0", 32))
		}
	}
}

// TestTryItByHand types what the tour has for typing, in one shell, and compares the output.
func TestTryItByHand(t *testing.T) {
	const heading, end = "Try it by hand", "-- end of the command --"
	page := read(t, "../docs/tour.md")
	_, begin, _ := strings.Cut(page, "## "+heading+"\n")
	_, begin, _ = strings.Cut(begin, "```sh\n")
	begin, _, found := strings.Cut(begin, "```\n")
	steps := transcript.Steps(page, heading)
	if !found || len(steps) < 10 {
		t.Fatalf("the page has %d commands, and before them\n%s", len(steps), begin)
	}
	script := "exec 2>&1 </dev/null\n" + begin
	for _, s := range steps {
		script += s.Command + "\necho '" + end + "'\n"
	}
	bash := exec.Command("bash", "-c", script)
	bash.Dir = t.TempDir()
	bash.Env = append(os.Environ(), "PATH="+filepath.Dir(rig.Binary(t, "gpuledger"))+":"+os.Getenv("PATH"),
		"TMPDIR="+bash.Dir)
	said := strings.Split(rig.Run(bash).Stdout, end+"\n")
	if len(said) != len(steps)+1 {
		t.Fatalf("%d commands print\n%s", len(steps), said)
	}
	for i, s := range steps {
		if !transcript.Agrees(said[i], s.Says) {
			t.Errorf("$ %s\nprints\n%s\nbut the page has\n%s", s.Command, said[i], s.Says)
		}
	}
}

// TestReadmesUsersAreInUsers: `make e2e` types docs/users.md, as real users with Podman and Docker.
// So what the README shows of users has to be that page's story, in its order: those who share a
// GPU, one who takes too much, and one who waits.
func TestReadmesUsersAreInUsers(t *testing.T) {
	story := transcript.Steps(read(t, "../docs/users.md"), "Two share a GPU, a third one waits")
	shown := transcript.Steps(read(t, "../README.md"), "A share of a GPU")
	refused, waits, users := false, false, map[string]bool{}
	for _, s := range shown {
		at := slices.Index(story, s)
		if at < 0 {
			t.Fatalf("%s$ %s\n%s\nis not in docs/users.md, or in another order", s.User, s.Command, s.Says)
		}
		story, users[s.User] = story[at+1:], true
		refused = refused || strings.Contains(s.Says, "refused (")
		waits = waits || strings.Contains(s.Says, "waiting, ")
	}
	if len(users) < 4 || users[""] || !refused || !waits {
		t.Errorf("the README shows %v", shown)
	}
}

var (
	labelled    = regexp.MustCompile(`gpuledger grant .*--label (\w+)`)
	referenceIn = regexp.MustCompile(`g-[a-z]{12}\.[0-9a-f]{32}`)
)

func annotate(t *testing.T, b *rig.Bundle, reference string) {
	t.Helper()
	var spec specs.Spec
	must(t, json.Unmarshal(b.Config(), &spec))
	spec.Annotations = map[string]string{"gpuledger.dev/grant": reference}
	b.WriteSpec(spec)
}

// typist returns a function that runs a command in a shell, in the directory of the bundles. The
// real runtime has its state in the test's directory; everything else is as printed.
func typist(t *testing.T, n *rig.Node) func(command string) string {
	runtime := n.Wrapper()
	functions := fmt.Sprintf("exec 2>&1 </dev/null\ngpuledger() { %s \"$@\"; }\ngpuledger-runtime() { %s "+
		"\"$@\"; }\n",
		rig.Binary(t, "gpuledger"), strings.Join(runtime.Args, " "))
	return func(command string) string {
		bash := exec.Command("bash", "-c", functions+command)
		bash.Dir, bash.Env = filepath.Join(n.Dir, "bundles"), runtime.Env
		return rig.Run(bash).Stdout
	}
}
