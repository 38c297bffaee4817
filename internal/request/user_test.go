package request

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/host"
)

// TestUser: an MPS daemon sees the user that a process is on the node.
func TestUser(t *testing.T) {
	own := []specs.LinuxNamespace{{Type: specs.UserNamespace}}
	maps := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 1000},
		{ContainerID: 1000, HostID: 0, Size: 1}}
	for name, c := range map[string]struct {
		uid        uint32
		namespaces []specs.LinuxNamespace
		want       int
	}{
		"root":                            {0, nil, 0},
		"another":                         {1000, nil, 1000},
		"root of a namespace":             {0, own, 100000},
		"the last of a range":             {999, own, 100999},
		"the node's root in a namespace":  {1000, own, 0},
		"nobody there":                    {1001, own, -1},
		"in the node's own by its path":   {7, []specs.LinuxNamespace{{Type: specs.UserNamespace, Path: "/proc/self/ns/user"}}, 7},
		"in one that cannot be looked at": {7, []specs.LinuxNamespace{{Type: specs.UserNamespace, Path: "/nowhere"}}, 100007},
	} {
		f, err := readFacts(Spec{Process: &Process{User: specs.User{UID: c.uid}},
			Linux: &Linux{Namespaces: c.namespaces, UIDMappings: maps}}, Caller{},
			NodeFacts{Host: host.Default(), Majors: host.Default().NVIDIAMajors})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.uid(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
