package users

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func uidOf(t *testing.T, name string) uint32 {
	t.Helper()
	uid, err := UID(name)
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

func TestTheFirstQuotaThatMatches(t *testing.T) { withoutHaste(theFirstQuotaThatMatches)(t) }

func theFirstQuotaThatMatches(t *testing.T) {
	games, bin := uidOf(t, "games"), uidOf(t, "bin")
	u, err := user.LookupId(strconv.Itoa(int(bin)))
	if err != nil {
		t.Fatal(err)
	}
	group, err := user.LookupGroupId(u.Gid)
	if err != nil {
		t.Fatal(err)
	}
	quotas := []grant.Quota{{User: "no-such-user"}, {Group: "no-such-group"}, {Group: group.Name, Grants: 1},
		{User: "games", Grants: 2}, {User: "4242", Grants: 3}, {User: "daemon", Grants: 4},
		{User: Anybody, Grants: 5}}
	for uid, want := range map[uint32]int{bin: 1, games: 2, 4242: 3, uidOf(t, "daemon"): 4,
		uidOf(t, "sys"): 5, 4243: 0, 100000: 0, 0: 0, overflow: 0} {
		q, err := QuotaOf(quotas, uid)
		if err != nil {
			t.Errorf("user %d: %v", uid, err)
		}
		if got := 0; q != nil {
			got = q.Grants
			if got != want {
				t.Errorf("user %d has quota %d, want %d", uid, got, want)
			}
		} else if want != 0 {
			t.Errorf("user %d has no quota, want %d", uid, want)
		}
	}
	if q, err := QuotaOf([]grant.Quota{{Group: u.Gid}}, games); q != nil || err != nil {
		t.Errorf("a group's quota is that of a stranger: %+v, %v", q, err)
	}
}

// TestNodeWithoutPrograms: without `id` and `getent`, the groups are those of the files of /etc.
func TestNodeWithoutPrograms(t *testing.T) {
	directory(t, fails, fails)
	t.Setenv("PATH", t.TempDir())
	u, err := user.LookupId("2")
	if err != nil {
		t.Fatal(err)
	}
	quotas := []grant.Quota{{Group: "no-such-group"}, {Group: u.Gid}, {User: Anybody}}
	if q, err := QuotaOf(quotas, 2); err != nil || q != &quotas[1] {
		t.Errorf("%+v, %v; want the quota of the user's group", q, err)
	}
}

// TestGroupsInFile: the own group is first, whether or not the file lists the user in it.
func TestGroupsInFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that groups are read from /etc/group is not shown")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
	file := filepath.Join(t.TempDir(), "group")
	text := "bin:x:2:bin\ngames:x:60:\na:x:4001:sys,bin\nb:x:4002:binary\nc:x:4003:bin\n"
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o644), unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(file, "/etc/group", "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	if gids, err := groupsInFile("bin"); err != nil || !slices.Equal(gids, []string{"2", "4001", "4003"}) {
		t.Errorf("%q, %v", gids, err)
	}
	if gids, err := groupsInFile("no-such-user"); err == nil {
		t.Errorf("%q of a user who is not there", gids)
	}
}

func TestNames(t *testing.T) { withoutHaste(namesAndNumbers)(t) }

func namesAndNumbers(t *testing.T) {
	if got := Name(uidOf(t, "games")); got != "games" {
		t.Errorf("games is %q", got)
	}
	if got := Name(424242); got != "424242" {
		t.Errorf("a uid without a name is %q", got)
	}
	for _, name := range []string{"", "-h", "no such user", "4294967295", "-1", "99999999999"} {
		if uid, err := UID(name); err == nil {
			t.Errorf("UID(%q) = %d", name, uid)
		}
	}
}
