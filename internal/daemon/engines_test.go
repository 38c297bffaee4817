package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// TestAChangedDefaultIsReportedOnce: when it is seen twice, once in each log, and once more when it
// ends.
func TestAChangedDefaultIsReportedOnce(t *testing.T) {
	root := t.TempDir()
	config := filepath.Join(root, "etc/containerd/config.toml")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(root, "usr/bin/gpuledger-runtime"), "#!/bin/sh\n")
	write(config, "version = 2\n")
	plan, err := configure.New(configure.Options{Engine: grant.Containerd, Root: root,
		Runtime: "/usr/bin/gpuledger-runtime", Config: policy.DefaultPath, AsDefault: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Apply(); err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	p := policy.Default()
	p.Audit.File = filepath.Join(root, "audit.jsonl")
	n := &node.Node{Policy: p, Host: host.Default()}
	var log bytes.Buffer
	d := &engineManager{node: func() *node.Node { return n }, wait: func() time.Duration { return 0 },
		log: logrus.New(), root: root}
	d.log.SetOutput(&log)
	// reported is what is shown, and how often the logs report a beginning and an end.
	reported := func() string {
		t.Helper()
		d.nextPass = time.Time{}
		err := d.Ensure(context.Background())
		engines, changed, begun := d.State()
		audit, _ := os.ReadFile(p.Audit.File)
		count := func(text string) int { return strings.Count(string(audit), text) }
		if strings.Count(log.String(), "level=warning") != count(`"found"`) ||
			strings.Count(log.String(), "over: ") != count(`"over"`) {
			t.Errorf("the log:\n%s\nthe audit log:\n%s", log.String(), audit)
		}
		return fmt.Sprintf("%v %d standing, %d begun, %d over, failed: %v", engines, len(changed), begun,
			count(`"over"`), err != nil)
	}
	for _, step := range []struct{ text, want string }{
		{string(ours), "[{containerd true}] 0 standing, 0 begun, 0 over, failed: false"},
		{"version = 2\n", "[{containerd true}] 0 standing, 0 begun, 0 over, failed: false"}, // perhaps not yet written
		{string(ours), "[{containerd true}] 0 standing, 0 begun, 0 over, failed: false"},
		{"version = 2\n", "[{containerd true}] 0 standing, 0 begun, 0 over, failed: false"},
		{"version = 2\n", "[{containerd false}] 1 standing, 1 begun, 0 over, failed: false"},
		{"version = 2\n", "[{containerd false}] 1 standing, 1 begun, 0 over, failed: false"},
		{"[", "[{containerd false}] 1 standing, 1 begun, 0 over, failed: true"}, // nothing is known: it stands
		{string(ours), "[{containerd true}] 0 standing, 1 begun, 1 over, failed: false"},
		{"[", "[] 0 standing, 1 begun, 1 over, failed: true"},
		{"version = 2\n", "[{containerd true}] 0 standing, 1 begun, 1 over, failed: false"},
		{"version = 2\n", "[{containerd false}] 1 standing, 2 begun, 1 over, failed: false"},
	} {
		write(config, step.text)
		if got := reported(); got != step.want {
			t.Errorf("after %q: %s, want %s", step.text, got, step.want)
		}
	}
	_, changed, _ := d.State()
	if f := changed[0]; f.Kind != grant.HandlerChanged || f.User.Engine != grant.Containerd ||
		!strings.Contains(f.Message, "/etc/containerd/config.toml names no default handler any more") ||
		!strings.Contains(f.Message, "gpuledger configure containerd --as-default --restart") {
		t.Errorf("%+v", f)
	}
	if err := os.RemoveAll(filepath.Join(root, "var/lib/gpuledger/configure")); err != nil { // undone
		t.Fatal(err)
	}
	if got, want := reported(), "[] 0 standing, 2 begun, 2 over, failed: false"; got != want {
		t.Errorf("undone: %s, want %s", got, want)
	}
}

// TestDefaultsAreReadRarely: and twice within a minute after a change, however long the interval
// is.
func TestDefaultsAreReadRarely(t *testing.T) {
	n := &node.Node{Policy: policy.Default(), Host: host.Default()}
	for _, c := range []struct{ interval, from, to time.Duration }{
		{time.Second, 15 * time.Second, 25 * time.Second}, {time.Minute, 15 * time.Second, 25 * time.Second},
		{10 * time.Millisecond, 0, 5 * time.Second}} {
		d := &engineManager{node: func() *node.Node {
			return n
		}, wait: func() time.Duration { return c.interval }, log: logrus.New(), root: t.TempDir()}
		before := time.Now() // it begins some time after this, and before it has ended
		if err := d.Ensure(context.Background()); err != nil {
			t.Fatal(err)
		}
		longest, shortest := d.nextPass.Sub(before), time.Until(d.nextPass)
		if longest < c.from || shortest > c.to {
			t.Errorf("at an interval of %s it reads again after %s to %s", c.interval, shortest, longest)
		}
	}
}
