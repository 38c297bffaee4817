package main

import (
	"math/rand/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// size is what a pod of the trace asks for: whole GPUs, or a part of one in thousandths.
type size struct {
	gpus, milli int
	pods        int // how many of the trace ask for it
}

// trace has the sizes of the 7,064 pods with GPUs in openb_pod_list_default.csv of Alibaba's
// cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata). A part of a GPU's compute there is here
// the same part of its memory.
var trace = []size{
	{1, 1000, 3911}, {1, 810, 1078}, {1, 470, 750}, {1, 320, 328}, {1, 650, 253}, {1, 230, 140},
	{1, 460, 128}, {1, 590, 75}, {1, 160, 74}, {1, 550, 72}, {1, 220, 62}, {1, 370, 47}, {8, 1000, 44},
	{1, 110, 24}, {1, 480, 19}, {2, 1000, 16}, {4, 1000, 15}, {1, 50, 7}, {1, 330, 7}, {1, 350, 6},
	{1, 270, 4}, {1, 440, 2}, {1, 290, 1}, {1, 140, 1},
}

// memory returns what a pod has of GPUs that have this much.
func (s size) memory(gpu grant.Bytes) grant.Bytes {
	if s.milli == 1000 {
		return grant.Bytes(s.gpus) * gpu
	}
	return gpu * grant.Bytes(s.milli) / 1000 / grant.MiB * grant.MiB
}

// arrivals draws pods of the trace, in random order, until they ask for so much memory.
func arrivals(random *rand.Rand, gpu, until grant.Bytes) (pods []size) {
	var all []size
	for _, s := range trace {
		for range s.pods {
			all = append(all, s)
		}
	}
	for sum := grant.Bytes(0); ; {
		s := all[random.IntN(len(all))]
		if sum += s.memory(gpu); sum > until {
			return pods
		}
		pods = append(pods, s)
	}
}
