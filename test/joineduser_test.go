package test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestAJoinedUserNamespaceIsRecorded: a container that joins a user namespace with the node's root
// in it writes root's files. The namespace counts, not the maps in the spec.
func TestAJoinedUserNamespaceIsRecorded(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		must(t, os.Chmod(n.Dir, 0o755))
		namespace := func(root int) string {
			cmd := exec.Command("sleep", "1000")
			maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: root, Size: 1000}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: maps,
				GidMappings: maps, GidMappingsEnableSetgroups: true}
			must(t, cmd.Start())
			t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			return fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid)
		}
		for id, c := range map[string]struct {
			root     int
			mapped   uint32 // the root id in the spec's maps
			recorded bool
		}{"roots": {0, 0, true}, "others": {100000, 100000, false}, "lies": {0, 100000, true}} {
			t.Run(id, func(t *testing.T) {
				dir := n.Dir + "/" + id
				must(t, os.Mkdir(dir, 0o700), os.MkdirAll(n.Dir+"/bundles", 0o755))
				path := namespace(c.root)
				b := n.Bundle(id, rig.Light, rig.Shell("echo x >/host"+dir+"/written; echo ended"),
					mount(specs.Mount{Type: "bind", Source: "/", Destination: "/host",
						Options: []string{"rbind"}}), func(s *specs.Spec) {
						s.Linux.Namespaces = append(s.Linux.Namespaces,
							specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
						s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: c.mapped, Size: 1000}}
						s.Linux.GIDMappings = s.Linux.UIDMappings
					})
				must(t, os.Chmod(n.Dir+"/bundles", 0o755), os.Chmod(b.Dir, 0o755))
				before, _ := os.ReadFile(n.Dir + "/audit.jsonl")
				r := b.Run()
				after, _ := os.ReadFile(n.Dir + "/audit.jsonl")
				_, err := os.Stat(dir + "/written")
				t.Logf("%+v; written: %v", r, err == nil)
				if err == nil && c.root != 0 {
					t.Error("another user's root writes what the node's root owns")
				}
				if c.root == 0 && c.mapped == 0 && err != nil {
					t.Error("the container did not write, so this test shows nothing")
				}
				if got := strings.Contains(string(after[len(before):]),
					"node-root by mount:/host"); got != c.recorded {
					t.Errorf("recorded %v, want %v", got, c.recorded)
				}
			})
		}
	})
}
