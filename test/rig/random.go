package rig

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// SeedEnv names the variable that repeats the random numbers of an earlier run.
const SeedEnv = "TEST_SEED"

// seed is the one of this run of the test program.
var seed = sync.OnceValues(func() (uint64, error) {
	if text := os.Getenv(SeedEnv); text != "" {
		return strconv.ParseUint(text, 10, 64)
	}
	return uint64(time.Now().UnixNano()), nil
})

// Random is a test's source of random numbers. It prints the seed that repeats them. Each goroutine
// takes one under a name of its own, because a source serves one at a time. What one of them draws
// then does not depend on how fast the others are.
func Random(t testing.TB, name string) *rand.Rand {
	t.Helper()
	n, err := seed()
	if err != nil {
		t.Fatalf("%s: %v", SeedEnv, err)
	}
	t.Logf("%s=%d repeats the random numbers", SeedEnv, n)
	stream := fnv.New64a()
	_, _ = stream.Write([]byte(t.Name() + " " + name))
	return rand.New(rand.NewPCG(n, stream.Sum64()))
}
