package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// Users that every system has, with a name. No process of theirs runs.
const (
	ada = 2 // bin
	bob = 5 // games
	eve = 4242
)

const quotas = `
[[quota]]
user = "bin"
memory = "8GiB"
grants = 4
ttl = "2h"
[[quota]]
user = "5"
memory = "16GiB"
modes = ["limit", "exclusive"]
`

// usersNode is a node with gpuledgerd and quotas, whose directory other users may enter.
func usersNode(t *testing.T, config string) (*rig.Node, *rig.Daemon) {
	t.Helper()
	return usersNodeOf(t, rig.Setup{Config: config})
}

func usersNodeOf(t *testing.T, setup rig.Setup) (*rig.Node, *rig.Daemon) {
	t.Helper()
	dir, err := os.MkdirTemp("", "users-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if !strings.Contains(setup.Config, "[daemon]") {
		setup.Config = busy + setup.Config
	}
	setup.Config += fmt.Sprintf("[users]\nsocket = %q\n", dir+"/users/socket")
	n := rig.NewNode(t, setup)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(n.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(n.Config, 0o644); err != nil {
		t.Fatal(err)
	}
	d := n.Daemon("--nri", "off")
	rig.Eventually(t, "it serves users", func() bool {
		return strings.Contains(d.Log(), "serving the users")
	})
	return n, d
}

// reconfigured replaces a text of the node's configuration. The file is replaced whole, as by
// Node.Write, and users may read it: gpuledgerd would take an empty one for the machine's defaults.
func reconfigured(t *testing.T, n *rig.Node, old, text string) {
	t.Helper()
	before := read(t, n.Config)
	if !strings.Contains(before, old) {
		t.Fatalf("the configuration has no %s:\n%s", old, before)
	}
	draft := n.Config + ".new"
	must(t, os.WriteFile(draft, []byte(strings.Replace(before, old, text, 1)), 0o644),
		os.Chmod(draft, 0o644), os.Rename(draft, n.Config))
}

// commandOf is gpuledger as another user calls it.
func commandOf(n *rig.Node, uid uint32, args ...string) *exec.Cmd {
	program := rig.Binary(n.T, "gpuledger")
	for _, dir := range []string{filepath.Dir(program), filepath.Dir(filepath.Dir(program))} {
		_ = os.Chmod(dir, 0o711)
	}
	cmd := n.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid},
		Pdeathsig: syscall.SIGKILL}
	return cmd
}

func as(n *rig.Node, uid uint32, args ...string) rig.Result {
	return rig.Run(commandOf(n, uid, args...))
}

// endsWith checks a status and what is said.
func endsWith(t *testing.T, r rig.Result, code int, says ...string) rig.Result {
	t.Helper()
	for _, text := range says {
		if !strings.Contains(r.Stdout+r.Stderr, text) {
			t.Errorf("want %q in:\n%s%s", text, r.Stdout, r.Stderr)
		}
	}
	if r.Code != code {
		t.Errorf("status %d, want %d:\n%s%s", r.Code, code, r.Stdout, r.Stderr)
	}
	return r
}

func TestUsersAskWithinTheirQuotas(t *testing.T) {
	n, d := usersNode(t, quotas)
	secretive := n.Grant("--memory", "2GiB", "--label", "for the boss", "--owner", "claim:hidden",
		"--app", "secret-app")
	r := endsWith(t, as(n, ada, "grant", "--memory", "4GiB", "--label", "train", "--app", "adas",
		"--json"), 0)
	var mine struct {
		rig.Listed
		Reference string
		Expires   *time.Time
	}
	if err := json.Unmarshal([]byte(r.Stdout), &mine); err != nil {
		t.Fatal(err)
	}
	if mine.User != ada || mine.Source != grant.ByUser || mine.Expires == nil ||
		!strings.Contains(r.Stdout, `"app": "adas"`) ||
		!strings.Contains(n.Must("grants", "--json"), `"app": "adas"`) {
		t.Errorf("the grant is %+v, %s", mine, r.Stdout)
	}
	// the reference is good, and the container is held to it
	b := n.Bundle("c", rig.Env("GPULEDGER_GRANT="+mine.Reference), rig.Light)
	if r := b.Create(); r.Code != 0 {
		t.Errorf("a container with the reference: %+v", r)
	}
	// others are seen as others
	for _, args := range [][]string{{"inspect", "--details"}, {"inspect", "--json"}, {"gpus", "--json"},
		{"grants", "--json"}, {"mine"}} {
		for _, uid := range []uint32{ada, bob, eve} {
			r := endsWith(t, as(n, uid, args...), 0)
			for _, secret := range []string{"boss", "hidden", "claim", "secret"} {
				if strings.Contains(r.Stdout+r.Stderr, secret) {
					t.Errorf("%v shows user %d %q:\n%s", args, uid, secret, r.Stdout)
				}
			}
			if own := strings.Contains(r.Stdout, "train"); own != (uid == ada) && args[0] != "gpus" &&
				!strings.Contains(r.Stdout, "MEMORY") {
				t.Errorf("%v of user %d says %v of the label:\n%s", args, uid, own, r.Stdout)
			}
		}
	}
	if a, b := n.Must("gpus", "--json"), as(n, bob, "gpus", "--json").Stdout; a != b {
		t.Errorf("root's GPUs and a user's differ:\n%s\n%s", a, b)
	}
	// what a quota does not give
	endsWith(t, as(n, ada, "grant", "--memory", "5GiB"), 3, "refused (quota-exceeded): ",
		`your quota (of user "bin") is 8GiB in all, and 4GiB of it is granted`, "hint: ")
	endsWith(t, as(n, ada, "grant", "--memory", "9GiB"), 3, "is 8GiB in all")
	endsWith(t, as(n, ada, "grant", "--memory", "1GiB", "--ttl", "3h"), 3, "is for 2h0m0s at most")
	endsWith(t, as(n, ada, "grant", "--memory", "1GiB", "--mode", "timeslice"), 3, "is for the modes [limit]")
	endsWith(t, as(n, eve, "grant", "--memory", "1GiB"), 3, "quota-exceeded", "user 4242 has no quota")
	endsWith(t, as(n, bob, "grant", "--memory", "15000MiB", "--gpu", "0"), 5, "no-capacity")
	// what is root's
	for _, args := range [][]string{{"--user", "0"}, {"--user", "2"}, {"--owner", "pod:u/c"},
		{"--for", "namespace:n"}, {"--cdi"}} {
		endsWith(t, as(n, bob, append([]string{"grant", "--memory", "1GiB"}, args...)...), 2, "is root's")
	}
	endsWith(t, as(n, bob, "release", string(mine.ID)), 4, "you have no grant "+string(mine.ID))
	endsWith(t, as(n, bob, "release", string(secretive.ID)), 4, "you have no grant")
	endsWith(t, as(n, ada, "release", "--force", string(mine.ID)), 2, "--force is root's")
	endsWith(t, as(n, ada, "release", string(mine.ID)), 0, "is draining")
	b.KillInit()
	endsWith(t, as(n, ada, "mine"), 0,
		"user bin may have: 8GiB of memory, 4 grants, mode limit, for at most 2h")
	if got := n.Must("audit", "--json"); !strings.Contains(got, `"granted"`) ||
		!strings.Contains(got, `"quota-exceeded"`) {
		t.Errorf("the audit log:\n%s", got)
	}
	d.End(syscall.SIGTERM)
	endsWith(t, as(n, ada, "gpus"), 1, "cannot ask gpuledgerd on")
	n.CheckSound("after users")
}

// TestUsersChangeTheirGrants: as root's --update, within the quota, and no grant of another.
func TestUsersChangeTheirGrants(t *testing.T) {
	n, _ := usersNode(t, quotas)
	of := func(uid uint32, args ...string) grant.ID {
		t.Helper()
		r := endsWith(t, as(n, uid, append([]string{"grant"}, args...)...), 0)
		reference, err := grant.ParseReference(strings.TrimSpace(r.Stdout))
		must(t, err)
		return reference.ID
	}
	mine, other := of(ada, "--memory", "4GiB"), of(bob, "--memory", "1GiB")
	roots := n.Grant("--memory", "1GiB")
	update := func(uid uint32, id grant.ID, args ...string) rig.Result {
		return as(n, uid, append([]string{"grant", "--update", string(id)}, args...)...)
	}
	memoryOf := func(id grant.ID) (memory grant.Bytes) {
		for _, g := range n.Grants() {
			if g.ID == id {
				memory = g.GPUs[0].Memory
			}
		}
		return memory
	}
	// the same words and the same document as root gets
	r := endsWith(t, update(ada, mine, "--memory", "6GiB"), 0, "changed "+string(mine), "6GiB on GPU 0")
	if again := n.Must("grant", "--update", string(mine), "--memory", "6GiB"); again != r.Stdout {
		t.Errorf("a user reads\n%sand root\n%s", r.Stdout, again)
	}
	r = endsWith(t, update(ada, mine, "--compute", "30", "--json"), 0)
	if again := n.Must("grant", "--update", string(mine), "--compute", "30", "--json"); again != r.Stdout {
		t.Errorf("a user reads\n%sand root\n%s", r.Stdout, again)
	}
	// the quota is judged with the new size
	endsWith(t, update(ada, mine, "--memory", "9GiB"), 3, "quota-exceeded", "is 8GiB in all")
	second := of(ada, "--memory", "2GiB")
	endsWith(t, update(ada, second, "--memory", "2049MiB"), 3, "quota-exceeded", "6GiB of it is granted")
	endsWith(t, update(ada, mine, "--memory", "5GiB"), 0)
	endsWith(t, update(ada, second, "--memory", "3GiB"), 0)
	// and its time from when the grant was made
	endsWith(t, update(ada, mine, "--ttl", "1h"), 0, "until ")
	endsWith(t, update(ada, mine, "--ttl", "2h"), 3, "quota-exceeded", "is for 2h0m0s at most")
	endsWith(t, update(ada, mine, "--ttl", "0"), 3, "quota-exceeded", "is for 2h0m0s at most")
	// what root refuses, in root's words
	endsWith(t, update(ada, mine), 2, "say what to change")
	endsWith(t, update(ada, mine, "--label", "x", "--memory", "1GiB"), 2, "--label cannot be changed")
	endsWith(t, update(ada, mine, "--app", "x", "--memory", "1GiB"), 2, "--app cannot be changed")
	endsWith(t, update(bob, other, "--memory", "15900MiB"), 5, "no-capacity")
	// another's grant is not there
	for _, id := range []grant.ID{mine, roots.ID, "g-aaaaaaaaaaaa"} {
		endsWith(t, update(bob, id, "--memory", "16MiB"), 4, "you have no grant "+string(id))
		endsWith(t, update(bob, id, "--ttl", "1ms"), 4, "you have no grant "+string(id))
	}
	endsWith(t, update(eve, mine, "--memory", "1GiB"), 3, "user 4242 has no quota")
	for _, body := range []string{`"memory":17179869184,"user":2`, `"ttl":-1`, `"compute":-1`,
		`"compute":101`, `"memory":0`, `"memory":18446744073709551615`, `"ttl":9223372036854775807`} {
		out := curlAs(n, ada, "POST", "/v1/update", fmt.Sprintf(`{"id":%q,%s}`, mine, body))
		if !strings.Contains(out, `"error"`) {
			t.Errorf("%s: %s", body, out)
		}
	}
	out := curlAs(n, 0, "POST", "/v1/update", fmt.Sprintf(`{"id":%q,"memory":1048576}`, roots.ID))
	if !strings.Contains(out, `has no quota`) {
		t.Errorf("root of a container: %s", out)
	}
	if memoryOf(mine) != 5*grant.GiB || memoryOf(other) != grant.GiB || memoryOf(roots.ID) != grant.GiB {
		t.Errorf("the ledger has %+v", n.Grants())
	}
	// a smaller quota takes nothing away, and keeps nobody from taking less
	reconfigured(t, n, `memory = "8GiB"`, `memory = "1GiB"`)
	rig.Eventually(t, "the quota is smaller", func() bool {
		return update(ada, mine, "--memory", "6GiB").Code == 3
	})
	endsWith(t, update(ada, mine, "--memory", "4GiB"), 0)
	if got := n.Must("audit", "--json"); !strings.Contains(got, `"changed"`) {
		t.Errorf("the audit log:\n%s", got)
	}
	n.CheckSound("after changes")
}

// TestUsersExplain: a user reads the verdict that root reads, and nothing of others.
func TestUsersExplain(t *testing.T) {
	n, d := usersNodeOf(t, rig.Setup{Engine: "containerd",
		Config: quotas + asks("containerd", "total = 50\nmodes = [\"limit\", \"exclusive\"]\n")})
	r := endsWith(t, as(n, ada, "grant", "--memory", "1GiB", "--label", "adas"), 0)
	mine, used := strings.TrimSpace(r.Stdout), strings.TrimSpace(endsWith(t,
		as(n, ada, "grant", "--memory", "1GiB"), 0).Stdout)
	roots := n.Grant("--memory", "3GiB", "--label", "for the boss")
	tied := n.Grant("--memory", "1GiB", "--for", "namespace:hidden")
	starts(t, n.Bundle("holder", rig.Env("GPULEDGER_GRANT="+used)))
	starts(t, n.Bundle("secretive", wants("5GiB")))
	must(t, os.Chmod(n.Dir+"/bundles", 0o755))
	forged := string(roots.ID) + "." + strings.Repeat("0", len(roots.Secret))
	cases := map[string]struct {
		edit rig.Edit
		code int
		says string
	}{
		"no GPU":                    {rig.Env("A=b"), 0, "pass"},
		"all of them":               {rig.Env("NVIDIA_VISIBLE_DEVICES=all"), 3, "refuse"},
		"a device":                  {device("/dev/nvidia0", 195, 0), 3, "refuse"},
		"its own grant":             {rig.Env("GPULEDGER_GRANT=" + mine), 0, "admit by grant g-"},
		"one that a container has":  {rig.Env("GPULEDGER_GRANT=" + used), 3, "grant-in-use"},
		"one that root gave away":   {rig.Env("GPULEDGER_GRANT=" + roots.String()), 0, "admit by grant g-"},
		"one of root's":             {rig.Env("GPULEDGER_GRANT=" + string(roots.ID)), 3, "refuse"},
		"one with a made-up secret": {rig.Env("GPULEDGER_GRANT=" + forged), 3, "refuse"},
		"one that is tied to a pod": {rig.Env("GPULEDGER_GRANT=" + tied.String()), 3, "refuse"},
		"none":                      {rig.Env("GPULEDGER_GRANT=g-aaaaaaaaaaaa"), 3, "grant-not-found"},
		"an ask":                    {wants("2GiB"), 0, "admit: its start would make a grant of "},
		"an ask for a whole GPU":    {rig.Annotation("gpuledger.dev/mode", "exclusive"), 3, "refuse"},
		"privileged":                {rig.Privileged, 3, "refuse"},
		"a cgroup of the engine's":  {together(wants("1GiB"), cgroupsPath("/docker")), 3, "injection-impossible"},
	}
	for name, c := range cases {
		b := n.Bundle(strings.ReplaceAll(name, " ", "-"), c.edit)
		user := endsWith(t, as(n, ada, "explain", "--bundle", b.Dir), c.code, c.says)
		document := as(n, ada, "explain", "--bundle", b.Dir, "--json")
		// an ask has another new id each time
		if root := b.Explain(); root.Stdout != user.Stdout {
			t.Errorf("%s: root reads\n%sand a user\n%s", name, root.Stdout, user.Stdout)
		}
		if root := b.Explain("--json"); root.Stdout != document.Stdout || root.Code != document.Code {
			t.Errorf("%s: root reads\n%sand a user\n%s", name, root.Stdout, document.Stdout)
		}
	}
	// a refusal names the holders to root, and nothing of them to a user
	n.Grant("--memory", "12GiB", "--label", "for the rest")
	b := n.Bundle("too-much", wants("6GiB"))
	if root := b.Explain(); !strings.Contains(root.Stdout, "for the boss") {
		t.Errorf("root reads %s", root.Stdout)
	}
	for _, args := range [][]string{nil, {"--json"}} {
		user := endsWith(t, as(n, eve, append([]string{"explain", "--bundle", b.Dir}, args...)...), 3,
			"no-capacity")
		seen := curlAs(n, eve, "POST", "/v1/explain", fmt.Sprintf(`{"references":[%q,%q,"../x",""]}`, forged,
			roots.ID))
		for _, secret := range []string{"boss", "adas", "secretive", "holder", "hidden", roots.Secret,
			grant.SecretHash(roots.Secret)} {
			if strings.Contains(user.Stdout+user.Stderr+seen, secret) {
				t.Errorf("it shows a user %q:\n%s%s", secret, user.Stdout, seen)
			}
		}
	}
	// what the user cannot read, gpuledgerd does not read in its place
	must(t, os.Chmod(b.Dir+"/config.json", 0o600))
	endsWith(t, as(n, ada, "explain", "--bundle", b.Dir), 1, "permission denied")
	must(t, os.Chmod(b.Dir+"/config.json", 0o644))
	n.Must("disable")
	if root, user := b.Explain(), as(n, ada, "explain", "--bundle", b.Dir); !strings.Contains(user.Stdout,
		"gpuledger is disabled: ") || user.Code != root.Code {
		t.Errorf("root reads\n%sand a user\n%s", root.Stdout, user.Stdout)
	}
	if out := curlAs(n, ada, "POST", "/v1/explain", `{"references":[`+strings.Repeat(`"g-aaaaaaaaaaaa",`, 64)+
		`"g-aaaaaaaaaaaa"]}`); !strings.Contains(out, "too many references") {
		t.Error(out)
	}
	d.End(syscall.SIGTERM)
	endsWith(t, as(n, ada, "explain", "--bundle", b.Dir), 1, "cannot ask gpuledgerd on")
}

func TestQuotaRaces(t *testing.T) {
	n, _ := usersNode(t, quotas)
	var all sync.WaitGroup
	results := make([]rig.Result, 64)
	for i := range results {
		all.Go(func() {
			results[i] = as(n, []uint32{ada, bob}[i%2], "grant", "--memory", "1GiB")
			// too many connections at once are closed
			for results[i].Code == 1 && strings.Contains(results[i].Stderr, "has ended the connection") {
				time.Sleep(20 * time.Millisecond)
				results[i] = as(n, []uint32{ada, bob}[i%2], "grant", "--memory", "1GiB")
			}
		})
	}
	all.Wait()
	granted := map[uint32]int{}
	for i, r := range results {
		if r.Code == 0 {
			granted[[]uint32{ada, bob}[i%2]]++
		} else if r.Code != 3 {
			t.Errorf("%+v", r)
		}
	}
	if granted[ada] != 4 || granted[bob] != 16 { // 4 grants, and 16 of 1GiB
		t.Errorf("granted %v", granted)
	}
	listed := map[uint32]int{}
	for _, g := range n.Grants() {
		listed[g.User]++
	}
	if listed[ada] != 4 || listed[bob] != 16 {
		t.Errorf("the ledger has %v", listed)
	}
}

// waiting is a command that waits in the queue.
type waiting struct {
	cmd *exec.Cmd
	out *lockedBuffer
	end chan error
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func waits(t *testing.T, n *rig.Node, uid uint32, args ...string) *waiting {
	t.Helper()
	w := &waiting{cmd: commandOf(n, uid, append([]string{"grant", "--wait", "10m"}, args...)...),
		out: &lockedBuffer{}, end: make(chan error, 1)}
	if uid == 0 {
		w.cmd.SysProcAttr = nil
	}
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.out
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	go func() { w.end <- w.cmd.Wait() }()
	rig.Eventually(t, "it waits", func() bool { return strings.Contains(w.out.String(), "waiting, ") })
	return w
}

func (w *waiting) granted(t *testing.T) {
	t.Helper()
	select {
	case err := <-w.end:
		if err != nil || !strings.Contains(w.out.String(), "granted g-") {
			t.Fatalf("%v\n%s", err, w.out)
		}
	case <-time.After(time.Minute):
		t.Fatalf("it still waits: %s", w.out)
	}
}

func TestUsersWaitInAFairQueue(t *testing.T) {
	n, d := usersNode(t, "[[quota]]\nuser = \"*\"\n")
	full := []grant.Reference{n.Grant("--memory", "16000MiB"), n.Grant("--memory", "16000MiB")}
	// ada asks twice before bob does, and root comes last
	first := waits(t, n, ada, "--memory", "15000MiB", "--gpu", "0")
	second := waits(t, n, ada, "--memory", "15000MiB", "--gpu", "0")
	third := waits(t, n, bob, "--memory", "15000MiB", "--gpu", "0")
	roots := waits(t, n, 0, "--memory", "15000MiB", "--gpu", "0")
	if !strings.Contains(second.out.String(), "waiting, 2 of 2") ||
		!strings.Contains(third.out.String(), "of 3") {
		t.Errorf("they are told: %s%s", second.out, third.out)
	}
	endsWith(t, as(n, ada, "grant", "--memory", "999GiB", "--wait", "1h"), 5, "no-capacity") // never fits
	endsWith(t, as(n, ada, "grant", "--memory", "4GiB", "--wait", "50ms"), 5, "no-capacity")
	// a request whose client is gone keeps no one waiting
	gone := waits(t, n, bob, "--memory", "15000MiB", "--gpu", "0")
	_ = gone.cmd.Process.Kill()
	<-gone.end
	// kill -9 of the daemon: the requests are sent again, and keep their order within a user
	d.End(syscall.SIGKILL)
	for _, w := range []*waiting{first, second, third, roots} {
		rig.Eventually(t, "it is told", func() bool {
			return strings.Contains(w.out.String(), "gpuledgerd is gone")
		})
	}
	_ = os.Remove(filepath.Join(n.Dir, "gpuledgerd.log"))
	n.Daemon("--nri", "off")
	rig.Eventually(t, "all four wait again", func() bool {
		return strings.HasSuffix(strings.TrimSpace(second.out.String()), "of 4")
	})
	release := func(uid uint32) {
		for _, g := range n.Grants() {
			if g.User == uid && g.GPUs[0].Index == 0 {
				n.Must("release", string(g.ID))
			}
		}
	}
	for _, r := range full {
		n.Must("release", string(r.ID))
	}
	// one of each before ada's second, whoever is first
	users := map[*waiting]uint32{first: ada, third: bob, roots: 0}
	for len(users) > 0 {
		var next *waiting
		rig.Eventually(t, "one of them is granted", func() bool {
			for w := range users {
				if strings.Contains(w.out.String(), "granted g-") {
					next = w
				}
			}
			return next != nil
		})
		next.granted(t)
		if strings.Contains(second.out.String(), "granted g-") {
			t.Fatal("the second request of a user came before the first one of another")
		}
		release(users[next])
		delete(users, next)
	}
	second.granted(t)
	n.CheckSound("after the queue")
}

// TestInterruptedWithItsGrant: a grant that was on its way when its caller was interrupted is
// released, unless its reference was printed.
func TestInterruptedWithItsGrant(t *testing.T) {
	n, _ := usersNode(t, "[[quota]]\nuser = \"*\"\n")
	for _, uid := range []uint32{ada, 0} {
		full := n.Grant("--memory", "16000MiB", "--gpu", "0")
		w := waits(t, n, uid, "--memory", "15000MiB", "--gpu", "0")
		must(t, w.cmd.Process.Signal(syscall.SIGSTOP))
		n.Must("release", string(full.ID))
		rig.Eventually(t, "it is granted", func() bool { return len(n.Grants()) == 1 })
		time.Sleep(100 * time.Millisecond) // for the answer; without it, gpuledgerd takes the grant back
		must(t, w.cmd.Process.Signal(syscall.SIGTERM), w.cmd.Process.Signal(syscall.SIGCONT))
		switch err, said, held := <-w.end, w.out.String(), n.Grants(); {
		case err == nil && len(held) == 1 && strings.Contains(said, "\n"+string(held[0].ID)+"."):
			n.Must("release", string(held[0].ID))
		case err == nil || !strings.Contains(said, "interrupted"):
			t.Errorf("user %d: %v\n%s", uid, err, said)
		}
		holdsNothing(t, n)
	}
}

// TestIgnoredSignalsStayIgnored, as with nohup, for gpuledger and for the program that it runs.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	n, _ := usersNode(t, "[[quota]]\nuser = \"*\"\n")
	for _, uid := range []uint32{0, ada} {
		cmd := commandOf(n, uid, "run", "--memory", "1GiB", "sh", "-c",
			"kill -HUP $$; kill -HUP $PPID; echo finished")
		cmd.Args = append([]string{"sh", "-c", `trap "" HUP; "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		if uid == 0 {
			cmd.SysProcAttr = nil
		}
		endsWith(t, rig.Run(cmd), 0, "finished")
	}
	rig.Eventually(t, "the grants are over", func() bool {
		left, _ := filepath.Glob("/sys/fs/cgroup/*/gpuledger-g-*")
		return len(left)+len(n.Grants()) == 0
	})
}

// TestQuotaOfAQueuedRequest: what counts is the quota when a request is granted, not when it began
// to wait.
func TestQuotaOfAQueuedRequest(t *testing.T) {
	n, _ := usersNode(t, quotas)
	full := n.Grant("--memory", "16000MiB", "--gpu", "0")
	other := waits(t, n, bob, "--memory", "12GiB", "--gpu", "0")
	reconfigured(t, n, `memory = "16GiB"`, `memory = "10GiB"`)
	select {
	case <-other.end:
	case <-time.After(time.Minute):
		t.Fatalf("it still waits: %s", other.out)
	}
	if said := other.out.String(); other.cmd.ProcessState.ExitCode() != 3 ||
		!strings.Contains(said, "quota-exceeded") || !strings.Contains(said, "10GiB") {
		t.Errorf("status %d: %s", other.cmd.ProcessState.ExitCode(), said)
	}
	n.Must("release", string(full.ID))
	for _, g := range n.Grants() {
		t.Errorf("granted: %+v", g)
	}
}

func TestIdleGrantsComeBack(t *testing.T) {
	n, _ := usersNode(t, "[[quota]]\nuser = \"*\"\nidle = \"24h\"\n")
	roots := n.Grant("--memory", "1GiB", "--user", "bin")
	var ids []string
	var bundle *rig.Bundle
	for i := range 2 {
		r := endsWith(t, as(n, ada, "grant", "--memory", "1GiB"), 0)
		reference, err := grant.ParseReference(strings.TrimSpace(r.Stdout))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, string(reference.ID))
		if i == 0 {
			bundle = n.Bundle("c", rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Light)
			if r := bundle.Create(); r.Code != 0 {
				t.Fatalf("%+v", r)
			}
		}
	}
	// only now: on a busy machine a container does not come up in time to use its grant
	reconfigured(t, n, `idle = "24h"`, `idle = "300ms"`)
	rig.Eventually(t, "the unused one is released", func() bool { return n.State(grant.ID(ids[1])) == "" })
	if n.State(grant.ID(ids[0])) != grant.Bound || n.State(roots.ID) != grant.Free {
		t.Error("another grant was released, too")
	}
	bundle.KillInit()
	rig.Eventually(t, "the other one follows its container", func() bool {
		return n.State(grant.ID(ids[0])) == ""
	})
	if n.State(roots.ID) != grant.Free {
		t.Error("what root granted was released, too")
	}
	if got := n.Must("audit", "--json"); !strings.Contains(got, `"idle"`) {
		t.Errorf("the audit log:\n%s", got)
	}
}

func TestHostileUsers(t *testing.T) {
	n, d := usersNode(t, quotas+"[[quota]]\nuser = \"*\"\nmemory = \"1GiB\"\n")
	socket := filepath.Dir(usersSocket(n))
	t.Run("nothing that a client says about itself counts", func(t *testing.T) {
		for _, body := range []string{`"user":2`, `"user":0,"Uid":0`, `"owner":"pod:u/c"`,
			`"for":["namespace:n"]`, `"source":"cli","quota":null,"part":100`} {
			text := fmt.Sprintf(`{"memory":9663676416,"mode":"limit","owner":"bearer","secret":"%032x",%s}`,
				1, body)
			out := curlAs(n, 5000, "POST", "/v1/grant", text)
			if !strings.Contains(out, `"quota-exceeded"`) {
				t.Errorf("%s: %s", body, out)
			}
		}
		if len(n.Grants()) != 0 {
			t.Errorf("granted: %+v", n.Grants())
		}
	})
	t.Run("uids without a name have no quota, and root in a container none", func(t *testing.T) {
		for _, uid := range []uint32{100000, 65534, 0} {
			text := fmt.Sprintf(`{"memory":1048576,"mode":"limit","owner":"bearer","secret":"%032x"}`, uid)
			if out := curlAs(n, uid, "POST", "/v1/grant", text); !strings.Contains(out, `has no quota`) {
				t.Errorf("%d: %s", uid, out)
			}
		}
	})
	t.Run("big bodies, garbage and other methods", func(t *testing.T) {
		for _, c := range []struct{ method, path, body string }{
			{"POST", "/v1/grant", strings.Repeat("x", 1<<20)},
			{"POST", "/v1/grant", `{"names":["` + strings.Repeat("x", 1<<20)},
			{"POST", "/v1/grant", "{}"}, {"POST", "/v1/release", `{"id":"../../../etc/passwd"}`},
			{"DELETE", "/v1/grant", ""}, {"GET", "/v1/../grant", ""}, {"GET", "/v0/view", ""},
		} {
			if out := curlAs(n, ada, c.method, c.path, c.body); strings.Contains(out, `"grant"`) {
				t.Errorf("%s %s: %s", c.method, c.path, out)
			}
		}
	})
	t.Run("a flooded socket answers others", func(t *testing.T) {
		hold := floodAs(t, n, bob, 1000)
		endsWith(t, as(n, ada, "gpus"), 0, "GPU-")
		endsWith(t, as(n, ada, "grant", "--memory", "1GiB"), 0)
		hold()
	})
	t.Run("a thousand waiting requests", func(t *testing.T) {
		n.Must("grant", "--mode", "exclusive", "--gpu", "1")
		stop := askAs(t, n, bob, 1000,
			`{"memory":0,"mode":"exclusive","names":["0"],"owner":"bearer",`+
				`"secret":"%032x","wait":600000000000}`)
		rig.Eventually(t, "the queue is full for him", func() bool {
			r := as(n, ada, "grant", "--memory", "4GiB", "--gpu", "1", "--wait", "100ms")
			return strings.Contains(r.Stderr, "of 17") || strings.Contains(r.Stderr, "of ") && r.Code == 5
		})
		endsWith(t, as(n, ada, "grant", "--memory", "1GiB", "--gpu", "0"), 0)
		stop()
	})
	t.Run("the socket's directory is root's alone", func(t *testing.T) {
		for _, make := range []func() error{
			func() error { return os.Remove(usersSocket(n)) },
			func() error { return os.Rename(usersSocket(n), usersSocket(n)+".mine") },
			func() error { return os.Symlink("/etc/shadow", socket+"/link") },
		} {
			if err := asUserDo(ada, make); err == nil {
				t.Error("a user may change it")
			}
		}
	})
	if log := d.Log(); strings.Contains(log, "panic") {
		t.Error(log)
	}
	n.CheckSound("after hostile users")
}

func usersSocket(n *rig.Node) string {
	text, _ := os.ReadFile(n.Config)
	_, rest, _ := strings.Cut(string(text), "[users]\nsocket = \"")
	path, _, _ := strings.Cut(rest, "\"")
	return path
}

// asUserDo calls a function in a thread of a user. The thread is root's again afterwards: it must
// not end, since the kernel would kill the gpuledgerd that it may have started (prctl(2),
// PR_SET_PDEATHSIG).
func asUserDo(uid int, do func() error) error {
	runtime.LockOSThread()
	if err := setThreadUser(uid); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err := do()
	if back := setThreadUser(0); back != nil {
		return back // and the thread stays locked: it is not root's
	}
	runtime.UnlockOSThread()
	return err
}

// setThreadUser sets the real and the effective user of this thread alone. The saved one stays
// root.
func setThreadUser(uid int) error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), 0); e != 0 {
		return e
	}
	return nil
}

// dialAs connects as a user.
func dialAs(n *rig.Node, uid uint32) (conn net.Conn, err error) {
	err = asUserDo(int(uid), func() (err error) {
		conn, err = net.Dial("unix", usersSocket(n))
		return err
	})
	return conn, err
}

// curlAs sends a request as a user and returns the answer.
func curlAs(n *rig.Node, uid uint32, method, path, body string) string {
	conn, err := dialAs(n, uid)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	r, err := http.NewRequest(method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	go func() { _ = r.Write(conn) }()
	text, _ := io.ReadAll(conn)
	return string(text)
}

// floodAs opens connections as a user and holds those that stay open.
func floodAs(t *testing.T, n *rig.Node, uid uint32, many int) (end func()) {
	t.Helper()
	var all []net.Conn
	for range many {
		if conn, err := dialAs(n, uid); err == nil {
			all = append(all, conn)
			_, _ = conn.Write([]byte("POST /v1/grant HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"))
		}
	}
	if len(all) < many/2 {
		t.Errorf("only %d connections", len(all))
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// askAs sends many requests that wait.
func askAs(t *testing.T, n *rig.Node, uid uint32, many int, format string) (end func()) {
	t.Helper()
	var all []net.Conn
	for i := range many {
		conn, err := dialAs(n, uid)
		if err != nil {
			continue
		}
		all = append(all, conn)
		body := fmt.Sprintf(format, i+1000)
		_, _ = fmt.Fprintf(conn, "POST /v1/grant HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body)
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// TestMineInAContainer: whoever mounts the socket's directory and the program is there what the
// kernel maps its user to. Root of a container is nobody, unless that is a user's own root.
func TestMineInAContainer(t *testing.T) {
	rig.Need(t, "ldd")
	n, _ := usersNode(t, quotas)
	granted := endsWith(t, as(n, ada, "grant", "--memory", "1GiB", "--label", "adas"), 0)
	reference := strings.TrimSpace(granted.Stdout)
	n.Grant("--memory", "2GiB", "--label", "for the boss")
	mounts := func(s *specs.Spec) {
		for source, place := range map[string]string{filepath.Dir(usersSocket(n)): "/run/gpuledger-users",
			rig.Binary(t, "gpuledger"): "/bin/gpuledger"} {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: place, Type: "bind", Source: source,
				Options: []string{"bind", "ro"}})
		}
	}
	as := func(uid uint32) rig.Edit { return func(s *specs.Spec) { s.Process.User.UID = uid } }
	for name, c := range map[string]struct {
		edit rig.Edit
		user int
		mine bool
	}{
		"a user":              {as(ada), ada, true},
		"another user":        {as(bob), bob, false},
		"root of a container": {as(0), 0, false},
		"a user's own root": {func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: ada, Size: 1}}
			s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: ada, Size: 1}}
		}, ada, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := n.Bundle(strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", ""), mounts, c.edit,
				rig.Shell("gpuledger mine --json; gpuledger mine; gpuledger release --force g-aaaaaaaaaaaa"))
			withLibraries(t, b, rig.Binary(t, "gpuledger"))
			r := b.Run()
			var mine struct {
				User   int
				Quota  *struct{ Memory grant.Bytes }
				Grants []rig.Listed
			}
			if err := json.NewDecoder(strings.NewReader(r.Stdout)).Decode(&mine); err != nil {
				t.Fatalf("%v: %+v", err, r)
			}
			if mine.User != c.user || (mine.Quota != nil) != (c.user != 0) ||
				(len(mine.Grants) == 1) != c.mine || strings.Contains(r.Stdout, "boss") ||
				strings.Contains(r.Stdout, "adas") != c.mine {
				t.Errorf("%+v: %+v", mine, r)
			}
			if !strings.Contains(r.Stderr, "--force is root's") {
				t.Errorf("a release by force: %s", r.Stderr)
			}
		})
	}
	t.Run("with podman", func(t *testing.T) {
		n.HideRun()
		b := n.Bundle("podmans")
		withLibraries(t, b, rig.Binary(t, "gpuledger"))
		r := b.PodmanRun(n.Dir+"/none", "gpuledger mine", "--user", fmt.Sprint(ada),
			"--volume", filepath.Dir(usersSocket(n))+":/run/gpuledger-users:ro",
			"--volume", rig.Binary(t, "gpuledger")+":/usr/bin/gpuledger:ro")
		endsWith(t, r, 0, "8GiB of memory", "adas")
	})
	// one that uses the grant sees itself
	b := n.Bundle("user", mounts, as(ada), rig.Env("GPULEDGER_GRANT="+reference), rig.Shell("gpuledger mine"))
	withLibraries(t, b, rig.Binary(t, "gpuledger"))
	endsWith(t, b.Run(), 0, "8GiB of memory", "bound", "user", "adas")
	n.CheckSound("after containers")
}

// withLibraries copies the libraries of a program of the node into a bundle's root file system.
func withLibraries(t *testing.T, b *rig.Bundle, program string) {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	must(t, err)
	must(t, os.MkdirAll(b.Dir+"/rootfs/run/gpuledger-users", 0o755),
		os.WriteFile(b.Dir+"/rootfs/bin/gpuledger", nil, 0o755)) // where a user's own root makes no file
	for _, word := range strings.Fields(string(out)) {
		if !strings.HasPrefix(word, "/") {
			continue
		}
		library, err := os.ReadFile(word)
		must(t, err)
		must(t, os.MkdirAll(filepath.Join(b.Dir, "rootfs", filepath.Dir(word)), 0o755),
			os.WriteFile(filepath.Join(b.Dir, "rootfs", word), library, 0o755))
	}
}
