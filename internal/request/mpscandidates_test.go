package request

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
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
			for i := range 2 * maxPipes {
				lines += listed(s.Link("data/mps", fmt.Sprintf("link%d", i)) + "/control")
			}
			s.list(lines + daemon)
		},
		"the same name again and again": func(s *scene, daemon string) {
			s.list(strings.Repeat(daemon, 2*maxListed))
		},
		"sockets of a user": func(s *scene, daemon string) {
			lines := ""
			for i := range maxPipes {
				s.deadMPS(fmt.Sprintf("user/%d", i))
				path := s.Path(fmt.Sprintf("user/%d/control", i))
				s.Must(os.Chown(path, 1000, 1000))
				lines += listed(path)
			}
			s.list(lines + daemon)
		},
		"forged lines": func(s *scene, daemon string) {
			lines := ""
			for i := range maxListed - 1 {
				lines += forged(fmt.Sprintf("/etc/%d/control", i))
			}
			s.list(lines + daemon)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			hide(s, listed(s.mps("data/mps")+"/control"))
			s.bind(s.Path("data"), "/x")
			s.wantHits("gpu-socket | mount:/x | T/data | never")
			daemons, listens := s.facts().pipes.directories(), 0
			for _, d := range daemons {
				if d.dir == s.Path("data/mps") {
					listens++
				}
			}
			if listens != 1 || len(daemons) > maxPipes {
				t.Errorf("%d directories, and that of the daemon %d times", len(daemons), listens)
			}
		})
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
	if _, others, err := s.facts().pipes.listed(); len(others) != maxListed+1 || err != nil {
		t.Errorf("%d names are kept (%v)", len(others), err)
	}
	s.bind(s.Mkdir("data"), "/x")
	s.wantHits()
	want := []string{"more than 1000 directories have a listening socket called control, by " +
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
				!strings.HasPrefix(noted[0], "only the usual places were searched for MPS daemons: ")) {
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
