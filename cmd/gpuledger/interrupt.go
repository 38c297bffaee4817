package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
)

// notIgnored returns the signals that this process did not inherit as ignored (nohup). Notify would
// end that, also for its children.
func notIgnored(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(signals, signal.Ignored)
}

// interruptible returns a context that ends with the first of these signals, except those that this
// process ignores.
func interruptible(signals ...os.Signal) (ctx context.Context, stop context.CancelFunc) {
	if signals = notIgnored(signals...); len(signals) == 0 { // to Notify, none means all of them
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}
