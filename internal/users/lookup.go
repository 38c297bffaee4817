package users

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// lookupTime bounds a look-up in a directory service.
const lookupTime = 2 * time.Second

// LookupError says that the names or groups of users could not be read. So it is not known whether
// there is an entry.
type LookupError struct {
	Subject string // in the plural
	Err     error
}

func (e *LookupError) Error() string {
	return fmt.Sprintf("%s cannot be read: %v; try again, and if it lasts ask the administrator whether "+
		"`id` and `getent` answer on this node", e.Subject, e.Err)
}

func (e *LookupError) Unwrap() error { return e.Err }

// getent returns an entry that the files of /etc do not have: users may come from a directory
// service. nil: there is none. A node without getent has only the files.
func getent(database, key string) ([]string, error) {
	if key == "" || key[0] == '-' {
		return nil, nil
	}
	line, err := output("getent", database, key)
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.As(err, &exit) && exit.ExitCode() == 2:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return strings.Split(strings.TrimSpace(line), ":"), nil
}

// output runs a program for at most lookupTime.
func output(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = lookupTime / 4 // what it has started may hold its output open
	text, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("`%s %s` has not answered within %s", program, args[0], lookupTime)
	case err != nil:
		err = fmt.Errorf("`%s %s`: %w", program, args[0], err)
	}
	return string(text), err
}

// How long an answer is valid that found something, and one that found nothing or failed; how long
// an answer is used while it is read again; and how many are kept.
const (
	validFor  = time.Minute
	failedFor = 5 * time.Second
	usedFor   = 10 * time.Minute
	maxKept   = 4096
)

// doubtedFor is how long an answer is a failure that finds less than the one before. `getent` and
// `id` report no error while a directory service is down: the C library says that there is no
// entry.
const doubtedFor = 10 * time.Minute

// answers are those of look-ups: listings, quotas and connections ask for the same few users again
// and again. Callers that ask for the same at once wait for one look-up. The zero value is empty.
type answers[K comparable] struct {
	mu   sync.Mutex
	kept map[K]*answer
}

// answer is under the mutex of its answers, which is not held during a look-up.
type answer struct {
	found []string // a name, a number or the gids of groups, also after a failure
	err   error
	until time.Time     // it is valid; zero: nothing was read yet
	less  time.Time     // since when less is found; zero: not
	over  chan struct{} // is closed when the look-up that runs has ended; nil: none runs
}

// ErrNotYet: names or groups were never read, or too long ago, and the caller does not wait.
var ErrNotYet = errors.New("they have not been read yet")

var errLess = fmt.Errorf("an entry is missing that was there before; if a directory service is not the "+
	"cause, it counts as removed after %d minutes", doubtedFor/time.Minute)

// get returns what is known of a key; after a failure, what was found before. What is not valid any
// more is looked up again in a goroutine of its own. Meanwhile what was found within usedFor is
// returned, and a failure of the last validFor. The rest is waited for with wait; without, an old
// answer is returned, or ErrNotYet.
func (a *answers[K]) get(key K, wait bool, lookUp func() ([]string, error)) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	one := a.of(key, now)
	if now.Before(one.until) {
		return one.found, one.err
	}
	if one.over == nil {
		one.over = make(chan struct{})
		go a.look(one, lookUp)
	}
	switch {
	case now.Before(one.until.Add(one.usable(wait))):
	case wait:
		over := one.over
		a.mu.Unlock()
		<-over
		a.mu.Lock()
	case one.err == nil:
		return nil, ErrNotYet
	}
	return one.found, one.err
}

// usable is how long an answer is used after it was valid. After a failure all would wait for a
// directory service that does not answer, again and again. That there is no entry may be wrong, or
// not true any more.
func (a *answer) usable(wait bool) time.Duration {
	switch {
	case a.err != nil:
		return validFor
	case len(a.found) == 0 && wait:
		return 0
	}
	return usedFor
}

func (a *answers[K]) look(one *answer, lookUp func() ([]string, error)) {
	found, err := lookUp()
	a.mu.Lock()
	defer a.mu.Unlock()
	one.set(found, err, time.Now())
	close(one.over)
	one.over = nil
}

func (a *answer) set(found []string, err error, now time.Time) {
	if err == nil && len(found) < len(a.found) {
		if a.less.IsZero() {
			a.less = now
		}
		if now.Sub(a.less) < doubtedFor {
			err = errLess
		}
	}
	if err == nil {
		a.found, a.less = found, time.Time{}
	}
	long := validFor
	if err != nil || len(found) == 0 {
		long = failedFor
	}
	a.err, a.until = err, now.Add(long)
}

// of is called with the mutex held.
func (a *answers[K]) of(key K, now time.Time) *answer {
	if one := a.kept[key]; one != nil {
		return one
	}
	if a.kept == nil {
		a.kept = map[K]*answer{}
	}
	if len(a.kept) >= maxKept {
		a.makeRoom(now)
	}
	one := &answer{}
	a.kept[key] = one
	return one
}

// makeRoom forgets keys of which nothing is known, such as a user's thousands of uids, and those
// that are too old to be used. If that is not enough it forgets any quarter of the others.
func (a *answers[K]) makeRoom(now time.Time) {
	for key, one := range a.kept {
		if len(one.found) == 0 || now.After(one.until.Add(usedFor)) {
			delete(a.kept, key)
		}
	}
	for key := range a.kept {
		if len(a.kept) <= maxKept*3/4 {
			return
		}
		delete(a.kept, key)
	}
}

// last returns what was found last of a key, without waiting for a look-up, and whether that is
// valid still.
func (a *answers[K]) last(key K) (found []string, valid bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.kept[key]
	if one == nil {
		return nil, false
	}
	return one.found, one.err == nil && time.Now().Before(one.until)
}
