package request

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// list writes the kernel's list of sockets, with these lines at its end.
func (s *scene) list(lines string) {
	s.listens()
	list, err := os.ReadFile(s.Path("proc/net/unix"))
	s.Must(err)
	s.Must(os.WriteFile(s.Path("proc/net/unix"), append(list, lines...), 0o644))
}

// listed is a line of a socket that listens.
func listed(path string) string {
	return "0000000000000000: 00000002 00000000 00010000 0001 01 20003 " + path + "\n"
}

// forged is the name of a socket that lists another path: abstract, and with a newline.
func forged(path string) string {
	line := listed("@\n" + listed(path))
	return strings.TrimSuffix(line, "\n")
}

func TestCandidates(t *testing.T) {
	s := newScene(t)
	ours := grant.MPSDir(s.node.Policy.RunDir, "")
	s.Mkdir("run/mps/0a/pipe")
	s.list(listed("/x/a/control") + listed("/x/a/control") + listed("/x//a/./control") +
		listed("@/abstract/control") + listed("control") + listed("/x/other/controls") +
		listed("/var/run/b/control") + listed("/var/running/control") +
		listed(ours+"/0a/pipe/control") + listed(ours+"/forged/pipe/control") +
		listed("/tmp/nvidia-mps/control") + listed("/x/b c/control") + forged("/x/forged/control"))
	sure, others, err := s.facts().pipes.listed()
	s.Must(err)
	if want := append([]string{ours + "/0a/pipe"}, mpsDefaults...); !slices.Equal(sure, want) {
		t.Errorf("sure are %q, want %q", sure, want)
	}
	want := []string{"/x/a", "/run/b", "/var/running", ours + "/forged/pipe", "/x/b c", "/x/forged"}
	if !slices.Equal(others, want) {
		t.Errorf("others are %q, want %q", others, want)
	}
}

// TestAUsersSocketsHideNoDaemon: any user can bind hundreds of thousands of sockets.
func TestAUsersSocketsHideNoDaemon(t *testing.T) {
	for name, hide := range map[string]func(s *scene, daemon string){
		"a list of more than 32 MiB": func(s *scene, daemon string) {
			s.list(strings.Repeat(listed("@"+strings.Repeat("x", 107)), 33<<20/167) + daemon)
		},
		"links to it": func(s *scene, daemon string) {
			lines := ""
			for i := range 2 * maxUsers {
				lines += listed(s.Link("data/mps", fmt.Sprintf("link%d", i)) + "/control")
			}
			s.list(lines + daemon)
		},
		"the same name again and again": func(s *scene, daemon string) {
			s.list(strings.Repeat(daemon, 2*maxListed))
		},
		"sockets of a user": func(s *scene, daemon string) {
			lines := ""
			for i := range maxUsers {
				s.deadMPS(fmt.Sprintf("user/%d", i))
				path := s.Path(fmt.Sprintf("user/%d/control", i))
				s.Must(os.Chown(path, 1000, 1000))
				lines += listed(path)
			}
			s.list(lines + daemon)
		},
		"forged lines": func(s *scene, daemon string) {
			var lines strings.Builder
			for i := range 2 * maxListed {
				lines.WriteString(forged(fmt.Sprintf("/etc/%d/control", i)))
			}
			s.list(lines.String() + daemon)
		},
		"forged lines of our daemons": func(s *scene, daemon string) {
			var lines strings.Builder
			for i := range 2*maxListed + maxRoots {
				lines.WriteString(forged(s.Path(fmt.Sprintf("data/run/mps/%d/pipe/control", i))))
			}
			s.node.Policy.RunDir = s.Path("data/run")
			s.list(lines.String() + daemon)
		},
		"forged lines below the mount": func(s *scene, daemon string) {
			var lines strings.Builder
			for i := range 2 * maxListed {
				lines.WriteString(forged(s.Path(fmt.Sprintf("data/%d/control", i))))
			}
			s.list(lines.String() + daemon)
		},
		"sockets of root in a container": func(s *scene, daemon string) {
			lines := ""
			for i := range 2 * maxUsers {
				s.deadMPS(fmt.Sprintf("user/%d", i))
				lines += listed(s.Path(fmt.Sprintf("user/%d/control", i)))
			}
			s.list(lines + daemon)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			hide(s, listed(s.mps("data/mps")+"/control"))
			s.bind(s.Path("data"), "/x")
			s.wantHits("gpu-socket | mount:/x | T/data | never")
			daemons, listens := s.facts().pipes.directoriesFor(s.Path("data")), 0
			for _, d := range daemons {
				if d.dir == s.Path("data/mps") {
					listens++
				}
			}
			if listens != 1 || len(daemons) > len(mpsDefaults)+2*maxUsers+1 {
				t.Errorf("%d directories, and that of the daemon %d times", len(daemons), listens)
			}
		})
	}
}

// TestNamesOnOtherMountsHideNoDaemon that is on another mount, too, as below a /var of its own.
func TestNamesOnOtherMountsHideNoDaemon(t *testing.T) {
	hostpathtest.OwnMounts(t)
	s := newScene(t)
	s.Must(unix.Mount("tmpfs", s.Mkdir("data"), "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(s.Path("data"), 0) })
	var lines strings.Builder
	for i := range 2 * maxListed {
		lines.WriteString(forged(fmt.Sprintf("/proc/%d/control", i)))
	}
	s.list(lines.String() + listed(s.mps("data/mps")+"/control"))
	s.bind(s.Path("data"), "/x")
	s.wantHits("gpu-socket | mount:/x | T/data | never")
}

// TestLooksAreBounded: however many mounts a container has.
func TestLooksAreBounded(t *testing.T) {
	s := newScene(t)
	s.list("")
	ps := &s.facts().pipes
	ps.seen.daemons = []pipe{{dir: "/proc/1"}}
	ps.seen.walks = maxNames - 3
	for range 9 {
		if ps.daemonBelow("/", false); ps.seen.unlisted != "" {
			break
		}
	}
	if ps.seen.walks != maxNames+1 {
		t.Errorf("%d looks, and %q", ps.seen.walks, ps.seen.unlisted)
	}
	looked := 0
	first, second := ps.atMost(3, &looked, []string{"a", "b"}), ps.atMost(3, &looked, []string{"c", "d"})
	if len(first) != 2 || len(second) != 1 || len(ps.atMost(3, &looked, []string{"e"})) != 0 {
		t.Errorf("%q and %q, %d", first, second, looked)
	}
}

// TestADescriptorNotesWhatWasNotSearched, also at an exec.
func TestADescriptorNotesWhatWasNotSearched(t *testing.T) {
	s := newScene(t)
	s.Mkdir("proc/net/unix")
	path := s.Mkdir("data")
	at, err := host.Resolve(path)
	s.Must(err)
	s.caller.Descriptors = []host.Descriptor{{Number: 3, ResolvedFile: at}}
	for name, find := range map[string]func(Spec, Caller, NodeFacts) (grant.Request, error){
		"create": Find, "exec": FindHanded} {
		r, err := find(s.spec, s.caller, s.node)
		if s.Must(err); len(r.Noted) != 1 || !strings.HasPrefix(r.Noted[0], "not all places were searched") {
			t.Errorf("%s: noted %q", name, r.Noted)
		}
	}
}

// TestTooManyNames: a create looks at a bounded number, at the usual places in any case, and says
// so.
func TestTooManyNames(t *testing.T) {
	was := mpsDefaults
	t.Cleanup(func() { mpsDefaults = was })
	s := newScene(t)
	mpsDefaults = []string{s.mps("nvidia-mps")}
	lines := ""
	for i := range 3 * maxListed {
		lines += forged(fmt.Sprintf("/etc/%d/control", i))
	}
	s.list(lines + listed(s.Path("nvidia-mps/control")))
	s.bind(s.Mkdir("data"), "/x")
	s.wantHits()
	want := []string{"more than 5000 directories have a listening socket called control, by " +
		"/proc/net/unix: not all of them were searched for an MPS daemon"}
	if r := s.find(); !slices.Equal(r.Noted, want) {
		t.Errorf("noted %q", r.Noted)
	}
	s.bind(s.Dir, "/y")
	s.wantHits("gpu-socket | mount:/y | T | never")

	s = newScene(t) // a container without a directory of the host
	s.list(lines)
	if r := s.find(); r.Noted != nil {
		t.Errorf("noted %q", r.Noted)
	}
}

// TestNamesAreBounded: so is the memory that they take.
func TestNamesAreBounded(t *testing.T) {
	s := newScene(t)
	var lines strings.Builder
	for i := range maxNames + 2 {
		lines.WriteString(listed(fmt.Sprintf("/etc/%d/control", i)))
	}
	s.list(lines.String())
	ps := &s.facts().pipes
	_, others, err := ps.listed()
	if len(others) != maxNames || err != nil || ps.seen.unlisted == "" {
		t.Errorf("%d names are kept (%v), and noted %q", len(others), err, ps.seen.unlisted)
	}
	if ps.daemonBelow("/etc", false); len(ps.seen.unseen) > 0 {
		t.Errorf("%d names below the mount were not looked at", len(ps.seen.unseen))
	}
}

// TestAListThatCannotBeRead: then a daemon is found at the usual places and where gpuledger has its
// own, and nothing else is refused.
func TestAListThatCannotBeRead(t *testing.T) {
	was := mpsDefaults
	t.Cleanup(func() { mpsDefaults = was })
	for name, c := range map[string]struct {
		daemon func(s *scene) string // the directory that is mounted
		want   []string
	}{
		"no daemon": {func(s *scene) string { return s.Mkdir("data") }, nil},
		"a daemon at a usual place": {func(s *scene) string {
			mpsDefaults = []string{s.mps("data/nvidia-mps")}
			return s.Path("data")
		}, []string{"gpu-socket | mount:/x | T/data | never"}},
		"a daemon of ours": {func(s *scene) string {
			s.node.Policy.RunDir = s.Path("data/run")
			s.deadMPS("data/run/mps/0a/pipe")
			return s.Path("data")
		}, []string{"gpu-socket | mount:/x | T/data | never"}},
		"the directory itself": {func(s *scene) string { return s.mps("data") },
			[]string{"gpu-socket | mount:/x | T/data | never"}},
	} {
		t.Run(name, func(t *testing.T) {
			mpsDefaults = was
			s := newScene(t)
			s.Mkdir("proc/net/unix")
			s.bind(c.daemon(s), "/x")
			s.wantHits(c.want...)
			noted := s.find().Noted
			if name != "the directory itself" && (len(noted) != 1 ||
				!strings.HasPrefix(noted[0], "not all places were searched for MPS daemons: ")) {
				t.Errorf("noted %q", noted)
			}
		})
	}
	s := newScene(t)
	s.Mkdir("proc/net/unix")
	s.Touch("image")
	s.bind(s.Path("image"), "/x")
	if r := s.find(); r.Noted != nil || len(r.Hits) > 0 {
		t.Errorf("a container without a directory of the host: %q, %v", r.Noted, r.Hits)
	}
}
