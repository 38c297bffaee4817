package main

import (
	"os"
	"strings"
)

// rcuExpedited makes the kernel end RCU grace periods at once (kernel/ksysfs.c). A create waits for
// several of them, each for some milliseconds until the next ticks. What a wrapper adds would
// disappear in that scatter.
const rcuExpedited = "/sys/kernel/rcu_expedited"

// expedite sets rcuExpedited during the benchmark, for all contestants alike. It returns a function
// that restores it. With -rcu-as-is, and on a kernel without the switch, it changes nothing.
func expedite(o options) (restore func()) {
	before, err := os.ReadFile(rcuExpedited)
	if o.rcuAsIs || err != nil || os.WriteFile(rcuExpedited, []byte("1"), 0) != nil {
		return func() {}
	}
	return func() { _ = os.WriteFile(rcuExpedited, before, 0) }
}

func rcu() string {
	if state, _ := os.ReadFile(rcuExpedited); strings.TrimSpace(string(state)) != "" &&
		strings.TrimSpace(string(state)) != "0" {
		return "expedited on all sides (a create waits for them several times, which scatters by more than " +
			"a wrapper adds; -rcu-as-is leaves them)"
	}
	return "as the kernel has them"
}
