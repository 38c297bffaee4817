package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
)

// heeded are those signals that this process was not started to ignore, as with nohup. To be
// notified of an ignored signal would end that, for the programs that this one starts, too.
func heeded(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(signals, signal.Ignored)
}

// interruptible is a context that ends with the first of these signals that is heeded.
func interruptible(signals ...os.Signal) (ctx context.Context, stop context.CancelFunc) {
	if signals = heeded(signals...); len(signals) == 0 { // none would mean all of them
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}
