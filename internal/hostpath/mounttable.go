package hostpath

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

// mountTable is the list of mounts, prepared for the questions about it: tenants can have thousands
// mounted.
type mountTable struct {
	list []host.Mount
	root int          // -1 if it is unknown
	on   map[spot]int // of two mounts at one spot the first, as the list has them
}

// spot is where a mount is mounted: on which other one, and at which path.
type spot struct {
	parent uint64
	point  string
}

func newMountTable(list []host.Mount) *mountTable {
	t := &mountTable{list: list, root: -1, on: make(map[spot]int, len(list))}
	for i, m := range list {
		if _, taken := t.on[spot{m.Parent, m.Point}]; !taken && m.ID != m.Parent {
			t.on[spot{m.Parent, m.Point}] = i
		}
		if t.root < 0 && m.Point == "/" && !slices.ContainsFunc(list,
			func(above host.Mount) bool { return above.ID == m.Parent && above.ID != m.ID }) {
			t.root = i
		}
	}
	return t
}

// aliases returns the other places of a file, and with inside those of what is mounted below it,
// too.
func (t *mountTable) aliases(p Place, inside bool) []Alias {
	own := t.at(p.Path)
	if own < 0 {
		return nil
	}
	device := t.list[own].Device
	public := t.public(func(m host.Mount) bool { return m.Device == device })
	found := t.others(own, Join(t.list[own].Root, Below(p.Path, t.list[own].Point)), p, public[device])
	if !inside {
		return found
	}
	// such a place is known by its path
	inSource := func(path string) bool { return host.Within(path, p.Path) }
	public = t.public(func(m host.Mount) bool { return !inSource(m.Point) })
	for i, m := range t.list {
		if m.Point == p.Path || !inSource(m.Point) {
			continue
		}
		for _, a := range t.others(i, m.Root, Place{Exists: true}, public[m.Device]) {
			if a.Inside = true; !inSource(a.Path) && t.at(m.Point) == i {
				found = append(found, a)
			}
		}
	}
	return found
}

// public returns the mounts that are not among what engines make for containers, by device.
func (t *mountTable) public(counts func(host.Mount) bool) map[uint64][]int {
	mounts := map[uint64][]int{}
	for i, m := range t.list {
		if counts(m) && !isPrivatePlace(m.Point) {
			mounts[m.Device] = append(mounts[m.Device], i)
		}
	}
	return mounts
}

// others returns the places at which other mounts show the same part of one mount's file system. It
// searches the mounts of among.
func (t *mountTable) others(own int, part string, p Place, among []int) (found []Alias) {
	for _, i := range among {
		m := t.list[i]
		a := Alias{Place: p}
		switch {
		case i == own:
			continue
		case host.Within(part, m.Root):
			a.Path = Join(m.Point, Below(part, m.Root))
		case host.Within(m.Root, part):
			a.Path, a.Inside = m.Point, true
		default:
			continue
		}
		if t.at(a.Path) == i {
			found = append(found, a)
		}
	}
	return found
}

// at returns the mount in which a real path ends, -1 if it is unknown. It starts at the root and
// enters each mount on the way, because the list also has mounts that another one covers.
func (t *mountTable) at(path string) int {
	here, end := t.root, min(1, len(path))
	for steps := 0; here >= 0 && steps < len(t.list); {
		if next, is := t.on[spot{t.list[here].ID, path[:end]}]; is {
			here = next // and another one may be mounted on this one, at the same path
			steps++
			continue
		}
		if end == len(path) {
			break
		}
		name := path[end+1:] // without its first byte after the root
		if length := strings.IndexByte(name, '/'); length >= 0 {
			end += 1 + length
		} else {
			end = len(path)
		}
	}
	return here
}
