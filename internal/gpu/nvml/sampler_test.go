//go:build cgo

package nvml_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	api "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// used gives the mock what a sample needs beyond an inventory: no process runs.
func used(s *server.Server) *server.Server {
	prepare(s)
	s.LookupSymbolFunc = without(memoryV2, cudaV2, "nvmlEventSetCreate")
	for i := range s.Devices {
		d := at(s, i)
		none := func() ([]api.ProcessInfo, api.Return) { return nil, api.SUCCESS }
		d.GetComputeRunningProcessesFunc, d.GetGraphicsRunningProcessesFunc,
			d.GetMPSComputeRunningProcessesFunc = none, none, none
		d.GetMemoryInfoFunc = func() (api.Memory, api.Return) {
			return api.Memory{Total: uint64(40 * grant.GiB), Used: uint64(3 * grant.GiB)}, api.SUCCESS
		}
		d.GetUtilizationRatesFunc = func() (api.Utilization,
			api.Return) {
			return api.Utilization{Gpu: 17}, api.SUCCESS
		}
		d.GetPowerUsageFunc = func() (uint32, api.Return) { return 71_500, api.SUCCESS }
		d.GetTemperatureFunc = func(api.TemperatureSensors) (uint32, api.Return) { return 43, api.SUCCESS }
		d.GetComputeModeFunc = func() (api.ComputeMode,
			api.Return) {
			return api.COMPUTEMODE_DEFAULT, api.SUCCESS
		}
		d.GetProcessUtilizationFunc = func(uint64) ([]api.ProcessUtilizationSample,
			api.Return) {
			return nil, api.ERROR_NOT_FOUND
		}
	}
	return s
}

func sampled(t *testing.T, s *server.Server) grant.Sample {
	t.Helper()
	sampler, err := nvml.NewSampler(s)
	if err != nil {
		t.Fatal(err)
	}
	sample, err := sampler.Sample(machine(t, 0).Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	return sample
}

const noInstance = 0xFFFFFFFF

func process(pid uint32, memory grant.Bytes) api.ProcessInfo {
	return api.ProcessInfo{Pid: pid, UsedGpuMemory: uint64(memory), GpuInstanceId: noInstance,
		ComputeInstanceId: noInstance}
}

func list(infos ...api.ProcessInfo) func() ([]api.ProcessInfo, api.Return) {
	return func() ([]api.ProcessInfo, api.Return) { return infos, api.SUCCESS }
}

// TestSample: a process that is in two lists counts once, and what the driver does not report is
// marked as unknown.
func TestSample(t *testing.T) {
	s := used(dgxa100.New())
	d := at(s, 1)
	d.GetComputeRunningProcessesFunc = list(process(10, grant.GiB), process(11, 2*grant.GiB))
	d.GetGraphicsRunningProcessesFunc = list(process(11, 2*grant.GiB))
	d.GetMPSComputeRunningProcessesFunc = list(api.ProcessInfo{Pid: 12, UsedGpuMemory: 1<<64 - 1,
		GpuInstanceId: noInstance, ComputeInstanceId: noInstance})
	d.GetProcessUtilizationFunc = func(since uint64) ([]api.ProcessUtilizationSample, api.Return) {
		return []api.ProcessUtilizationSample{{Pid: 11, TimeStamp: since + 1, SmUtil: 30},
			{Pid: 11, TimeStamp: since + 2, SmUtil: 20}, {Pid: 10, SmUtil: 4000}}, api.SUCCESS
	}
	sample := sampled(t, s)
	if len(sample.GPUs) != 8 {
		t.Fatalf("%d GPUs", len(sample.GPUs))
	}
	g := sample.GPUs[1]
	want := []grant.ProcessUse{{PID: 10, Memory: grant.GiB}, {PID: 11, Memory: 2 * grant.GiB, Compute: 30},
		{PID: 12, Unmeasured: true}}
	if !reflect.DeepEqual(g.Processes, want) || g.Used != 3*grant.GiB || g.Total != 40*grant.GiB ||
		g.Utilization != 17 || g.Power != 71_500 || g.Temperature != 43 ||
		g.ComputeMode != grant.ComputeDefault || g.Health != grant.Healthy {
		t.Errorf("got %+v", g)
	}
	if first := sample.GPUs[0]; len(first.Processes) != 0 || first.Index != 0 || first.UUID == g.UUID {
		t.Errorf("got %+v", first)
	}
}

// TestPowerAndTemperature: values that the driver does not report, and impossible ones, are left
// out.
func TestPowerAndTemperature(t *testing.T) {
	s := used(dgxa100.New())
	at(s, 0).GetPowerUsageFunc = func() (uint32, api.Return) { return 0, api.ERROR_NOT_SUPPORTED }
	at(s, 1).GetPowerUsageFunc = func() (uint32, api.Return) { return 1<<32 - 1, api.SUCCESS }
	at(s, 2).GetTemperatureFunc = func(api.TemperatureSensors) (uint32, api.Return) {
		return 43, api.ERROR_GPU_IS_LOST
	}
	at(s, 3).GetTemperatureFunc = func(api.TemperatureSensors) (uint32, api.Return) {
		return 1<<32 - 7, api.SUCCESS
	}
	sample := sampled(t, s)
	for i, want := range [][2]int{{0, 43}, {0, 43}, {71_500, 0}, {71_500, 0}, {71_500, 43}} {
		if g := sample.GPUs[i]; [2]int{g.Power, g.Temperature} != want || g.Health != grant.Healthy {
			t.Errorf("GPU %d: %d mW, %d °C, %s; want %v", i, g.Power, g.Temperature, g.Health, want)
		}
	}
}

// TestSampleOfPartitions: a process on a MIG device counts for that device.
func TestSampleOfPartitions(t *testing.T) {
	s := used(dgxa100.New())
	partitioned(at(s, 0), slice("MIG-1", "1g.5gb", 9, 0, api.DeviceAttributes{GpuInstanceSliceCount: 1,
		ComputeInstanceSliceCount: 1, MemorySizeMB: 4864}), slice(
		"MIG-2", "1g.5gb", 7, 0, api.DeviceAttributes{GpuInstanceSliceCount: 1,
			ComputeInstanceSliceCount: 1, MemorySizeMB: 4864}))
	at(s, 0).GetComputeRunningProcessesFunc = list(api.ProcessInfo{Pid: 10, UsedGpuMemory: 5,
		GpuInstanceId: 7}, api.ProcessInfo{Pid: 10, UsedGpuMemory: 6, GpuInstanceId: 9})
	g := sampled(t, s).GPUs[0]
	want := []grant.ProcessUse{{PID: 10, Device: "MIG-2", Memory: 5, Compute: -1},
		{PID: 10, Device: "MIG-1", Memory: 6, Compute: -1}}
	if !reflect.DeepEqual(g.Processes, want) || !reflect.DeepEqual(g.MIG, []string{"MIG-1", "MIG-2"}) {
		t.Errorf("got %+v", g)
	}
}

// TestAnswersThatAreKept: shares of the GPU's time for some seconds, unless fresh ones are wanted;
// that a GPU is not in MIG mode until a process runs on a MIG device, or for as long.
func TestAnswersThatAreKept(t *testing.T) {
	s := used(dgxa100.New())
	d := at(s, 0)
	var asked, modes int
	d.GetProcessUtilizationFunc = func(uint64) ([]api.ProcessUtilizationSample, api.Return) {
		asked++
		return []api.ProcessUtilizationSample{{Pid: 10, TimeStamp: uint64(asked), SmUtil: uint32(asked)}},
			api.SUCCESS
	}
	d.GetMigModeFunc = func() (int, int, api.Return) {
		modes++
		return api.DEVICE_MIG_DISABLE, api.DEVICE_MIG_DISABLE, api.SUCCESS
	}
	d.GetComputeRunningProcessesFunc = list(process(10, grant.GiB))
	sampler, err := nvml.NewSampler(s)
	if err != nil {
		t.Fatal(err)
	}
	now := machine(t, 0).Now()
	for i, c := range []struct {
		after        time.Duration
		fresh        bool
		share, modes int
	}{{0, false, 1, 1}, {time.Second, false, 1, 1}, {time.Second, true, 2, 1}, {2 * time.Second, false, 2, 1},
		{2 * time.Second, false, 2, 2}, {time.Second, false, 3, 2}, {-time.Hour, false, 4, 3},
		{5 * time.Second, false, 5, 4}} {
		now = now.Add(c.after)
		sample, err := sampler.Sample(now, c.fresh)
		if err != nil || sample.GPUs[0].Processes[0].Compute != c.share || modes != c.modes {
			t.Errorf("%d: %+v, its mode was asked %d times (%v)", i, sample.GPUs[0].Processes, modes, err)
		}
	}
	d.GetComputeRunningProcessesFunc = list(api.ProcessInfo{Pid: 10, UsedGpuMemory: 5, GpuInstanceId: 7})
	if _, err := sampler.Sample(now, false); err != nil || modes != 5 {
		t.Errorf("a process runs on a MIG device, and the mode was asked %d times (%v)", modes, err)
	}
}

// TestSampleOfSickGPUs: a GPU that does not answer does not keep the others from being reported.
func TestSampleOfSickGPUs(t *testing.T) {
	s := used(dgxa100.New())
	sampler, err := nvml.NewSampler(s)
	if err != nil {
		t.Fatal(err)
	}
	now := machine(t, 0).Now()
	before, err := sampler.Sample(now, true)
	if err != nil {
		t.Fatal(err)
	}
	at(s, 2).GetMemoryInfoFunc = func() (api.Memory,
		api.Return) {
		return api.Memory{}, api.ERROR_GPU_IS_LOST
	}
	at(s, 3).GetComputeRunningProcessesFunc = func() ([]api.ProcessInfo,
		api.Return) {
		return nil, api.ERROR_UNKNOWN
	}
	at(s, 3).GetGraphicsRunningProcessesFunc = func() ([]api.ProcessInfo,
		api.Return) {
		return nil, api.ERROR_NOT_SUPPORTED
	}
	at(s, 3).GetMPSComputeRunningProcessesFunc = at(s, 3).GetGraphicsRunningProcessesFunc
	at(s, 5).GetComputeRunningProcessesFunc = at(s, 3).GetComputeRunningProcessesFunc // the others are empty
	at(s, 6).GetMPSComputeRunningProcessesFunc = at(s, 3).GetComputeRunningProcessesFunc
	at(s, 7).GetMPSComputeRunningProcessesFunc = at(s, 3).GetGraphicsRunningProcessesFunc
	handle := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (api.Device, api.Return) {
		if i == 4 {
			return nil, api.ERROR_GPU_IS_LOST
		}
		return handle(i)
	}
	after, err := sampler.Sample(now, true)
	if err != nil || len(after.GPUs) != 8 {
		t.Fatalf("%d GPUs, %v", len(after.GPUs), err)
	}
	for i, g := range after.GPUs {
		want := map[int]string{2: "its memory can't be read: ", 3: "its processes can't be read: ",
			4: "NVML gives no access to it: ", 5: "its processes can't be read: ",
			6: "its processes can't be read: "}[i]
		if want == "" {
			want = grant.Healthy
		}
		if !strings.HasPrefix(g.Health, want) || g.UUID != before.GPUs[i].UUID {
			t.Errorf("GPU %d: %+v", i, g)
		}
	}
	s.DeviceGetCountFunc = func() (int, api.Return) { return 0, api.ERROR_UNINITIALIZED }
	if _, err := sampler.Sample(now, true); err == nil ||
		!strings.HasPrefix(err.Error(), "cannot count the GPUs") {
		t.Errorf("an NVML that has ended: %v", err)
	}
}

// TestSampleReportsErrors of the driver, each in one sample, and only those since the last one.
func TestSampleReportsErrors(t *testing.T) {
	s := used(dgxa100.New())
	s.LookupSymbolFunc = without(memoryV2, cudaV2)
	registered := 0
	for i := range s.Devices {
		at(s, i).RegisterEventsFunc = func(kinds uint64, _ api.EventSet) api.Return {
			registered += int(kinds) / api.EventTypeXidCriticalError
			return api.SUCCESS
		}
	}
	waiting := []uint64{79, 31, 79}
	set := &mock.EventSet{WaitFunc: func(uint32) (api.EventData, api.Return) {
		if len(waiting) == 0 {
			return api.EventData{}, api.ERROR_TIMEOUT
		}
		e := api.EventData{Device: s.Devices[1], EventType: api.EventTypeXidCriticalError,
			EventData: waiting[0]}
		waiting = waiting[1:]
		return e, api.SUCCESS
	}}
	s.EventSetCreateFunc = func() (api.EventSet, api.Return) { return set, api.SUCCESS }
	sampler, err := nvml.NewSampler(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]int{{79, 31}, nil} {
		sample, err := sampler.Sample(machine(t, 0).Now(), true)
		if err != nil || !reflect.DeepEqual(sample.GPUs[1].XIDs, want) || sample.GPUs[0].XIDs != nil {
			t.Errorf("got %v and %v, want %v (%v)", sample.GPUs[1].XIDs, sample.GPUs[0].XIDs, want, err)
		}
	}
	if registered != 8 {
		t.Errorf("%d GPUs are listened to", registered)
	}
}

// TestSampleOfAnOldDriver: values that it cannot report are left out, and no function is called
// that it lacks.
func TestSampleOfAnOldDriver(t *testing.T) {
	s := prepare(dgxa100.New())
	old := []string{memoryV2, cudaV2, "nvmlDeviceGetMigMode", "nvmlEventSetCreate",
		"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeMode", "nvmlDeviceGetProcessUtilization",
		"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"}
	for _, kind := range []string{"Graphics", "MPSCompute"} {
		for _, version := range []string{"", "_v2", "_v3"} {
			old = append(old, "nvmlDeviceGet"+kind+"RunningProcesses"+version)
		}
	}
	s.LookupSymbolFunc = without(old...)
	for i := range s.Devices {
		at(s, i).GetComputeRunningProcessesFunc = list(process(10, grant.GiB))
	}
	if g := sampled(t, s).GPUs[0]; g.Utilization != -1 || g.ComputeMode != "" || len(g.Processes) != 1 ||
		g.Processes[0].Compute != -1 || g.Power != 0 || g.Temperature != 0 || g.Health != grant.Healthy {
		t.Errorf("got %+v", g)
	}
}
