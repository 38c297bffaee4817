/* What is done about each entry point of libcuda, one row each. To wrap another one, add a row
 * here, its prototype in cuda_api.h, and its function in one of the files cuda_*.c.
 * `make shim-test` fails if an entry point that allocates, frees or reports memory has no row, and
 * if the exported symbols are not exactly those of CUDA_WRAPPED.
 *
 * COUNTED   it allocates memory, which is counted before the driver is called
 * FREED     it frees what was counted
 * REPORTED  it reports memory: the wrapper reports the grant
 * RESOLVED  it returns entry points: the wrapper returns the wrappers
 * TRACKED   it changes the tables that the counting needs. A variant of it that is not known is
 *           passed on: it allocates nothing, or makes a context, which the node measures
 * THROTTLED it launches: the wrapper waits until the grant's gate is open. Only in
 *           libcuda-throttle.so.1, which containers with a share of compute get. It is built with
 *           -DTHROTTLE */
#pragma once

#ifdef THROTTLE
#define CUDA_WRAPPED(ROW) CUDA_MEMORY(ROW) CUDA_LAUNCHES(ROW)
#else
#define CUDA_WRAPPED(ROW) CUDA_MEMORY(ROW)
#endif

#define CUDA_MEMORY(ROW)                                                                                                \
    ROW(cuInit, TRACKED, "fails without an account; claims the slot before the driver opens its files")                 \
    ROW(cuGetProcAddress, RESOLVED, "the driver's answer, mapped by its address")                                       \
    ROW(cuGetProcAddress_v2, RESOLVED, "the driver's answer, mapped by its address")                                    \
    ROW(cuMemAlloc, COUNTED, "")                                                                                        \
    ROW(cuMemAlloc_v2, COUNTED, "")                                                                                     \
    ROW(cuMemAllocPitch, COUNTED, "with the row size that the driver chose")                                            \
    ROW(cuMemAllocPitch_v2, COUNTED, "with the row size that the driver chose")                                         \
    ROW(cuMemAllocManaged, COUNTED, "in full on the current device, wherever its pages are")                            \
    ROW(cuMemFree, FREED, "")                                                                                           \
    ROW(cuMemFree_v2, FREED, "")                                                                                        \
    ROW(cuArrayCreate, COUNTED, "the elements' size; the node measures the driver's padding")                           \
    ROW(cuArrayCreate_v2, COUNTED, "as cuArrayCreate")                                                                  \
    ROW(cuArray3DCreate, COUNTED, "as cuArrayCreate; sparse and deferred arrays have no memory")                        \
    ROW(cuArray3DCreate_v2, COUNTED, "as cuArray3DCreate")                                                              \
    ROW(cuArrayDestroy, FREED, "")                                                                                      \
    ROW(cuMipmappedArrayCreate, COUNTED, "all levels")                                                                  \
    ROW(cuMipmappedArrayDestroy, FREED, "")                                                                             \
    ROW(cuMemCreate, COUNTED, "on the device of prop.location; managed memory without one on the current device; not on the host") \
    ROW(cuMemRelease, FREED, "with the last handle and mapping")                                                        \
    ROW(cuMemRetainAllocationHandle, TRACKED, "one more handle")                                                        \
    ROW(cuMemMap, TRACKED, "a mapping keeps the memory after its handle")                                               \
    ROW(cuMemUnmap, FREED, "with the last handle and mapping")                                                          \
    ROW(cuMemAllocAsync, COUNTED, "what the pool holds, not only what is in use")                                       \
    ROW(cuMemAllocAsync_ptsz, COUNTED, "as cuMemAllocAsync")                                                            \
    ROW(cuMemAllocFromPoolAsync, COUNTED, "as cuMemAllocAsync")                                                         \
    ROW(cuMemAllocFromPoolAsync_ptsz, COUNTED, "as cuMemAllocAsync")                                                    \
    ROW(cuMemFreeAsync, FREED, "the pool holds it until a synchronisation")                                             \
    ROW(cuMemFreeAsync_ptsz, FREED, "as cuMemFreeAsync")                                                                \
    ROW(cuMemPoolCreate, TRACKED, "its argument is the device of the pool")                                             \
    ROW(cuMemPoolDestroy, FREED, "with its last allocation")                                                            \
    ROW(cuMemPoolTrimTo, FREED, "what the pool returns to the GPU")                                                     \
    ROW(cuMemGetDefaultMemPool, TRACKED, "its argument is the device of the pool")                                      \
    ROW(cuMemGetMemPool, TRACKED, "its argument is the device of the pool")                                             \
    ROW(cuStreamSynchronize, FREED, "pools return memory to the GPU at a synchronisation")                              \
    ROW(cuStreamSynchronize_ptsz, FREED, "pools return memory to the GPU at a synchronisation")                         \
    ROW(cuEventSynchronize, FREED, "pools return memory to the GPU at a synchronisation")                               \
    ROW(cuCtxSynchronize, FREED, "pools return memory to the GPU at a synchronisation")                                 \
    ROW(cuCtxSynchronize_v2, FREED, "CUDA 13's, of any context; as cuCtxSynchronize")                                   \
    ROW(cuGraphInstantiate, COUNTED, "the graph's memory nodes, until the executable graph is destroyed")               \
    ROW(cuGraphInstantiate_v2, COUNTED, "as cuGraphInstantiate")                                                        \
    ROW(cuGraphInstantiateWithFlags, COUNTED, "as cuGraphInstantiate")                                                  \
    ROW(cuGraphInstantiateWithParams, COUNTED, "as cuGraphInstantiate")                                                 \
    ROW(cuGraphInstantiateWithParams_ptsz, COUNTED, "as cuGraphInstantiate")                                            \
    ROW(cuGraphExecDestroy, FREED, "what the device does not hold after a trim of its graph memory")                    \
    ROW(cuCtxDestroy, FREED, "everything that was allocated in the context")                                            \
    ROW(cuCtxDestroy_v2, FREED, "everything that was allocated in the context")                                         \
    ROW(cuCtxCreate, TRACKED, "what the node has measured of contexts; the rest is overhead")                           \
    ROW(cuCtxCreate_v2, TRACKED, "as cuCtxCreate")                                                                      \
    ROW(cuCtxCreate_v3, TRACKED, "as cuCtxCreate")                                                                      \
    ROW(cuCtxCreate_v4, TRACKED, "as cuCtxCreate")                                                                      \
    ROW(cuDevicePrimaryCtxRetain, TRACKED, "as cuCtxCreate, if the device has no primary context yet")                  \
    ROW(cuDevicePrimaryCtxRelease, FREED, "at the last release, as cuDevicePrimaryCtxReset")                            \
    ROW(cuDevicePrimaryCtxRelease_v2, FREED, "as cuDevicePrimaryCtxRelease")                                            \
    ROW(cuDevicePrimaryCtxReset, FREED, "what was allocated in the context, and the device's executable graphs")        \
    ROW(cuDevicePrimaryCtxReset_v2, FREED, "as cuDevicePrimaryCtxReset")                                                \
    ROW(cuMemGetInfo, REPORTED, "the grant and what is free of it")                                                     \
    ROW(cuMemGetInfo_v2, REPORTED, "the grant and what is free of it")                                                  \
    ROW(cuDeviceTotalMem, REPORTED, "the grant")                                                                        \
    ROW(cuDeviceTotalMem_v2, REPORTED, "the grant")

/* None allocates memory that is not counted: a graph's memory is counted when it is
 * instantiated. */
#define CUDA_LAUNCHES(ROW)                                                                                              \
    ROW(cuLaunch, THROTTLED, "from before CUDA 4")                                                                      \
    ROW(cuLaunchGrid, THROTTLED, "from before CUDA 4")                                                                  \
    ROW(cuLaunchGridAsync, THROTTLED, "from before CUDA 4")                                                             \
    ROW(cuLaunchKernel, THROTTLED, "")                                                                                  \
    ROW(cuLaunchKernel_ptsz, THROTTLED, "")                                                                             \
    ROW(cuLaunchKernelEx, THROTTLED, "")                                                                                \
    ROW(cuLaunchKernelEx_ptsz, THROTTLED, "")                                                                           \
    ROW(cuLaunchCooperativeKernel, THROTTLED, "")                                                                       \
    ROW(cuLaunchCooperativeKernel_ptsz, THROTTLED, "")                                                                  \
    ROW(cuLaunchCooperativeKernelMultiDevice, THROTTLED, "the gates of all its devices")                                \
    ROW(cuGraphLaunch, THROTTLED, "the whole graph at once")                                                            \
    ROW(cuGraphLaunch_ptsz, THROTTLED, "the whole graph at once")

/* Entry points of the file entry-points that are not wrapped: programs call the driver's own.
 *
 * OVERHEAD  it allocates memory that no wrapper can measure. The node measures the process from
 *           outside and publishes the difference as overhead, which counts against the grant.
 *
 * HARMLESS  it allocates no device memory of its own. */
#define CUDA_PASSED(ROW)                                                                                                \
    ROW(cuGetExportTable, OVERHEAD, "undocumented tables that the CUDA runtime needs to start; one creates contexts")   \
    ROW(cuGreenCtxCreate, OVERHEAD, "only the driver knows its size")                                                   \
    ROW(cuGreenCtxDestroy, OVERHEAD, "as cuGreenCtxCreate")                                                             \
    ROW(cuCtxSetLimit, OVERHEAD, "the heap, printf and stack buffers of a context")                                     \
    ROW(cuStreamCreate, OVERHEAD, "small buffers of the context")                                                       \
    ROW(cuStreamCreateWithPriority, OVERHEAD, "as cuStreamCreate")                                                      \
    ROW(cuCtxEnablePeerAccess, OVERHEAD, "page tables")                                                                 \
    ROW(cuModuleLoad, OVERHEAD, "code and static variables; lazy loading allocates them later")                         \
    ROW(cuModuleLoadData, OVERHEAD, "as cuModuleLoad")                                                                  \
    ROW(cuModuleLoadDataEx, OVERHEAD, "as cuModuleLoad")                                                                \
    ROW(cuModuleLoadFatBinary, OVERHEAD, "as cuModuleLoad")                                                             \
    ROW(cuModuleUnload, OVERHEAD, "as cuModuleLoad")                                                                    \
    ROW(cuLibraryLoadData, OVERHEAD, "as cuModuleLoad")                                                                 \
    ROW(cuLibraryLoadFromFile, OVERHEAD, "as cuModuleLoad")                                                             \
    ROW(cuLibraryUnload, OVERHEAD, "as cuModuleLoad")                                                                   \
    ROW(cuLinkCreate, HARMLESS, "links on the host")                                                                    \
    ROW(cuLinkCreate_v2, HARMLESS, "links on the host")                                                                 \
    ROW(cuLinkAddData, HARMLESS, "links on the host")                                                                   \
    ROW(cuLinkAddData_v2, HARMLESS, "links on the host")                                                                \
    ROW(cuLinkComplete, HARMLESS, "links on the host")                                                                  \
    ROW(cuFuncLoad, OVERHEAD, "as cuModuleLoad")                                                                        \
    ROW(cuKernelGetFunction, OVERHEAD, "as cuModuleLoad")                                                               \
    ROW(cuMemPoolSetAttribute, HARMLESS, "a threshold: what a pool holds stays counted")                                \
    ROW(cuMemPoolGetAttribute, HARMLESS, "the pool's own numbers, which are correct")                                   \
    ROW(cuMemPoolImportFromShareableHandle, HARMLESS, "memory of the process that created the pool, counted there")     \
    ROW(cuMemPoolImportPointer, HARMLESS, "memory of the process that created the pool, counted there")                 \
    ROW(cuDeviceGetMemPool, HARMLESS, "a handle; the pool's device is looked up when it is used")                       \
    ROW(cuDeviceSetMemPool, HARMLESS, "a choice; it is looked up at each allocation")                                   \
    ROW(cuDeviceGetDefaultMemPool, HARMLESS, "a handle; the pool's device is looked up when it is used")                \
    ROW(cuMemSetMemPool, HARMLESS, "a choice; it is looked up at each allocation")                                      \
    ROW(cuMemImportFromShareableHandle, OVERHEAD, "memory of the process that created it, counted there; not if it outlives that process") \
    ROW(cuMemMapArrayAsync, OVERHEAD, "memory of cuMemCreate; an array that outlives the handle holds it")              \
    ROW(cuMemMapArrayAsync_ptsz, OVERHEAD, "as cuMemMapArrayAsync")                                                     \
    ROW(cuIpcOpenMemHandle, HARMLESS, "memory of the process that created it, counted there")                           \
    ROW(cuIpcOpenMemHandle_v2, HARMLESS, "memory of the process that created it, counted there")                        \
    ROW(cuIpcCloseMemHandle, HARMLESS, "memory of the process that created it, counted there")                          \
    ROW(cuImportExternalMemory, OVERHEAD, "memory that Vulkan or another interface allocated")                          \
    ROW(cuExternalMemoryGetMappedBuffer, HARMLESS, "a view of imported memory")                                         \
    ROW(cuExternalMemoryGetMappedMipmappedArray, HARMLESS, "a view of imported memory")                                 \
    ROW(cuDestroyExternalMemory, OVERHEAD, "as cuImportExternalMemory")                                                 \
    ROW(cuGraphAddMemAllocNode, HARMLESS, "a node of a graph; counted when the graph is instantiated")                  \
    ROW(cuGraphAddMemFreeNode, HARMLESS, "a node of a graph")                                                           \
    ROW(cuGraphAddNode, HARMLESS, "a node of a graph; counted when the graph is instantiated")                          \
    ROW(cuGraphAddNode_v2, HARMLESS, "a node of a graph; counted when the graph is instantiated")                       \
    ROW(cuStreamBeginCapture, HARMLESS, "nothing runs yet; allocations in a capture are nodes of a graph")              \
    ROW(cuStreamBeginCapture_v2, HARMLESS, "nothing runs yet; allocations in a capture are nodes of a graph")           \
    ROW(cuStreamBeginCaptureToGraph, HARMLESS, "nothing runs yet; allocations in a capture are nodes of a graph")       \
    ROW(cuGraphUpload, HARMLESS, "memory that is counted when the graph is instantiated")                               \
    ROW(cuGraphUpload_ptsz, HARMLESS, "memory that is counted when the graph is instantiated")                          \
    ROW(cuDeviceSetGraphMemAttribute, HARMLESS, "resets high-water marks")                                              \
    ROW(cuDeviceGetGraphMemAttribute, HARMLESS, "the graphs' own numbers, which are correct")                           \
    ROW(cuDeviceGraphMemTrim, HARMLESS, "returns memory that no executable graph needs, which is not counted")          \
    ROW(cuMulticastCreate, OVERHEAD, "tables; the memory bound to it is counted at cuMemCreate")                        \
    ROW(cuMulticastAddDevice, OVERHEAD, "as cuMulticastCreate")                                                         \
    ROW(cuMulticastBindMem, OVERHEAD, "as cuMulticastCreate; a binding that outlives the handle holds the memory")      \
    ROW(cuMulticastBindMem_v2, OVERHEAD, "as cuMulticastBindMem")                                                       \
    ROW(cuMulticastBindAddr, OVERHEAD, "as cuMulticastCreate")                                                          \
    ROW(cuMulticastBindAddr_v2, OVERHEAD, "as cuMulticastBindMem")                                                      \
    ROW(cuLogicalEndpointCreate, OVERHEAD, "CUDA 13.3's fabric endpoints; as cuMulticastCreate")                        \
    ROW(cuCtxDetach, HARMLESS, "what was allocated in the context stays counted until the process ends")                 \
    ROW(cuGLCtxCreate, OVERHEAD, "a context for OpenGL")                                                                \
    ROW(cuGLCtxCreate_v2, OVERHEAD, "a context for OpenGL")                                                             \
    ROW(cuVDPAUCtxCreate, OVERHEAD, "a context for VDPAU")                                                              \
    ROW(cuVDPAUCtxCreate_v2, OVERHEAD, "a context for VDPAU")                                                           \
    ROW(cuGLRegisterBufferObject, OVERHEAD, "memory that OpenGL allocated")                                             \
    ROW(cuGraphicsGLRegisterBuffer, OVERHEAD, "memory that OpenGL allocated")                                           \
    ROW(cuGraphicsGLRegisterImage, OVERHEAD, "memory that OpenGL allocated")                                            \
    ROW(cuGraphicsEGLRegisterImage, OVERHEAD, "memory that EGL allocated")                                              \
    ROW(cuGraphicsVDPAURegisterVideoSurface, OVERHEAD, "memory that VDPAU allocated")                                   \
    ROW(cuGraphicsVDPAURegisterOutputSurface, OVERHEAD, "memory that VDPAU allocated")                                  \
    ROW(cuMemPrefetchAsync, HARMLESS, "moves managed memory that is counted in full")                                   \
    ROW(cuMemPrefetchAsync_v2, HARMLESS, "moves managed memory that is counted in full")                                \
    ROW(cuMemPrefetchBatchAsync, HARMLESS, "moves managed memory that is counted in full")                              \
    ROW(cuCheckpointProcessRestore, OVERHEAD, "allocates again what a checkpoint freed; the slot still counts it")      \
    ROW(cuDeviceGetProperties, HARMLESS, "does not report device memory")                                               \
    ROW(cuArrayGetMemoryRequirements, HARMLESS, "what an array needs, which is correct")

/* Functions of the driver that the wrappers call and that are not wrapped. */
#define CUDA_USED(ROW)                                                                                                  \
    ROW(cuDeviceGetUuid)                                                                                                \
    ROW(cuDeviceGetUuid_v2)                                                                                             \
    ROW(cuDeviceGetCount)                                                                                               \
    ROW(cuDevicePrimaryCtxGetState)                                                                                     \
    ROW(cuCtxGetCurrent)                                                                                                \
    ROW(cuCtxGetDevice)                                                                                                 \
    ROW(cuCtxPushCurrent_v2)                                                                                            \
    ROW(cuCtxPopCurrent_v2)                                                                                             \
    ROW(cuStreamGetCtx)                                                                                                 \
    ROW(cuStreamIsCapturing)                                                                                            \
    ROW(cuStreamIsCapturing_ptsz)                                                                                       \
    ROW(cuDeviceGetMemPool)                                                                                             \
    ROW(cuDeviceGetDefaultMemPool)                                                                                      \
    ROW(cuMemPoolGetAttribute)                                                                                          \
    ROW(cuGraphGetNodes)                                                                                                \
    ROW(cuGraphNodeGetType)                                                                                             \
    ROW(cuGraphChildGraphNodeGetGraph)                                                                                  \
    ROW(cuGraphMemAllocNodeGetParams)                                                                                   \
    ROW(cuDeviceGraphMemTrim)                                                                                           \
    ROW(cuDeviceGetGraphMemAttribute)
