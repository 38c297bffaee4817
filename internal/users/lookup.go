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

// getent returns an entry that package os/user may not find: without cgo it reads only the files of
// /etc, and users may come from a directory service. nil: there is none. A node without getent has
// only the files.
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

// How long an answer is valid, and a failure, and how many are kept.
const (
	validFor  = time.Minute
	failedFor = 5 * time.Second
	maxKept   = 4096
)

// answers are those of look-ups: listings, quotas and connections ask for the same few users again
// and again. Callers that ask for the same at once wait for one look-up. The zero value is empty.
type answers[K comparable, V any] struct {
	mu   sync.Mutex
	kept map[K]*answer[V]
}

type answer[V any] struct {
	mu    sync.Mutex
	until time.Time // it is valid
	asked bool      // again, after a failure
	value V
	err   error
}

// get returns what is known of a key, and looks it up if that is too old. After a failure it does
// so beside: all who wait for a grant would wait for a directory service that does not answer, one
// user after another, again and again.
func (a *answers[K, V]) get(key K, lookUp func() (V, error)) (V, error) {
	one := a.of(key)
	one.mu.Lock()
	defer one.mu.Unlock()
	switch now := time.Now(); {
	case now.Before(one.until):
	case one.err == nil || !now.Before(one.until.Add(validFor)):
		one.set(lookUp())
	case !one.asked:
		one.asked = true
		go func() {
			value, err := lookUp()
			one.mu.Lock()
			defer one.mu.Unlock()
			one.set(value, err)
		}()
	}
	return one.value, one.err
}

func (a *answer[V]) set(value V, err error) {
	long := validFor
	if err != nil {
		long = failedFor
	}
	a.value, a.err, a.until, a.asked = value, err, time.Now().Add(long), false
}

func (a *answers[K, V]) of(key K) *answer[V] {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[key] == nil {
		if a.kept == nil || len(a.kept) >= maxKept { // a user has thousands of subordinate uids
			a.kept = map[K]*answer[V]{}
		}
		a.kept[key] = &answer[V]{}
	}
	return a.kept[key]
}

// last returns what is kept of a key, without waiting for a look-up, and whether that is valid
// still. After a failure the value is V's zero.
func (a *answers[K, V]) last(key K) (value V, valid bool) {
	a.mu.Lock()
	one := a.kept[key]
	a.mu.Unlock()
	if one == nil || !one.mu.TryLock() {
		return value, false
	}
	defer one.mu.Unlock()
	return one.value, time.Now().Before(one.until)
}
