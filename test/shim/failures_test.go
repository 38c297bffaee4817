package shim

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// failures lists the failures of earlier proxies of the driver, by their issues (core is HAMi-core,
// hami is HAMi, volcano its device plugin for Volcano), each with the tests of this repository for
// it. without is what only a GPU can show, and why.
var failures = []struct{ issues, failure, tests, without string }{
	{"core #86", "an endless wait for the region's lock",
		"account_test/a_stopped_process_blocks_no_other", ""},
	{"hami #2500, core #260", "a process killed between two fields leaves its lock held",
		"account_test/killed_at_any_moment proxy_test/out_of_memory_reaps_dead_processes_first", ""},
	{"core #248", "a semaphore of the initialisation, held by a dead process",
		"account_test/a_process_killed_at_its_start_blocks_no_other", ""},
	{"core #241 #242", "slots are moved while processes use them", "proxy_test/slots_never_move", ""},
	{"core #282 #227", "two writers of one word", "account_test/a_word_has_one_writer", ""},
	{"core #273", "check, then add: two processes pass the check together",
		"account_test/processes_race account_test/never_more_than_fit", ""},
	{"hami #1662, core #252 #259", "slower with each process",
		"account_test/among_hundreds_an_allocation_makes_no_system_call", ""},
	{"core #191, hami #1181", "free is the total in a second process; free below zero",
		"proxy_test/a_second_process_sees_the_first proxy_test/more_used_than_granted_leaves_nothing_free",
		""},
	{"core #79, hami #446 #1026", "contexts are not counted", "proxy_test/overhead_counts", ""},
	{"core #304, hami #2865", "a context is counted once a call",
		"proxy_test/a_context_is_one_however_often_it_is_retained", ""},
	{"core #169 #172 #187 #188, hami #1764", "cuMemCreate is counted on another device",
		"proxy_test/vmm_memory_is_of_the_device_that_it_names", ""},
	{"hami #1461 #1479 #1219 #1438", "a job on several GPUs hangs",
		"proxy_test/a_job_on_several_gpus_goes_on", ""},
	{"core #93 #217 #306 #311", "pools are not limited, leak, or are another device's",
		"proxy_test/a_pool_is_limited proxy_test/async_frees_leak_nothing " +
			"proxy_test/a_stream_of_another_device", ""},
	{"core #67 #181 #192, hami #1445", "memory of graphs and captures",
		"proxy_test/graph_memory_is_counted_when_it_is_instantiated proxy_test/a_capture_takes_no_memory",
		""},
	{"core #233 #57 #36 #52, hami #1834, Olares #2687", "each release of CUDA breaks it",
		"proxy_test/unknown_symbols_fall_through", ""},
	{"core #279 #315 #215 #326 #174 #175, hami #2903", "an override of dlsym",
		"client/dlsym_is_not_overridden", ""},
	{"core #319 #234 #333", "a subset of the devices is not limited; NULL crashes",
		"proxy_test/visible_devices_are_identified_by_uuid proxy_test/a_subset_of_devices " +
			"proxy_test/null_arguments_are_passed_to_the_driver", ""},
	{"hami #1112 #1090 #2125", "limits in the environment", "client/a_login_that_drops_the_environment", ""},
	{"hami #1346 #2017 #1713 #971", "a library that is not found fails open",
		"client/without_the_driver_nothing_loads proxy_test/without_limits_nothing_starts", ""},
	{"hami #1777 #1803", "a container in the container, and Vulkan",
		"client/without_the_driver_nothing_loads",
		"Vulkan allocates through the kernel's driver, without libcuda; that the shim does not count it, " +
			"and that the node measures it, only a GPU can show"},
	{"hami #753", "the library is replaced under live processes",
		"proxy_test/libraries_that_are_replaced_under_a_live_process", ""},
	{"core #274 #314 #317", "a limit of compute without effect on a large GPU",
		"proxy_test/kernel_launches_are_the_drivers daemon/TestAThrottledGrantHasItsShare",
		"only a GPU can show how much work it does; without a share no launch is wrapped, and the " +
			"experimental throttle goes by the time that NVML reports, for any size of GPU"},
	{"core #104 #37 #76, hami #2863", "shares of compute of other sizes than requested",
		"daemon/TestAThrottledGrantHasItsShare",
		"how exact a share is on a GPU; the stand-in driver runs one kernel after the other"},
	{"core #218", "a driver drops a call", "client/a_call_that_the_driver_dropped", ""},
	{"core #55, volcano #143", "another error than out of memory; a crash without the region",
		"proxy_test/beyond_the_grant_is_out_of_memory proxy_test/without_a_region_nothing_starts", ""},
}

var testName = regexp.MustCompile(`\w+_test/\w+|client/\w+|daemon/\w+`)

// TestEachKnownFailureHasItsTest: each of the 25 names tests that exist. The tests of daemon are Go
// tests of internal/daemon/watcher.
func TestEachKnownFailureHasItsTest(t *testing.T) {
	dir := stage(t, "plain") // programs that are linked with the driver do not start without it
	known := map[string][]string{}
	for _, program := range []string{"account_test", "proxy_test", "client"} {
		out, err := exec.Command(dir+"/bin/"+program, "--list").Output()
		if err != nil {
			t.Fatal(err)
		}
		known[program] = strings.Fields(string(out))
	}
	stories, err := os.ReadFile("../../internal/daemon/watcher/throttled_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(stories), -1) {
		known["daemon"] = append(known["daemon"], m[1])
	}
	if len(failures) != 25 {
		t.Errorf("there are %d failures, of 25", len(failures))
	}
	for _, f := range failures {
		if f.tests == "" && f.without == "" {
			t.Errorf("%s (%s) has neither a test nor a reason why not", f.failure, f.issues)
		}
		for _, test := range testName.FindAllString(f.tests+" "+f.without, -1) {
			if program, name, _ := strings.Cut(test, "/"); !slices.Contains(known[program], name) {
				t.Errorf("%s (%s): there is no %s", f.failure, f.issues, test)
			}
		}
		if named := testName.FindAllString(f.tests, -1); !slices.Equal(named, strings.Fields(f.tests)) {
			t.Errorf("%s: %q are not names of tests", f.failure, f.tests)
		}
	}
}
