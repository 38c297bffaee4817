//go:build !failpoint

package host

import "time"

// clock is the machine's.
var clock = time.Now
