package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestBadInputOfTheCommandLine: each mistake has the exit status of the contract and a sentence
// with what to do, and leaves the ledger as it was.
func TestBadInputOfTheCommandLine(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.Grant("--memory", "10GiB", "--gpu", "0", "--compute", "60")
	before := n.Must("grants", "--json")
	for _, c := range []struct {
		args, prints string
		status       int
	}{
		{"grant", "mode limit needs an amount of memory, as 4GiB", 2},
		{"grant --memory 4096", `--memory: cannot read size "4096": want a whole number and a unit`, 2},
		{"grant --memory 4GB", `--memory: cannot read size "4GB"`, 2},
		{"grant --memory 4G", `--memory: cannot read size "4G": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`, 2},
		{"grant --memory 4gib", `--memory: cannot read size "4gib"`, 2},
		{"grant --memory 1.5GiB", `--memory: cannot read size "1.5GiB"`, 2},
		{"grant --memory -1GiB", `--memory: cannot read size "-1GiB"`, 2},
		{"grant --memory +1GiB", `--memory: cannot read size "\+1GiB"`, 2},
		{"grant --memory GiB", `--memory: cannot read size "GiB"`, 2},
		{"grant --memory 0GiB", "needs an amount of memory", 2},
		{"grant --memory 99999999999999999999GiB", "--memory: cannot read size", 2},
		{"grant --memory 17592186044416TiB", "it is too large", 2},
		{"grant --memory 16777215TiB", "cannot grant .* GPU 0 has 5920MiB of 16160MiB free; GPU 1 has 16160MiB", 5},
		{"grant --memory 512KiB", "does not divide evenly in MiB; 1MiB would", 2},
		{"grant --memory 1GiB --gpus 0", "--gpus: want at least 1, not 0", 2},
		{"grant --memory 1GiB --gpus -1", "--gpus: want at least 1, not -1", 2},
		{"grant --memory 1GiB --gpus two", `cannot understand the arguments: --gpus: want a whole number, not "two"; see ` + "`gpuledger grant --help`", 2},
		{"grant --memory 1GiB --gpus 9223372036854775807", "want 1 to 4096 GPUs", 2},
		{"grant --memory 1GiB --gpus 99999999999999999999", `--gpus: "99999999999999999999" is out of range`, 2},
		{"grant --memory 1GiB --gpus 0x1", `--gpus: want a whole number, not "0x1"`, 2},
		{"grant --memory 10MiB --gpus 3", "10MiB over 3 GPUs does not divide evenly in MiB; 12MiB would", 2},
		{"grant --memory 1GiB --compute 101", "--compute: want a percentage from 1 to 100, not 101", 2},
		{"grant --memory 1GiB --compute 0101", "--compute: want a percentage from 1 to 100, not 101", 2},
		{"grant --memory 1GiB --compute 0", "--compute: want a percentage from 1 to 100, not 0", 2},
		{"grant --memory 1GiB --compute -5", "--compute: want a percentage from 1 to 100, not -5", 2},
		{"grant --memory 1GiB --compute 41 --gpu 0", "GPU 0 has 40% of its compute free", 5},
		{"grant --memory 1GiB --gpu 2", `this node has no GPU "2"; it has 0, 1`, 4},
		{"grant --memory 1GiB --gpu GPU-nonsense", `this node has no GPU "GPU-nonsense"`, 4},
		{"grant --memory 6GiB --gpu 0", "cannot grant 6GiB on a GPU in mode limit: GPU 0 has 5920MiB of 16160MiB free", 5},
		{"grant --memory 16161MiB", "GPU 0 has 5920MiB of 16160MiB free; GPU 1 has 16160MiB of 16160MiB free", 5},
		{"grant --memory 1GiB --wait 8d", "--wait: want at most 7d", 2},
		{"grant --memory 1GiB --ttl 0s", "--ttl: want a duration above 0", 2},
		{"grant --memory 1GiB --ttl -1h", "--ttl: want a duration above 0", 2},
		{"grant --memory 1GiB --ttl 5", `--ttl: want a duration with its unit, as 90s, 30m, 12h or 7d, not "5"`, 2},
		{"grant --memory", "cannot understand the arguments: --memory needs a value", 2},
		{"grant --memory 1GiB --json=perhaps", "--json: want true, false or nothing", 2},
		{"release g-aaaaaaaaaaaa --config", "--config needs a value", 2},
		{"grant --memory 1GiB --place best", "--place: want binpack or spread", 2},
		{"grant --memory 1GiB --owner me", `--owner: cannot read owner "me": want pod:UID/CONTAINER, claim:UID or bearer`, 2},
		{"grant --memory 1GiB --owner pod:uid", "--owner: cannot read owner", 2},
		{"grant --memory 1GiB --owner pod:../..", "--owner: cannot read owner", 2},
		{"grant --memory 1GiB --owner claim:", "--owner: cannot read owner", 2},
		{"grant --memory 1GiB --label a\x1b[31m", "--label: want at most 256 bytes of printable text", 2},
		{"grant --memory 1GiB --label a\u009bb", "--label: want", 2},
		{"grant --memory 1GiB --label a\xff", "--label: want", 2},
		{"grant --memory 1GiB --label " + strings.Repeat("x", 257), "--label: want", 2},
		{"grant 4GiB", `cannot understand "4GiB": gpuledger grant takes no arguments`, 2},
		{"inventory simulate --gpus 0 --memory 1GiB --out /dev/null", "cannot simulate 0 GPUs: want 1 to 64", 2},
		{"inventory simulate --gpus 1 --memory 16GB --out /dev/null", "--memory: cannot read size", 2},
		{"inventory simulate --memory 1GiB --out /tmp", "--out: /tmp is a directory; want the name of a file", 2},
		{"inventory simulate --memory 1GiB --out /nosuch/x", "--out: there is no directory /nosuch; make it, or name another file", 2},
		{"cdi generate --output /tmp", "--output: /tmp is a directory", 2},
		{"inventory simulate --memory 1GiB", "--out is needed", 2},
		{"audit --since yesterday", `--since: want a time, as 2026-11-21T19:10:31Z, "2026-11-21 19:10" or 2026-11-21, or how long ago, as 90m, 12h or 7d, not "yesterday"`, 2},
		{"audit --since=-1h", "--since: want a time", 2},
		{"audit --until 2026-13-01", "--until: want a time", 2},
		{"audit --since 1h --until 2h", "--since: want a time before that of --until", 2},
		{"audit --until 1h --follow", "--follow shows what comes: leave --until out", 2},
		{"audit --code no-such-code", `--code: there is no code "no-such-code"; https://github.com/gpuledger/gpuledger/blob/main/docs/refusals.md lists those of refusals, https://github.com/gpuledger/gpuledger/blob/main/docs/daemon.md those of findings`, 2},
		{"audit --grant nonsense.00ff", "--grant: \"nonsense\" is no grant id; `gpuledger grants` lists them", 2},
		{"audit --container=", "--container: want an id", 2},
		{"audit g-aaaaaaaaaaaa", "gpuledger audit takes no arguments", 2},
		{"grant --memory 1GiB --ttl 999999999h", `--ttl: "999999999h" is too large; see`, 2},
		{"grant --memory 99999999999999999999GiB", "it is too large", 2},
		{"grant --update g-aaaaaaaaaaaa --memory 6GiB --wait 1s", "--wait is only for a new grant", 2},
		{"release ../../etc/passwd", `"../../etc/passwd" is no grant id`, 2},
		{"release nonsense.00ff", `"nonsense" is no grant id`, 2},
		{"release nonsense", `"nonsense" is no grant id`, 2},
		{"release g-aaaaaaaaaaaa", "the ledger has no grant g-aaaaaaaaaaaa", 4},
	} {
		t.Run(c.args, func(t *testing.T) {
			n.T = t
			r := n.CLI(strings.Split(c.args, " ")...)
			if r.Code != c.status || !regexp.MustCompile(c.prints).MatchString(r.Stderr) || r.Stdout != "" {
				t.Errorf("status %d, want %d and %q:\n%s%s", r.Code, c.status, c.prints, r.Stdout, r.Stderr)
			}
			wantOrderly(t, r.Stderr)
		})
	}
	n.T = t
	if after := n.Must("grants", "--json"); after != before {
		t.Errorf("the ledger was\n%sand is\n%s", before, after)
	}
}

// wantOrderly wants one sentence, perhaps a hint, and no output of a crashed program.
func wantOrderly(t *testing.T, stderr string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if !strings.HasPrefix(lines[0], "gpuledger: ") || len(lines) > 2 ||
		len(lines) == 2 && !strings.HasPrefix(lines[1], "hint: ") {
		t.Errorf("want a sentence and perhaps a hint, got\n%s", stderr)
	}
	if regexp.MustCompile(`panic|goroutine|[\x00-\x09\x0b-\x1f\x7f]`).MatchString(stderr) {
		t.Errorf("not fit for a terminal: %q", stderr)
	}
}

// TestHelp: every command shows its usage, by a line that can be copied.
func TestHelp(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	for _, command := range []string{"inventory", "inventory refresh", "inventory simulate", "gpus", "grant",
		"grants", "release", "inspect", "explain", "audit", "check", "configure", "configure containerd",
		"configure crio", "configure podman", "configure docker",
		"config", "config check", "completion"} {
		r := n.CLI(append(strings.Split(command, " "), "--help")...)
		_, rest, _ := strings.Cut(r.Stdout, "USAGE:\n   ")
		example, _, _ := strings.Cut(rest, "\n")
		if r.Code != 0 || r.Stderr != "" || !strings.HasPrefix(example, "gpuledger "+command) ||
			strings.Contains(example, "options]") {
			t.Errorf("%s --help: status %d, example %q\n%s", command, r.Code, example, r.Stderr)
		}
		if !strings.Contains(r.Stdout, "--config FILE") {
			t.Errorf("%s takes no --config:\n%s", command, r.Stdout)
		}
	}
}

// TestInspectWatch: an interrupt ends it with status 0.
func TestInspectWatch(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	shell := n.Command("sh", "-c", `"$0" inspect --watch >"$1" & until grep -q Allocated "$1"; do sleep `+
		`0.01; done; kill -TERM $!; wait $!`,
		rig.Binary(t, "gpuledger"), n.Dir+"/watched")
	if r := rig.Run(shell); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestFullDisk: an answer that could not be written is an error; otherwise a reference would be
// lost.
func TestFullDisk(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	for _, args := range []string{"grant --help", "grants", "gpus",
		"inspect --details", "audit", "check", "check --json", "release g-aaaaaaaaaaaa --json",
		"completion bash"} {
		shell := n.Command("sh", append([]string{"-c", `"$0" "$@" >/dev/full`, rig.Binary(t, "gpuledger")},
			strings.Fields(args)...)...)
		if r := rig.Run(shell); r.Code == 0 || !strings.Contains(r.Stderr, "gpuledger: ") {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

// TestUnprintedGrant: a grant whose reference could not be printed is released again, and not
// offered to engines any more.
func TestUnprintedGrant(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	read, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	read.Close()
	for args, stdout := range map[string]*os.File{"grant --memory 1GiB": full,
		"grant --memory 1GiB --json": full, "grant --memory 1GiB --cdi": full,
		"grant --memory 1GiB --owner pod:u/c": closed} {
		var stderr strings.Builder
		cmd := n.Command(rig.Binary(t, "gpuledger"), strings.Fields(args)...)
		cmd.Stdout, cmd.Stderr = stdout, &stderr
		err := cmd.Run()
		want := `gpuledger: cannot print the answer: write /dev/stdout: [a-z ]+; ` +
			`grant g-[a-z2-7]+ is released\n$`
		if cmd.ProcessState.ExitCode() != 1 || !regexp.MustCompile(want).MatchString(stderr.String()) {
			t.Errorf("%s: %v: %s", args, err, &stderr)
		}
		if r := n.CLI("grants"); r.Stdout != "no grants\n" {
			t.Errorf("%s: %s", args, r.Stdout)
		}
		if files, _ := filepath.Glob(n.Dir + "/cdi/*"); len(files) > 0 {
			t.Errorf("%s: %v", args, files)
		}
	}
}
