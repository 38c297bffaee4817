//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// harmless starts ordinary containers, with gpuledger as the default runtime. The real runtime
// must get byte for byte what the engine wrote. To its runtime an init container is an ordinary
// container of the pod that runs earlier.
func harmless(t *testing.T, s *site, cl client) {
	s.forget()
	closed := ""
	for name, c := range map[string]container{
		"busybox":        {},
		"node's pids":    {hostPID: true},
		"node's network": {hostNetwork: true},
		"node's /":       {binds: []bind{{"/", "/mnt"}}},
		"read-only":      {readOnly: true},
		"void":           {env: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		"user namespace": {userns: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			c.name, c.script = named(cl, "harmless "+name), "echo here"
			if why := s.cannot(cl, c); why != "" {
				t.Skip("not shown: " + why)
			}
			r := cl.run(s, c)
			if r.Code != 0 || r.Stdout != "here\n" {
				t.Fatalf("got %+v, want it to run", r)
			}
			if cl.name() == "podman" && c.userns {
				// Podman writes no device rules for it at all. Measured: crun then lets a GPU node
				// be opened, runc does not.
				closed = r.id
				s.onlyClosed(r)
				return
			}
			s.untouched(r)
		})
	}
	s.in(t).allUntouched(closed)
}

// onlyClosed wants the real runtime to have got what the engine wrote, but for a rule before all
// others, which denies all.
func (s *site) onlyClosed(r result) {
	s.T.Helper()
	before, after := s.seen(r.id)
	var was, is specs.Spec
	must(s.T, json.Unmarshal(after, &is))
	if rules := is.Linux.Resources.Devices; len(rules) != 1 ||
		rules[0] != (specs.LinuxDeviceCgroup{Access: "rwm"}) {
		s.T.Errorf("device rules %+v, want one that denies all", rules)
	}
	if s.entry.bare {
		return
	}
	must(s.T, json.Unmarshal(before, &was))
	is.Linux.Resources.Devices = nil
	if !reflect.DeepEqual(was, is) {
		s.T.Errorf("more has changed: the engine wrote\n%s\nand the real runtime got\n%s", before, after)
	}
}

// forget removes the witnesses' records.
func (s *site) forget() {
	for _, when := range []string{"before", "after"} {
		files, _ := filepath.Glob(filepath.Join(s.dir, when, "*.json"))
		for _, file := range files {
			_ = os.Remove(file)
		}
	}
}

// allUntouched checks every container that has started since, with sandboxes, except for one.
func (s *site) allUntouched(except string) {
	files, _ := filepath.Glob(filepath.Join(s.dir, "after", "*.json"))
	if len(files) == 0 {
		s.T.Error("no container has started")
	}
	for _, file := range files {
		if id := strings.TrimSuffix(filepath.Base(file), ".json"); id != except {
			s.untouched(result{id: id})
		}
	}
}

// named is a container's name that every engine takes.
func named(cl client, what string) string {
	return cl.name() + "-" + strings.NewReplacer(" ", "-", "'", "", "/", "root").Replace(what)
}

// privileged starts a privileged container under each of the policies that allow it.
func privileged(t *testing.T, s *site, cl client) {
	t.Run("report", func(t *testing.T) {
		s := s.in(t)
		s.policy(`mode = "report"`)
		r := cl.run(s, container{name: named(cl, "reported"), privileged: true, script: probe})
		// containerd's shim adds its runtime's output to the container's standard error, so the
		// warning comes first.
		if r.Code != 0 || !strings.HasSuffix(r.Stdout, all) {
			t.Fatalf("got %+v, want it to run and to reach everything", r)
		}
		if !s.entry.bare {
			s.untouched(r)
		}
		audit, err := os.ReadFile(s.Dir + "/audit.jsonl")
		must(t, err)
		if lines := strings.Split(strings.TrimSpace(string(audit)),
			"\n"); !strings.Contains(lines[len(lines)-1], string(grant.PrivilegedGPU)) {
			t.Errorf("the audit log ends with %s, want it recorded as %s", lines[len(lines)-1],
				grant.PrivilegedGPU)
		}
	})
	t.Run("strip", func(t *testing.T) {
		s := s.in(t)
		s.policy(`privileged = "strip"`)
		want := nothing
		if s.entry.stripped != nil {
			want = s.entry.stripped(s.engine)
		}
		r := cl.run(s, container{name: named(cl, "stripped"), privileged: true, script: probe})
		if want == "" {
			isRefused(t, r, grant.InjectionImpossible, "")
			return
		}
		if r.Code != 0 || r.Stdout != want {
			t.Fatalf("got %+v, want it to run and to reach nothing:\n%s", r, want)
		}
		if !s.entry.bare {
			s.onlyGPUsRemoved(r)
		}
	})
}

// policy adds to the node's configuration until the test ends.
func (s *site) policy(line string) {
	s.T.Helper()
	before, err := os.ReadFile(s.Config)
	must(s.T, err)
	others, key := string(before), strings.Fields(line)[0]
	if !strings.Contains(others, "[policy]\n") {
		others += "\n[policy]\n"
	}
	others = regexp.MustCompile("(?m)^"+key+" *=.*\n").ReplaceAllString(others, "")
	s.Write("config.toml", strings.Replace(others, "[policy]\n", "[policy]\n"+line+"\n", 1))
	s.T.Cleanup(func() { s.Write("config.toml", string(before)) })
}

// onlyGPUsRemoved wants the real runtime to have got what the engine wrote, but for GPU nodes and
// for device rules.
func (s *site) onlyGPUsRemoved(r result) {
	t := s.T
	t.Helper()
	before, after := s.seen(r.id)
	var was, is specs.Spec
	must(t, json.Unmarshal(before, &was), json.Unmarshal(after, &is))
	was.Linux.Devices = slices.DeleteFunc(was.Linux.Devices,
		func(d specs.LinuxDevice) bool { return strings.HasPrefix(d.Path, "/dev/nvidia") })
	if len(is.Linux.Resources.Devices) < 2 || slices.ContainsFunc(is.Linux.Resources.Devices, opensGPUs) {
		t.Errorf("device rules %+v, want a list that opens no GPU", is.Linux.Resources.Devices)
	}
	was.Linux.Resources.Devices, is.Linux.Resources.Devices = nil, nil
	if !reflect.DeepEqual(was, is) {
		t.Errorf("more than GPUs was removed: the engine wrote\n%s\nand the real runtime got\n%s",
			before, after)
	}
}

func opensGPUs(rule specs.LinuxDeviceCgroup) bool {
	return rule.Allow && rule.Type != "b" && (rule.Major == nil || *rule.Major < 0 || *rule.Major == 195)
}
