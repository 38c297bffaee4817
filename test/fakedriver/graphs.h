/* What stream capture needs of graphs. */
#pragma once

#include "../../shim/cuda_abi.h"

CUgraph graph_new(void);
CUresult graph_add_memory(CUgraph graph, CUdevice device, size_t bytes, CUdeviceptr *p);
CUresult graph_free_memory(CUgraph graph, CUdeviceptr p);
