/* The functions of the driver that the tests call: those that are wrapped, and some that are
 * not. */
#pragma once

#include "../cuda_api.h"
#include "../nvml_abi.h"

#define MIB ((size_t)1 << 20)

CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr p, size_t bytes);
CUresult cuModuleLoadData(void **module, const void *image);
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags);
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle h, int type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *shareable, int type);
typedef struct { unsigned char bytes[64]; } CUipcMemHandle;
CUresult cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr p);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUgraph child);
CUresult cuGetExportTable(const void **table, const CUuuid *id);
CUresult cuFutureThing(int *answer);

/* Functions of the stand-in driver alone: the bytes that are really used. */
unsigned long long fakedriverPeak(int gpu), fakedriverMine(int gpu), fakedriverUsed(int gpu);

/* The number of this process's launches, and of those into captures. */
unsigned long long fakedriverLaunches(int gpu), fakedriverCaptured(void);
