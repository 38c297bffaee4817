package users

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// subuid has a file take the place of /etc/subuid.
func subuid(t *testing.T, text string) *subordinates {
	t.Helper()
	old, path := subuids.path, filepath.Join(t.TempDir(), "subuid")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	subuids.path = path
	t.Cleanup(func() { subuids.path = old })
	return &subuids
}

func TestSubordinateUIDs(t *testing.T) {
	all := subuid(t, "# a comment\nada:100000:65536\n\n1001:300000:1\nbroken:1\nbig:4294967295:4294967295\n")
	for uid, want := range map[uint32]bool{99999: false, 100000: true, 165535: true, 165536: false,
		300000: true, 300001: false, 0: false, 1: false, 1<<32 - 1: true} {
		if all.has(uid) != want {
			t.Errorf("uid %d: %v", uid, !want)
		}
	}
	subuid(t, "ada:400000:1\n")
	if all.has(100000) || !all.has(400000) {
		t.Error("the file has changed, and what it had before is valid still")
	}
}

// TestSubordinateUIDsAreReadOnce while the file does not change.
func TestSubordinateUIDsAreReadOnce(t *testing.T) {
	all := subuid(t, "ada:100000:1\n")
	for !all.stamp.Before(all.read) || len(all.ranges) == 0 { // a change in the same tick would be missed
		all.has(1)
	}
	all.ranges = []uidRange{{7, 8}}
	if !all.has(7) {
		t.Error("the file is read again")
	}
}

// TestSubordinateUIDsTakeNoRoom: a user can have gpuledgerd asked about thousands of uids. What is
// known of others stays, and no directory service is asked about subordinate uids.
func TestSubordinateUIDsTakeNoRoom(t *testing.T) { withoutHaste(subordinateUIDsTakeNoRoom)(t) }

func subordinateUIDsTakeNoRoom(t *testing.T) {
	const erna, first = 70001, 4_000_100_000
	directory(t, fails, "case $2 in 70001) echo erna:x:70001:;; *) exit 1;; esac")
	subuid(t, "ada:4000100000:65536\n")
	for _, uid := range []uint32{erna, first} {
		if named, err := IsNamed(uid); named != (uid == erna) || err != nil {
			t.Errorf("user %d: named %v, %v", uid, named, err)
		}
	}
	for uid := range uint32(2 * maxKept) {
		_, _ = IsNamed(first + uid)
	}
	if named, sure := IsNamedHere(erna); !named || !sure {
		t.Errorf("named %v, sure %v", named, sure)
	}
}

// TestTooManyNames: those that were not used for long are forgotten first.
func TestTooManyNames(t *testing.T) {
	var a answers[int]
	now := time.Now()
	for key := range maxKept {
		a.of(key, now).set([]string{"erna"}, nil, now)
	}
	now = now.Add(validFor + usedFor + 1)
	a.kept[7].set([]string{"erna"}, nil, now)
	a.of(maxKept, now).set([]string{"erna"}, nil, now)
	if len(a.kept) != 2 || a.kept[7] == nil {
		t.Errorf("%d names are kept", len(a.kept))
	}
	for key := range maxKept {
		if a.of(key, now).set([]string{"erna"}, nil, now); len(a.kept) > maxKept || a.kept[key] == nil {
			t.Fatalf("%d names are kept after name %d", len(a.kept), key)
		}
	}
}
