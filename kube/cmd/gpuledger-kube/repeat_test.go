package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// repeat retries earlier after an error, limits each pass, and logs no error of a pass that the end
// of the context has ended.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var logged bytes.Buffer
		var passes []time.Duration
		began := time.Now()
		work := repetition{what: "work", interval: time.Hour, retry: time.Second, limit: time.Minute}
		work.do = func(limited context.Context) error {
			passes = append(passes, time.Since(began))
			switch len(passes) {
			case 1:
				return context.Canceled // of a part of the work
			case 2:
				<-limited.Done()
				return limited.Err()
			case 3:
				return nil
			}
			stop()
			return errors.New("stopped")
		}
		repeat(ctx, slog.New(slog.NewTextHandler(&logged, nil)), work)
		want := []time.Duration{0, time.Second, 62 * time.Second, 62*time.Second + time.Hour}
		if !slices.Equal(passes, want) {
			t.Errorf("passes at %v, want %v", passes, want)
		}
		log := logged.String()
		if strings.Count(log, "\n") != 2 || !strings.Contains(log, `msg=work error="context canceled"`) ||
			!strings.Contains(log, `msg=work error="context deadline exceeded"`) {
			t.Errorf("it has logged\n%s\nwant the errors of the first two passes", log)
		}
	})
}
