package shim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

func except(names ...string) func(string) bool {
	return func(name string) bool {
		for _, n := range names {
			if n == name {
				return false
			}
		}
		return true
	}
}

func only(names ...string) func(string) bool {
	others := except(names...)
	return func(name string) bool { return !others(name) }
}

// throttles are the tests of the variant with the throttle.
var throttles = []string{"each_launch_waits_at_the_gate", "an_open_gate_is_passed",
	"each_resolution_returns_the_wrapper", "a_captured_launch_does_not_wait",
	"each_device_has_its_gate", "errors_are_the_drivers", "a_process_killed_at_the_gate_blocks_no_other"}

func TestLibcuda(t *testing.T) {
	each(t, os.Environ(), stage(t, "plain")+"/bin/proxy_test", except(throttles...))
}

// TestLibcudaWithAThrottle: the variant with the throttle is built from the same sources, and does
// everything else as the other.
func TestLibcudaWithAThrottle(t *testing.T) {
	each(t, os.Environ(), throttled(t, "plain")+"/bin/proxy_test",
		only(append(slices.Clone(throttles), "every_kind_is_counted", "beyond_the_grant_is_out_of_memory",
			"cu_get_proc_address", "unknown_symbols_fall_through",
			"graph_memory_is_counted_when_it_is_instantiated", "a_capture_takes_no_memory", "fork_after_cuda",
			"without_limits_nothing_starts")...))
}

func TestThrottle(t *testing.T) {
	each(t, os.Environ(), stage(t, "plain")+"/bin/throttle_test", nil)
}

func TestLibnvidiaML(t *testing.T) {
	each(t, os.Environ(), stage(t, "plain")+"/bin/nvml_test", nil)
}

func TestAccount(t *testing.T) {
	each(t, os.Environ(), stage(t, "plain")+"/bin/account_test", nil)
}

// otherDrivers are the tests of client for a stage without the usual driver.
var otherDrivers = []string{"without_the_driver_nothing_loads", "a_call_that_the_driver_dropped",
	"a_runtime_newer_than_the_driver"}

// TestClients: the limit holds however a program finds the driver, and in every environment.
func TestClients(t *testing.T) {
	dir := stage(t, "plain")
	for _, tt := range []struct {
		name, program string
		env           []string
	}{
		{"dynamic", "client", os.Environ()},
		{"linked", "client-linked", os.Environ()},
		{"static C library", "client-static", os.Environ()},
		{"no environment", "client", []string{}},
		{"no environment, linked", "client-linked", []string{}},
		{"bound at once", "client", []string{"LD_BIND_NOW=1"}},
		{"what other shims obey", "client", []string{"CUDA_DISABLE_CONTROL=true", "CUDA_DEVICE_MEMORY_LIMIT=99g", "LD_PRELOAD="}},
		{"a preloaded tracer", "client", []string{"LD_PRELOAD=" + dir + "/bin/tracer.so"}},
		{"a preloaded tracer, linked", "client-linked", []string{"LD_PRELOAD=" + dir + "/bin/tracer.so"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			each(t, tt.env, dir+"/bin/"+tt.program, except(otherDrivers...))
		})
	}
}

// TestWithoutADriver: without the real library at its path the proxy does not load, so no program
// runs without a limit.
func TestWithoutADriver(t *testing.T) {
	dir := stage(t, "plain")
	if err := os.Remove("/run/gpuledger/driver/libcuda.so.1"); err != nil {
		t.Fatal(err)
	}
	each(t, os.Environ(), dir+"/bin/client", only(otherDrivers[0]))
	each(t, os.Environ(), dir+"/bin/client-static", only(otherDrivers[0]))
}

// TestWithAnotherDriver: a driver that lacks most of what the proxies wrap.
func TestWithAnotherDriver(t *testing.T) {
	dir := stage(t, "plain")
	sh(t, "cp "+dir+"/bin/older/*.so.1 /run/gpuledger/driver")
	each(t, os.Environ(), dir+"/bin/client", only(otherDrivers[1:]...))
	each(t, os.Environ(), dir+"/bin/client-static", only(otherDrivers[1:]...))
}

// TestNvidiaSMI: nvidia-smi shows the grant.
func TestNvidiaSMI(t *testing.T) {
	dir := stage(t, "plain")
	out, err := command(t, os.Environ(), dir+"/driver/usr/bin/nvidia-smi")
	want := fmt.Sprintf("GPU 0: Stand-in GPU (UUID: %s) 0MiB / 256MiB\nGPU 1: Stand-in GPU (UUID: %s) "+
		"0MiB / 128MiB\n", shares[0].UUID, shares[1].UUID)
	if err != nil || out != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, out, want)
	}
}

// TestStorm kills processes at random times. SHIM_KILLS is how many; make torture sets 500.
func TestStorm(t *testing.T) {
	kills := 60
	if text := os.Getenv("SHIM_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for name, others := range map[string]string{"the first slots": "0", "slots in blocks": "62"} {
		t.Run(name, func(t *testing.T) {
			tap(t, os.Environ(), stage(t, "plain")+"/bin/storm", strconv.Itoa(kills), "8", others)
		})
	}
}

// heavy are the tests that run without a sanitizer only: under a sanitizer, a process of some MiB
// takes some GiB.
var heavy = []string{"sixty_four_processes", "processes_race", "killed_at_any_moment",
	"a_stopped_process_blocks_no_other", "a_process_killed_at_its_start_blocks_no_other",
	"a_word_has_one_writer", "processes_race_in_blocks", "processes_race_in_two_blocks",
	"killed_at_any_moment_in_a_block", "killed_while_it_takes", "killed_while_it_gives",
	"two_take_what_one_can_have", "a_sum_in_the_middle_of_a_change_is_not_kept",
	"a_change_in_the_middle_of_a_sum_is_seen"}

func TestUnderAddressAndUndefinedBehaviourSanitizers(t *testing.T) {
	env := append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1")
	t.Run("account", func(t *testing.T) {
		each(t, env, stage(t, "addresses")+"/bin/account_test", except(heavy...))
	})
	t.Run("libcuda", func(t *testing.T) {
		each(t, env, stage(t, "addresses")+"/bin/proxy_test",
			except(append(slices.Clone(heavy), throttles...)...))
	})
	t.Run("throttle", func(t *testing.T) {
		bin := throttled(t, "addresses") + "/bin"
		each(t, env, bin+"/throttle_test", nil)
		each(t, env, bin+"/proxy_test", only(throttles...))
	})
	t.Run("libnvidia-ml", func(t *testing.T) { each(t, env, stage(t, "addresses")+"/bin/nvml_test", nil) })
}

// TestUnderThreadSanitizer runs without randomised addresses, because gcc 12's sanitizer fails with
// those of newer kernels.
func TestUnderThreadSanitizer(t *testing.T) {
	rig.Need(t, "setarch")
	env := append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1")
	t.Run("account", func(t *testing.T) {
		each(t, env, stage(t, "threads")+"/bin/account_test",
			only("never_more_than_fit", "never_more_than_fit_in_a_block", "tracking_threads"),
			"setarch", "-R")
	})
	t.Run("libcuda", func(t *testing.T) {
		each(t, env, stage(t, "threads")+"/bin/proxy_test", only("threads",
			"threads_create_and_destroy_pools", "a_new_pool_is_not_forgotten_with_an_old_one",
			"a_pool_that_cannot_be_destroyed_counts_once", "the_current_pool_is_destroyed"),
			"setarch", "-R")
	})
}
