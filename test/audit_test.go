package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestAuditAndExplainAgree for each kind of verdict, with one line for each decision.
func TestAuditAndExplainAgree(t *testing.T) {
	for _, c := range []struct {
		name, config string
		edits        func(n *rig.Node) []rig.Edit
	}{
		{"refuse", "", func(*rig.Node) []rig.Edit {
			return []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"),
				inPod("train")}
		}},
		{"refuse in report mode", "[policy]\nmode = \"report\"\n", func(*rig.Node) []rig.Edit {
			return []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Privileged}
		}},
		{"admit", "", func(n *rig.Node) []rig.Edit {
			return []rig.Edit{with(n.Grant("--memory", "1GiB")),
				rig.Env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all")}
		}},
		{"hide", "[policy]\nungranted = \"hide\"\n", func(*rig.Node) []rig.Edit {
			return []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all")}
		}},
		{"adopts nothing", adopts, func(*rig.Node) []rig.Edit {
			return []rig.Edit{inPod("train"), allocated("train", "0", "99GiB")}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: c.config})
			b := n.Bundle("c", c.edits(n)...)
			var explained audited
			must(t, json.Unmarshal([]byte(b.Explain("--json").Stdout), &explained))
			b.Create()
			log := lines(t, n)
			if len(log) != 1 {
				t.Fatalf("%d lines for one decision: %+v", len(log), log)
			}
			explained.Container = "c"
			if explained.Verdict != "admit" {
				explained.Strength = "" // the log has it if the container has a grant
			}
			for _, list := range []*[]string{&explained.Removed, &explained.Recorded} {
				if len(*list) == 0 {
					*list = nil // the log leaves empty lists out
				}
			}
			if len(explained.Details) == 0 {
				explained.Details = nil
			}
			if !reflect.DeepEqual(log[0], explained) {
				t.Errorf("the log has\n%+v\nexplain has\n%+v", log[0], explained)
			}
		})
	}
}

// TestContainersStartWithoutAnAuditLog: whatever is in the log's place, containers start as if it
// could be written.
func TestContainersStartWithoutAnAuditLog(t *testing.T) {
	for _, c := range []struct {
		name    string
		breakIt func(t *testing.T, s *scene, log string)
	}{
		{"its directory is missing and cannot be made", func(t *testing.T, s *scene, log string) {
			s.Write("logs", "")
		}},
		{"its directory is read-only", func(t *testing.T, s *scene, log string) {
			must(t, os.Mkdir(filepath.Dir(log), 0o700))
			rig.ReadOnly(t, filepath.Dir(log))
		}},
		{"the disk is full", func(t *testing.T, s *scene, log string) {
			must(t, os.Mkdir(filepath.Dir(log), 0o700))
			rig.Small(t, filepath.Dir(log))
		}},
		{"a FIFO without a reader", func(t *testing.T, s *scene, log string) {
			must(t, os.Mkdir(filepath.Dir(log), 0o700), syscall.Mkfifo(log, 0o600))
		}},
		{"a FIFO that is full", func(t *testing.T, s *scene, log string) {
			must(t, os.Mkdir(filepath.Dir(log), 0o700), syscall.Mkfifo(log, 0o600))
			f, err := os.OpenFile(log, os.O_RDWR|syscall.O_NONBLOCK, 0)
			must(t, err)
			t.Cleanup(func() { _ = f.Close() })
			fd := int(f.Fd())
			must(t, syscall.SetNonblock(fd, true))
			for page := make([]byte, 4096); err == nil; {
				_, err = syscall.Write(fd, page)
			}
		}},
		{"a link", func(t *testing.T, s *scene, log string) {
			must(t, os.Mkdir(filepath.Dir(log), 0o700), os.Symlink(s.Write("victim", "victim"), log))
			t.Cleanup(func() {
				if got := read(t, s.path("victim")); got != "victim" {
					t.Errorf("what the link leads to: %q", got)
				}
			})
		}},
		{"a directory", func(t *testing.T, s *scene, log string) { must(t, os.MkdirAll(log, 0o700)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			log := s.path("logs/audit.jsonl")
			s.Write("config.toml", strings.Replace(read(t, s.Config), s.path("audit.jsonl"), log, 1))
			c.breakIt(t, s, log)
			s.check(t, "", "visible-devices-all")
		})
	}
}

// TestATenantCannotFillTheLog: a spec with thousands of ways to a GPU is one line of bounded
// length, and the log keeps its size.
func TestATenantCannotFillTheLog(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: ""})
	n.Write("config.toml", read(t, n.Config)+"max_size = \"16KiB\"\nkeep = 2\n")
	var edits []rig.Edit
	for i := range 1000 {
		edits = append(edits, device("/dev/x"+strings.Repeat("y", i), 195, int64(i%200)))
	}
	b := n.Bundle("c", edits...)
	for range 20 {
		isRefused(t, b.Create(), grant.GPUDeviceNode)
	}
	files, _ := filepath.Glob(n.Dir + "/audit.jsonl*")
	if len(files) != 3 {
		t.Errorf("files: %v", files)
	}
	for _, file := range files {
		text := read(t, file)
		if len(text) > 16<<10 {
			t.Errorf("%s has %d bytes", file, len(text))
		}
		for line := range strings.Lines(text) {
			var l struct {
				Code    string
				Details []grant.Detail
				LeftOut int `json:"left_out"`
			}
			must(t, json.Unmarshal([]byte(line), &l))
			if len(line) > 4096 || l.Code != "gpu-device-node" || len(l.Details) == 0 ||
				len(l.Details)+l.LeftOut < 1000 {
				t.Errorf("%d bytes: %s", len(line), line)
			}
		}
	}
}
