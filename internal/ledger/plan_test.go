package ledger

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestRepairsOfABindingThatEnds: its links go with it, and a cgroup that it shared gets the link to
// the binding that stays. The plan is a function of the survey, so no file is needed.
func TestRepairsOfABindingThatEnds(t *testing.T) {
	const drop = "drop "
	entry := sample(1)
	for name, c := range map[string]struct {
		alive, dead []string          // cgroups of a binding of each kind
		cgroups     map[string]string // the binding that a cgroup's link leads to
		linked      []string          // bindings that the grant links to
		want        []string
	}{
		"it has no links":             {linked: []string{"alive"}, want: []string{drop + "dead"}},
		"it has its links":            {nil, []string{"/d"}, map[string]string{"/d": "dead"}, []string{"alive", "dead"}, []string{drop + "dead"}},
		"it has no link of a cgroup":  {nil, []string{"/d"}, nil, []string{"alive", "dead"}, []string{drop + "dead"}},
		"it has another's cgroup":     {[]string{"/a"}, []string{"/a"}, map[string]string{"/a": "dead"}, []string{"alive"}, []string{drop + "dead", "link /a alive"}},
		"another has its cgroup":      {[]string{"/a"}, []string{"/a"}, map[string]string{"/a": "alive"}, []string{"alive"}, []string{drop + "dead"}},
		"its cgroup leads elsewhere":  {nil, []string{"/d"}, map[string]string{"/d": "alive"}, []string{"alive"}, []string{drop + "dead", "remove /d"}},
		"the other one has no link":   {want: []string{drop + "dead", "link alive"}},
		"a link to no binding at all": {linked: []string{"alive", "none"}, want: []string{drop + "dead", "remove none"}},
	} {
		f := filesIn("/state", "/run")
		key := func(container string) string { return bindingKey("/root", container) }
		names := map[string]string{} // what a test calls a path or a key
		s := &survey{files: f, grants: map[grant.ID]*grant.Grant{entry.ID: &entry},
			byGrant: map[string][]string{}, cgroups: map[string]string{},
			bindings: map[string]*grant.Binding{
				key("alive"): {Grant: entry.ID, Container: "alive", Life: grant.Alive, Occupies: c.alive},
				key("dead"):  {Grant: entry.ID, Container: "dead", Life: grant.Dead, Occupies: c.dead},
			}}
		for _, container := range []string{"alive", "dead", "none"} {
			names[key(container)] = container
			names[f.bindings.path(key(container))] = container
			names[f.bindings.linksOf(entry.ID)+"/"+key(container)] = container
		}
		for _, cgroup := range []string{"/a", "/d"} {
			names[f.bindings.cgroups.path(cgroup)] = cgroup
		}
		for _, container := range c.linked {
			s.byGrant[string(entry.ID)] = append(s.byGrant[string(entry.ID)], key(container))
		}
		for cgroup, container := range c.cgroups {
			_, link, _ := strings.Cut(f.bindings.cgroups.path(cgroup), "/cgroups/")
			s.cgroups[link] = bindingTarget(key(container))
		}
		for range 20 { // the order of maps does not count
			var p plan
			bindingRepairs(s, &p)
			bindingLinkRepairs(s, &p)
			cgroupLinkRepairs(s, &p)
			var got []string
			for _, r := range p {
				switch {
				case r.binding != "":
					got = append(got, drop+names[r.binding])
				case r.target == "":
					got = append(got, "remove "+names[r.path])
				default:
					words := "link " + names[r.path]
					if strings.HasPrefix(names[r.path], "/") {
						words += " " + names[keyIn(r.target)]
					}
					got = append(got, words)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Fatalf("%s: %q, want %q", name, got, c.want)
			}
		}
	}
}
