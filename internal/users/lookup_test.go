package users

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// directory is a node whose users' database is what two scripts say: `id` and `getent`.
func directory(t *testing.T, id, getent string) {
	t.Helper()
	programs(t, id, getent)
	forget := func() {
		names.kept, groups.kept, numbers.kept = nil, nil, nil
	}
	forget()
	t.Cleanup(forget)
}

// programs has two scripts take the place of `id` and `getent`.
func programs(t *testing.T, id, getent string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{"id": id, "getent": getent} {
		if err := os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// withoutHaste is a test on a clock that stands still while programs run: on a busy machine one can
// take longer than lookupTime.
func withoutHaste(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// expire has what is known be too old to be used.
func expire[K comparable](a *answers[K]) {
	for _, one := range a.kept {
		one.until = time.Now().Add(-validFor - usedFor)
	}
}

const (
	fails = "exit 1"
	none  = "exit 2" // getent's: there is no such entry
)

// TestQuotaThatCannotBeKnown: while names or groups cannot be read, a quota that may be the user's
// is not skipped for a larger one after it.
func TestQuotaThatCannotBeKnown(t *testing.T) {
	for name, c := range map[string]struct {
		id, getent string
		first      grant.Quota
		uid        uint32
		want       int // grants of the quota; 0: an error
		says       string
	}{
		"a member":         {"echo 70 80", "echo students:x:80:", grant.Quota{Group: "students"}, 2, 1, ""},
		"not a member":     {"echo 70", "echo students:x:80:", grant.Quota{Group: "students"}, 2, 9, ""},
		"no such group":    {"echo 70", none, grant.Quota{Group: "students"}, 2, 9, ""},
		"no such user":     {"echo 70", none, grant.Quota{User: "erna"}, 2, 9, ""},
		"of the directory": {fails, "echo erna:x:70001:", grant.Quota{User: "erna"}, 70001, 1, ""},
		"groups fail": {fails, "echo students:x:80:", grant.Quota{Group: "students"}, 2, 0,
			"the groups of user bin cannot be read: `id -G`: exit status 1; try again"},
		"groups are no numbers": {"echo 70 x", "echo students:x:80:", grant.Quota{Group: "students"}, 2, 0,
			"the groups of user bin cannot be read"},
		"the group's gid fails": {"echo 70", fails, grant.Quota{Group: "students"}, 2, 0,
			"the groups of this node cannot be read: `getent group`: exit status 1"},
		"the user's uid fails": {"echo 70", fails, grant.Quota{User: "erna"}, 2, 0,
			"the users of this node cannot be read: `getent passwd`: exit status 1"},
		"the name fails": {"echo 70", fails, grant.Quota{Group: "80"}, 70001, 0,
			"the users of this node cannot be read"},
	} {
		t.Run(name, withoutHaste(func(t *testing.T) {
			directory(t, c.id, c.getent)
			c.first.Grants = 1
			q, err := QuotaOf([]grant.Quota{c.first, {User: Anybody, Grants: 9}}, c.uid)
			var unknown *LookupError
			switch {
			case c.want == 0 && (!errors.As(err, &unknown) || !strings.HasPrefix(err.Error(), c.says)):
				t.Errorf("%+v, %v; want %q", q, err, c.says)
			case c.want > 0 && (err != nil || q == nil || q.Grants != c.want):
				t.Errorf("%+v, %v; want %d grants", q, err, c.want)
			}
		}))
	}
}

// lookUps are those of answers in a test: what they find, and how many there were.
type lookUps struct {
	answers[uint32]
	t      *testing.T
	looked int
	finds  string // in words
	err    error
	takes  time.Duration
}

func (l *lookUps) look() ([]string, error) {
	l.looked++
	time.Sleep(l.takes)
	return strings.Fields(l.finds), l.err
}

// wants checks an answer, and how many look-ups there were when those that run have ended. A caller
// that does not wait does not.
func (l *lookUps) wants(wait bool, want string, wantErr error, looks int) {
	l.t.Helper()
	began := time.Now()
	words, err := l.get(1, wait, l.look)
	found := strings.Join(words, " ")
	if took := time.Since(began); !wait && took > 0 {
		l.t.Errorf("a caller that does not wait has waited %s", took)
	}
	synctest.Wait()
	if found != want || !errors.Is(err, wantErr) || l.looked != looks {
		l.t.Errorf("%q, %v after %d look-ups, want %q, %v after %d", found, err, l.looked, want, wantErr,
			looks)
	}
}

// passes lets time pass, and what is due then be done.
func (l *lookUps) passes(long time.Duration) {
	time.Sleep(long)
	synctest.Wait()
}

// TestAnswersAreKept: for a minute, a failure for seconds, and not without bound. Soon after a
// failure, callers do not wait for the next look-up.
func TestAnswersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no answer")
		l := &lookUps{t: t, err: failure}
		l.wants(true, "", failure, 1)
		time.Sleep(failedFor - 1)
		l.wants(true, "", failure, 1)
		time.Sleep(time.Nanosecond)
		l.wants(true, "", failure, 2) // the answer of the first
		time.Sleep(failedFor)
		l.finds, l.err = "erna", nil
		l.wants(true, "", failure, 3)
		l.wants(true, "erna", nil, 3)
		time.Sleep(validFor - 1)
		l.wants(true, "erna", nil, 3)
		l.finds, l.err = "", failure
		time.Sleep(time.Nanosecond)
		l.wants(true, "erna", nil, 4) // while it is read again
		l.wants(true, "erna", failure, 4)
		l.finds, l.err = "otto", nil
		time.Sleep(failedFor + validFor) // too long ago to be repeated
		l.wants(true, "otto", nil, 5)
		l.finds = "erna"
		time.Sleep(validFor + usedFor)
		l.wants(true, "erna", nil, 6)
		for key := range uint32(3 * maxKept) {
			if _, _ = l.get(key, true, l.look); len(l.kept) > maxKept {
				t.Fatalf("%d answers are kept", len(l.kept))
			}
		}
	})
}

// TestNothingFound is an answer for seconds. A caller that does not wait uses it while it is read
// again.
func TestNothingFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lookUps{t: t}
		l.wants(true, "", nil, 1)
		l.passes(failedFor - 1)
		l.wants(true, "", nil, 1)
		l.passes(time.Nanosecond)
		l.wants(false, "", nil, 2)
		l.passes(failedFor)
		l.finds = "erna"
		l.wants(true, "erna", nil, 3)
	})
}

// TestLessThanBefore is a failure for ten minutes, since a directory service may be down. Then it
// is believed. More than before is believed at once.
func TestLessThanBefore(t *testing.T) {
	for name, c := range map[string]struct{ before, now string }{
		"no name":      {"erna", ""},
		"fewer groups": {"70 80 90", "70 80"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lookUps{t: t, finds: c.before}
				l.wants(true, c.before, nil, 1)
				l.passes(validFor + usedFor)
				l.finds = c.now
				l.wants(true, c.before, errLess, 2)
				l.passes(doubtedFor - time.Nanosecond)
				l.wants(true, c.before, errLess, 3)
				l.finds = c.before
				l.passes(doubtedFor)
				l.wants(true, c.before, nil, 4) // the service is there again
				l.passes(validFor + usedFor)
				l.finds = c.now
				l.wants(true, c.before, errLess, 5)
				l.passes(doubtedFor)
				l.wants(true, c.now, nil, 6)
				l.passes(validFor + usedFor)
				l.finds = c.before
				l.wants(true, c.before, nil, 7)
			})
		})
	}
}

// TestNobodyHasToWait: a caller that does not wait gets what is known, whatever a directory service
// does. What it says later is known then.
func TestNobodyHasToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lookUps{t: t, finds: "erna", takes: lookupTime}
		l.wants(false, "", ErrNotYet, 1)
		l.wants(false, "", ErrNotYet, 1)
		l.passes(lookupTime)
		l.wants(false, "erna", nil, 1)
		time.Sleep(validFor + usedFor - 1)
		l.wants(false, "erna", nil, 2) // however slow it is
		l.passes(lookupTime + validFor + usedFor)
		l.err = errors.New("down")
		l.wants(false, "", ErrNotYet, 3) // too old
		l.passes(lookupTime)
		for looks := 3; looks < 9; looks++ {
			l.wants(false, "erna", l.err, looks)
			l.passes(time.Hour)
		}
	})
}

// TestQuotaThatIsNotKnownYet: a caller that must not wait gets an error, and all of the names and
// groups are read meanwhile.
func TestQuotaThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while a program runs
		answers := t.TempDir() + "/answers"
		directory(t, "echo 70 80", "until [ -e "+answers+" ]; do :; done\necho an-entry:x:80:")
		quotas := []grant.Quota{{User: "erna"}, {User: "otto"}, {Group: "students", Grants: 1}}
		if q, err := KnownQuotaOf(quotas, 2); q != nil || !errors.Is(err, ErrNotYet) {
			t.Errorf("%+v, %v; want %v", q, err, ErrNotYet)
		}
		if err := os.WriteFile(answers, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if q, err := KnownQuotaOf(quotas, 2); err != nil || q != &quotas[2] {
			t.Errorf("%+v, %v; want the quota of the group", q, err)
		}
	})
}

// TestDirectoryThatIsDown: glibc's getent says then that there is no such entry. The user's quota
// is not known, and all others have theirs.
func TestDirectoryThatIsDown(t *testing.T) { withoutHaste(directoryThatIsDown)(t) }

func directoryThatIsDown(t *testing.T) {
	directory(t, "exit 1", "case $2 in erna|70001) echo erna:x:70001:;; *) exit 2;; esac")
	quotas := []grant.Quota{{User: "erna", Grants: 1}, {User: Anybody, Grants: 9}}
	has := func(uid uint32, want *grant.Quota) {
		t.Helper()
		if q, err := QuotaOf(quotas, uid); err != nil || q != want {
			t.Errorf("user %d has %+v, %v; want %+v", uid, q, err, want)
		}
	}
	has(70001, &quotas[0])
	has(2, &quotas[1])
	if named, err := IsNamed(70001); !named || err != nil {
		t.Errorf("named %v, %v", named, err)
	}
	programs(t, fails, none)
	expire(&names)
	expire(&numbers)
	has(70001, &quotas[0])
	has(2, &quotas[1])
	quotas = quotas[1:]
	var unknown *LookupError
	if q, err := QuotaOf(quotas, 70001); q != nil || !errors.As(err, &unknown) {
		t.Errorf("%+v, %v; want that it is not known", q, err)
	}
	if named, err := IsNamed(70001); !named || err == nil {
		t.Errorf("named %v, %v; want that of before, and an error", named, err)
	}
}

// TestIsNamedHere: it is not sure of users whom only a directory service may know, and after a
// failure of those who had no name before.
func TestIsNamedHere(t *testing.T) { withoutHaste(namedHere)(t) }

func namedHere(t *testing.T) {
	const erna = 4_000_000_001
	directory(t, fails, fails)
	says := func(uid uint32, named, sure bool) {
		t.Helper()
		if n, s := IsNamedHere(uid); n != named || s != sure {
			t.Errorf("user %d: named %v, sure %v", uid, n, s)
		}
	}
	asks := func(getent string, named, fails bool) {
		t.Helper()
		programs(t, "exit 1", getent)
		expire(&names)
		if n, err := IsNamed(erna); n != named || (err != nil) != fails {
			t.Errorf("%v, %v", n, err)
		}
	}
	says(2, true, true)
	says(erna, false, false)
	asks(fails, false, true)
	says(erna, false, false)
	asks(none, false, false)
	says(erna, false, true)
	asks("echo erna:x:4000000001:", true, false)
	says(erna, true, true)
	asks(fails, true, true)
	says(erna, true, true)
}
