package request

import specs "github.com/opencontainers/runtime-spec/specs-go"

// uid is the first process's user as the node counts, -1 where that cannot be told: the namespace maps it to nobody, or is another
// container's.
func (f *finder) uid() int {
	uid := f.spec.Process.User.UID
	if !f.userNamespaced() || f.joinsOurs(specs.UserNamespace) {
		return int(uid)
	}
	for _, m := range f.spec.Linux.UIDMappings {
		if m.ContainerID <= uid && uid-m.ContainerID < m.Size {
			return int(m.HostID + (uid - m.ContainerID))
		}
	}
	return -1
}
