package hostpath

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

// TestAtWhichMountAPathEnds: mounts are covered by others, at their own place and above.
func TestAtWhichMountAPathEnds(t *testing.T) {
	list := newMountTable([]host.Mount{
		{ID: 20, Parent: 1, Point: "/", Root: "/"},
		{ID: 21, Parent: 20, Point: "/a"}, {ID: 22, Parent: 21, Point: "/a/b"},
		{ID: 23, Parent: 20, Point: "/c/d"}, {ID: 24, Parent: 20, Point: "/c"}, // over it
		{ID: 25, Parent: 21, Point: "/a"},                                      // on it
		{ID: 29, Parent: 20, Point: "/g"}, {ID: 30, Parent: 20, Point: "/g/h"}, // covered by it
		{ID: 26, Parent: 20, Point: "/e"}, {ID: 27, Parent: 26, Point: "/e/f"},
		{ID: 28, Parent: 27, Point: "/e/f"},
	})
	for path, want := range map[string]uint64{"/": 20, "/ab": 20, "/a": 25, "/a/b": 25, "/c/d": 24,
		"/c/d/e": 24, "/e/x": 26, "/e/f": 28, "/e/f/g": 28, "/e/fg": 26, "/g/h": 29} {
		if i := list.at(path); list.list[i].ID != want {
			t.Errorf("%s ends in %+v, want %d", path, list.list[i], want)
		}
	}
	if i := newMountTable([]host.Mount{{ID: 2, Parent: 1, Point: "/a"}}).at("/a"); i != -1 {
		t.Errorf("without a root: %d", i)
	}
}

// TestAListOfMountsThatGoesRound, as one can that is read while it changes, has an end.
func TestAListOfMountsThatGoesRound(t *testing.T) {
	table := newMountTable([]host.Mount{{ID: 20, Parent: 1, Point: "/"}, {ID: 21, Parent: 20, Point: "/a"},
		{ID: 22, Parent: 21, Point: "/a"}, {ID: 21, Parent: 22, Point: "/a"}})
	if got := table.at("/a/b"); got < 1 {
		t.Errorf("a path ends in %d", got)
	}
}

// TestTheRootOfTheListOfMounts is the first mount on "/" that is on none of the list's.
func TestTheRootOfTheListOfMounts(t *testing.T) {
	for name, c := range map[string]struct {
		list []host.Mount
		want int
	}{
		"the one":                    {[]host.Mount{{ID: 20, Parent: 1, Point: "/"}}, 0},
		"the first of two":           {[]host.Mount{{ID: 20, Parent: 1, Point: "/"}, {ID: 30, Parent: 2, Point: "/"}}, 0},
		"not the one over another":   {[]host.Mount{{ID: 30, Parent: 20, Point: "/"}, {ID: 20, Parent: 1, Point: "/"}}, 1},
		"one that is its own parent": {[]host.Mount{{ID: 20, Parent: 20, Point: "/"}}, 0},
		"behind another place":       {[]host.Mount{{ID: 21, Parent: 20, Point: "/a"}, {ID: 20, Parent: 1, Point: "/"}, {ID: 40, Parent: 3, Point: "/"}}, 1},
		"none":                       {[]host.Mount{{ID: 21, Parent: 20, Point: "/a"}}, -1},
		"none, of no mounts":         {nil, -1},
	} {
		if got := newMountTable(c.list).root; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if found := newMountTable(nil).aliases(Place{ResolvedFile: host.ResolvedFile{Path: "/a"}},
		true); found != nil {
		t.Errorf("without mounts there are %+v", found)
	}
	own := newMountTable([]host.Mount{{ID: 20, Parent: 20, Point: "/"}, {ID: 21, Parent: 20, Point: "/a"}})
	if at := own.at("/a/b"); at != 1 {
		t.Errorf("on a root that is its own parent a path ends in %d", at)
	}
}

// TestAliasesInALongList: with thousands of mounts they are not found by going through all of them
// for each. The same is found as if.
func TestAliasesInALongList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) // the same draws at every run
	names := []string{"", "/a", "/a/b", "/ab", "/a/b/c",
		"/var/lib/kubelet/pods/0/v", "/var/lib/kubelet/pods/1/v"}
	name := func() string { return names[random.IntN(len(names))] }
	places, inside := 0, 0
	for range 2000 {
		list := []host.Mount{{ID: 1, Device: 1, Root: "/", Point: "/"}}
		for id := uint64(2); id < 12; id++ {
			above := list[random.IntN(len(list))]
			list = append(list, host.Mount{ID: id, Parent: above.ID, Device: random.Uint64N(3),
				Root: cmp.Or(name(), "/"), Point: Join(above.Point, strings.TrimPrefix(name(), "/"))})
		}
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		source := Place{ResolvedFile: host.ResolvedFile{Path: cmp.Or(name(), "/")}}
		got, want := newMountTable(list).aliases(source, true), plainAliases(list, source)
		if !slices.Equal(got, want) {
			t.Fatalf("%s in\n%+v\nhas\n%+v\nwant\n%+v", source.Path, list, got, want)
		}
		for _, a := range want {
			places++
			if a.Inside {
				inside++
			}
		}
	}
	if places-inside < 100 || inside < 100 {
		t.Errorf("of %d places %d are for what is inside: too few", places, inside)
	}
}

// TestALongListIsSortedForTheQuestion: of thousands of mounts only those are entered in a map that
// can be the answer.
func TestALongListIsSortedForTheQuestion(t *testing.T) {
	const each = 500
	list := []host.Mount{{ID: 1, Device: 1, Root: "/", Point: "/"}}
	for i := range uint64(each) { // on a device each
		list = append(list, host.Mount{ID: 2 + i, Parent: 1, Device: 2 + i, Root: "/",
			Point: fmt.Sprintf("/volumes/%d", i)})
	}
	table := newMountTable(list)
	for name, c := range map[string]struct {
		path   string
		inside bool
	}{
		"a file, for which its own device counts":                      {"/data", false},
		"all volumes, for which only what is mounted elsewhere counts": {"/volumes", true},
	} {
		p := Place{Exists: true, ResolvedFile: host.ResolvedFile{Path: c.path}}
		if n := testing.AllocsPerRun(3, func() { table.aliases(p, c.inside) }); n > 20 {
			t.Errorf("%s: %v allocations for %d mounts", name, n, each)
		}
	}
}

// plainAliases are the same by their definition.
func plainAliases(list []host.Mount, source Place) (found []Alias) {
	mounts := []int{plainAt(list, source.Path)}
	for i, m := range list {
		if m.Point != source.Path && Within(m.Point, source.Path) && plainAt(list, m.Point) == i {
			mounts = append(mounts, i)
		}
	}
	for n, i := range mounts {
		m, inSource := list[i], n > 0
		part := m.Root
		if !inSource {
			part = Join(m.Root, Below(source.Path, m.Point))
		}
		for j, other := range list {
			a := Alias{Place: source, Inside: inSource}
			switch {
			case Within(part, other.Root):
				a.Path = Join(other.Point, Below(part, other.Root))
			case Within(other.Root, part):
				a.Path, a.Inside = other.Point, true
			default:
				continue
			}
			if j == i || other.Device != m.Device || isPrivatePlace(other.Point) ||
				plainAt(list, a.Path) != j || inSource && Within(a.Path, source.Path) {
				continue
			}
			if inSource {
				a.Place = Place{ResolvedFile: host.ResolvedFile{Path: a.Path}, Exists: true}
			}
			found = append(found, a)
		}
	}
	return found
}

// plainAt is the mount in which a path ends: of those below which it is, on the one in which it is
// so far, the first on the way.
func plainAt(list []host.Mount, path string) int {
	here := slices.IndexFunc(list, func(m host.Mount) bool { return m.Parent == 0 })
	for {
		next := -1
		for i, m := range list {
			if m.Parent == list[here].ID && Within(path, m.Point) &&
				(next < 0 || len(m.Point) < len(list[next].Point)) {
				next = i
			}
		}
		if next < 0 {
			return here
		}
		here = next
	}
}
