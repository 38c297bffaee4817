//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Sampler reads the use of GPUs through an NVML that stays loaded. NVML can hang in the kernel and
// crash: use a Sampler in a process that can be killed. Open a new one after a GPU was lost or
// added.
type Sampler struct {
	lib    nvml.Interface
	events nvml.EventSet     // nil: XIDs are not told
	seen   map[string]uint64 // the newest measurement of processes that was taken, by GPU
	uuids  map[int]string    // by index, as they answered last
	shares map[string]shares
	noMIG  map[string]time.Time // when a GPU said last that it is not in MIG mode
	now    time.Time            // of the sample that is being taken
	close  func()
}

// shares is what the processes of a GPU had of its time, by pid, in percent.
type shares struct {
	taken time.Time
	of    map[int]int // nil: the driver does not say
}

// keep is how long some answers are kept. On an H100 with driver 580 the driver takes 1.4 ms of
// processor time for the shares, and 0.2 ms for the mode, of 2 ms for all that is asked of a GPU.
const keep = 5 * time.Second

// OpenSampler loads the NVML that lies below driverRoot.
func OpenSampler(driverRoot string) (*Sampler, error) {
	path, err := libraryPath(driverRoot, host.Default())
	if err != nil {
		return nil, fmt.Errorf("cannot load NVML: %w; %s", err, hint)
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, initError(path, ret)
	}
	s, err := NewSampler(lib)
	if err != nil {
		_ = lib.Shutdown()
		return nil, err
	}
	s.close = func() { _ = lib.Shutdown() }
	return s, nil
}

// NewSampler asks through an NVML that is initialised.
func NewSampler(lib nvml.Interface) (*Sampler, error) {
	if err := checkLibrary(lib); err != nil {
		return nil, err
	}
	s := &Sampler{lib: lib, seen: map[string]uint64{}, uuids: map[int]string{}, shares: map[string]shares{},
		noMIG: map[string]time.Time{}, close: func() {}}
	s.listen()
	return s, nil
}

// Close unloads it.
func (s *Sampler) Close() { s.close() }

// listen subscribes to the driver's errors. If it cannot, samples have everything else.
func (s *Sampler) listen() {
	if !hasAll(s.lib, []symbols{{"nvmlEventSetCreate"}, {"nvmlDeviceRegisterEvents"},
		{"nvmlEventSetWait_v2", "nvmlEventSetWait"}, {"nvmlEventSetFree"}}) {
		return
	}
	set, ret := s.lib.EventSetCreate()
	count, counted := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS || counted != nvml.SUCCESS {
		return
	}
	for i := range count {
		if d, ret := s.lib.DeviceGetHandleByIndex(i); ret == nvml.SUCCESS {
			_ = d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		}
	}
	s.events = set
}

// maxEvents is the largest number of errors in one sample: a GPU that falls off the bus reports
// without end.
const maxEvents = 256

// xids are the errors since the last call, by the GPU's UUID.
func (s *Sampler) xids() map[string][]int {
	found := map[string][]int{}
	for range maxEvents {
		if s.events == nil {
			break
		}
		e, ret := s.events.Wait(0)
		if ret != nvml.SUCCESS { // a time-out: there are no more
			break
		}
		if uuid, ret := e.Device.GetUUID(); ret == nvml.SUCCESS &&
			!slices.Contains(found[uuid], int(e.EventData)) {
			found[uuid] = append(found[uuid], int(e.EventData))
		}
	}
	return found
}

// Sample reads every GPU. One that does not answer has a health that says so; an error means that
// nothing is known. What processes have of the GPU's time may be some seconds old, unless it is to
// be fresh.
func (s *Sampler) Sample(now time.Time, fresh bool) (grant.Sample, error) {
	if s.now = now; fresh {
		clear(s.shares)
	}
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return grant.Sample{}, fmt.Errorf("cannot count the GPUs: %v", ret)
	}
	sample := grant.Sample{Taken: now.UTC(), GPUs: []grant.Usage{}}
	xids := s.xids()
	for i := range count {
		u := grant.Usage{UUID: s.uuids[i], Index: i, Health: grant.Healthy, Utilization: -1,
			Processes: []grant.ProcessUse{}}
		handle, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret == nvml.SUCCESS {
			var uuid string
			if uuid, ret = handle.GetUUID(); ret == nvml.SUCCESS {
				u.UUID, s.uuids[i], u.XIDs = uuid, uuid, xids[uuid]
				(usageReader{s, handle}).read(&u)
			}
		}
		if ret != nvml.SUCCESS {
			u.Health = fmt.Sprintf("NVML gives no access to it: %v", ret)
		}
		if u.UUID != "" { // the inventory's reader notices one that never answered
			sample.GPUs = append(sample.GPUs, u)
		}
	}
	return sample, nil
}

// usageReader reads one GPU.
type usageReader struct {
	*Sampler
	nvml.Device
}

func (d usageReader) read(u *grant.Usage) {
	if ret := d.memory(u); ret != nvml.SUCCESS {
		u.Health = fmt.Sprintf("its memory can't be read: %v", ret)
		return
	}
	if has(d.lib, symbols{"nvmlDeviceGetUtilizationRates"}) {
		if rates, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS && rates.Gpu <= 100 {
			u.Utilization = int(rates.Gpu)
		}
	}
	u.Power, u.Temperature = d.power(), d.temperature()
	if has(d.lib, symbols{"nvmlDeviceGetComputeMode"}) {
		if mode, ret := d.GetComputeMode(); ret == nvml.SUCCESS {
			u.ComputeMode = computeModes[mode]
		}
	}
	instances := d.instances(u)
	if ret := d.processes(u, instances); ret != nvml.SUCCESS {
		u.Health = fmt.Sprintf("its processes can't be read: %v", ret)
	}
}

var computeModes = map[nvml.ComputeMode]grant.ComputeMode{nvml.COMPUTEMODE_DEFAULT: grant.ComputeDefault,
	nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: grant.ComputeExclusive,
	nvml.COMPUTEMODE_PROHIBITED:        grant.ComputeProhibited}

// The largest values that are believed, far above what any GPU has: NVML can return nonsense.
const (
	maxPower       = 10_000_000 // milliwatts
	maxTemperature = 200        // °C
)

// power is what the GPU draws, in milliwatts; 0 if the driver does not report it, as for a vGPU.
// From Ampere on it is an average over a second (nvml.h, nvmlDeviceGetPowerUsage).
func (d usageReader) power() int {
	if !has(d.lib, symbols{"nvmlDeviceGetPowerUsage"}) {
		return 0
	}
	if power, ret := d.GetPowerUsage(); ret == nvml.SUCCESS && power <= maxPower {
		return int(power)
	}
	return 0
}

// temperature is that of the GPU's own sensor, in °C; 0 if the driver does not report it. The newer
// call, nvmlDeviceGetTemperatureV, is missing in drivers before R570, and those after it have this
// one.
func (d usageReader) temperature() int {
	if !has(d.lib, symbols{"nvmlDeviceGetTemperature"}) {
		return 0
	}
	if degrees, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS &&
		degrees <= maxTemperature {
		return int(degrees)
	}
	return 0
}

// memory is as in the inventory: the driver's own part, where it can be told apart, is neither
// there nor used.
func (d usageReader) memory(u *grant.Usage) nvml.Return {
	if has(d.lib, symbols{"nvmlDeviceGetMemoryInfo_v2"}) {
		if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS && m.Reserved < m.Total {
			u.Total, u.Used = grant.Bytes(m.Total-m.Reserved), grant.Bytes(m.Used)
			return ret
		}
	}
	m, ret := d.GetMemoryInfo()
	u.Total, u.Used = grant.Bytes(m.Total), grant.Bytes(m.Used)
	return ret
}

// instance is a MIG device by the numbers that a process has it by.
type instance struct{ gpu, compute uint32 }

// noInstance is what a process has that runs on the GPU itself (nvml.h, nvmlProcessInfo_t).
const noInstance = 0xFFFFFFFF

// instances lists the GPU's MIG devices.
func (d usageReader) instances(u *grant.Usage) map[instance]string {
	if at, is := d.noMIG[u.UUID]; !hasAll(d.lib, mig) || is && isKept(at, d.now) {
		return nil
	}
	if mode, _, ret := d.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		d.noMIG[u.UUID] = d.now
		return nil
	}
	delete(d.noMIG, u.UUID)
	count, ret := d.GetMaxMigDeviceCount()
	of := map[instance]string{}
	for i := 0; ret == nvml.SUCCESS && i < count; i++ {
		handle, got := d.GetMigDeviceHandleByIndex(i)
		if got == nvml.ERROR_NOT_FOUND { // a free place
			continue
		}
		if ret = got; ret == nvml.SUCCESS {
			ret = number(of, u, handle)
		}
	}
	if ret != nvml.SUCCESS {
		u.Health = fmt.Sprintf("its MIG devices can't be read: %v", ret)
	}
	return of
}

// isKept reports whether an answer of a time is not too old. The clock may have been set back.
func isKept(at, now time.Time) bool { return !now.Before(at) && now.Sub(at) < keep }

// number enters a MIG device under its numbers.
func number(of map[instance]string, u *grant.Usage, d nvml.Device) nvml.Return {
	uuid, ret := d.GetUUID()
	if ret != nvml.SUCCESS {
		return ret
	}
	gi, ret := d.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return ret
	}
	ci, ret := d.GetComputeInstanceId()
	if ret == nvml.SUCCESS {
		u.MIG = append(u.MIG, uuid)
		of[instance{uint32(gi), uint32(ci)}] = uuid
	}
	return ret
}

// lists are the calls that list processes, with what they end up in. A process stands in each that
// it is a client of, with all of its memory.
func (d usageReader) lists() []func() ([]nvml.ProcessInfo, nvml.Return) {
	var calls []func() ([]nvml.ProcessInfo, nvml.Return)
	for _, list := range []struct {
		symbols
		call func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{symbols{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
			"nvmlDeviceGetComputeRunningProcesses"}, d.GetComputeRunningProcesses},
		{symbols{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
			"nvmlDeviceGetGraphicsRunningProcesses"}, d.GetGraphicsRunningProcesses},
		{symbols{"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
			"nvmlDeviceGetMPSComputeRunningProcesses"}, d.GetMPSComputeRunningProcesses},
	} {
		if has(d.lib, list.symbols) {
			calls = append(calls, list.call)
		}
	}
	return calls
}

// unavailable is NVML_VALUE_NOT_AVAILABLE, -1 in 64 bits.
const unavailable = 1<<64 - 1

func (d usageReader) processes(u *grant.Usage, instances map[instance]string) nvml.Return {
	type key struct {
		pid    int
		device string
	}
	place := map[key]int{}
	answered := nvml.ERROR_FUNCTION_NOT_FOUND
	for _, list := range d.lists() {
		infos, ret := list()
		switch {
		case ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND: // no such processes
			continue
		case ret != nvml.SUCCESS: // the other lists cannot say what this one would
			return ret
		}
		answered = nvml.SUCCESS
		for _, info := range infos {
			p := grant.ProcessUse{PID: int(info.Pid), Memory: grant.Bytes(info.UsedGpuMemory), Compute: -1}
			if info.GpuInstanceId != noInstance {
				if instances == nil { // it has come into MIG mode
					delete(d.noMIG, u.UUID)
					instances = d.instances(u)
				}
				p.Device = instances[instance{info.GpuInstanceId, info.ComputeInstanceId}]
			}
			if p.Unmeasured = info.UsedGpuMemory == unavailable; p.Unmeasured {
				p.Memory = 0
			}
			at := key{p.PID, p.Device}
			if i, found := place[at]; found {
				u.Processes[i].Memory = max(u.Processes[i].Memory, p.Memory)
				continue
			}
			place[at] = len(u.Processes)
			u.Processes = append(u.Processes, p)
		}
	}
	d.compute(u)
	return answered
}

// compute adds what each process had of the GPU's time, where the driver tells; drivers from 580 on
// need not.
func (d usageReader) compute(u *grant.Usage) {
	if len(u.Processes) == 0 || !has(d.lib, symbols{"nvmlDeviceGetProcessUtilization"}) {
		return
	}
	if known, is := d.shares[u.UUID]; !is || !isKept(known.taken, d.now) {
		d.shares[u.UUID] = shares{d.now, d.readShares(u)}
	}
	of := d.shares[u.UUID].of
	if of == nil {
		return
	}
	for i := range u.Processes {
		u.Processes[i].Compute = of[u.Processes[i].PID]
	}
}

// readShares asks for what was measured since the last time; nil if the driver does not say.
func (d usageReader) readShares(u *grant.Usage) map[int]int {
	samples, ret := d.GetProcessUtilization(d.seen[u.UUID])
	if ret != nvml.SUCCESS {
		return nil
	}
	newest := d.seen[u.UUID]
	of := map[int]int{}
	for _, s := range samples {
		newest = max(newest, s.TimeStamp)
		// what is above is no measurement (go-nvml hands over what the driver left in the buffer)
		if s.SmUtil <= 100 {
			of[int(s.Pid)] = max(of[int(s.Pid)], int(s.SmUtil))
		}
	}
	d.seen[u.UUID] = newest
	return of
}
