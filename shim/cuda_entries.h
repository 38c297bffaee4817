/* What is done about each entry point of libcuda, one row each. To wrap another one: a row here, its prototype in
 * cuda_api.h, its function in one of the cuda_*.c. `make shim-test` fails when an entry point that obtains, frees or
 * reports memory is in neither list, and when the exported symbols are not exactly the first.
 *
 * COUNTED   it obtains memory: counted to the byte that was asked for, before the driver is asked
 * FREED     it frees what was counted
 * REPORTED  it tells of memory: tells the grant
 * RESOLVED  it hands out entry points: hands out ours
 * WATCHED   it changes what we keep in mind
 * THROTTLED it launches: waits until the grant's gate is open. Only in libcuda-throttle.so.1, built with -DTHROTTLE, which
 *           containers with a share of compute get; elsewhere launches are the driver's own */
#pragma once

#ifdef THROTTLE
#define CUDA_WRAPPED(ROW) CUDA_MEMORY(ROW) CUDA_LAUNCHES(ROW)
#else
#define CUDA_WRAPPED(ROW) CUDA_MEMORY(ROW)
#endif

#define CUDA_MEMORY(ROW)                                                                                                \
    ROW(cuInit, WATCHED, "fails where there is no account; takes the slot before the driver opens its files")           \
    ROW(cuGetProcAddress, RESOLVED, "the driver's answer, mapped by its address")                                       \
    ROW(cuGetProcAddress_v2, RESOLVED, "the driver's answer, mapped by its address")                                    \
    ROW(cuMemAlloc, COUNTED, "")                                                                                        \
    ROW(cuMemAlloc_v2, COUNTED, "")                                                                                     \
    ROW(cuMemAllocPitch, COUNTED, "rows as wide as the driver made them")                                               \
    ROW(cuMemAllocPitch_v2, COUNTED, "rows as wide as the driver made them")                                            \
    ROW(cuMemAllocManaged, COUNTED, "in full on the current device, wherever its pages are")                            \
    ROW(cuMemFree, FREED, "")                                                                                           \
    ROW(cuMemFree_v2, FREED, "")                                                                                        \
    ROW(cuArrayCreate, COUNTED, "the elements' size; the driver's padding shows from outside")                          \
    ROW(cuArrayCreate_v2, COUNTED, "as cuArrayCreate")                                                                  \
    ROW(cuArray3DCreate, COUNTED, "as cuArrayCreate; sparse and deferred ones have no memory")                          \
    ROW(cuArray3DCreate_v2, COUNTED, "as cuArray3DCreate")                                                              \
    ROW(cuArrayDestroy, FREED, "")                                                                                      \
    ROW(cuMipmappedArrayCreate, COUNTED, "all levels")                                                                  \
    ROW(cuMipmappedArrayDestroy, FREED, "")                                                                             \
    ROW(cuMemCreate, COUNTED, "on the device of prop.location, not the current one; host memory is not counted")        \
    ROW(cuMemRelease, FREED, "with the last handle and mapping")                                                        \
    ROW(cuMemRetainAllocationHandle, WATCHED, "one more handle")                                                        \
    ROW(cuMemMap, WATCHED, "a mapping keeps the memory after its handle")                                               \
    ROW(cuMemUnmap, FREED, "with the last handle and mapping")                                                          \
    ROW(cuMemAllocAsync, COUNTED, "what the pool holds, not only what is in use")                                       \
    ROW(cuMemAllocAsync_ptsz, COUNTED, "as cuMemAllocAsync")                                                            \
    ROW(cuMemAllocFromPoolAsync, COUNTED, "as cuMemAllocAsync")                                                         \
    ROW(cuMemAllocFromPoolAsync_ptsz, COUNTED, "as cuMemAllocAsync")                                                    \
    ROW(cuMemFreeAsync, FREED, "the pool keeps it until a synchronisation gives it back")                               \
    ROW(cuMemFreeAsync_ptsz, FREED, "as cuMemFreeAsync")                                                                \
    ROW(cuMemPoolCreate, WATCHED, "says where the pool's memory is")                                                    \
    ROW(cuMemPoolDestroy, FREED, "with its last allocation")                                                            \
    ROW(cuMemPoolTrimTo, FREED, "what the pool gives back")                                                             \
    ROW(cuMemGetDefaultMemPool, WATCHED, "says where the pool's memory is")                                             \
    ROW(cuMemGetMemPool, WATCHED, "says where the pool's memory is")                                                    \
    ROW(cuStreamSynchronize, FREED, "pools give back at a synchronisation")                                             \
    ROW(cuStreamSynchronize_ptsz, FREED, "pools give back at a synchronisation")                                        \
    ROW(cuEventSynchronize, FREED, "pools give back at a synchronisation")                                              \
    ROW(cuCtxSynchronize, FREED, "pools give back at a synchronisation")                                                \
    ROW(cuGraphInstantiate, COUNTED, "the graph's memory nodes, until the executable graph is destroyed")               \
    ROW(cuGraphInstantiate_v2, COUNTED, "as cuGraphInstantiate")                                                        \
    ROW(cuGraphInstantiateWithFlags, COUNTED, "as cuGraphInstantiate")                                                  \
    ROW(cuGraphInstantiateWithParams, COUNTED, "as cuGraphInstantiate")                                                 \
    ROW(cuGraphInstantiateWithParams_ptsz, COUNTED, "as cuGraphInstantiate")                                            \
    ROW(cuGraphExecDestroy, FREED, "and trims the device's graph memory, which would keep it")                          \
    ROW(cuCtxDestroy, FREED, "all that was allocated in the context")                                                   \
    ROW(cuCtxDestroy_v2, FREED, "all that was allocated in the context")                                                \
    ROW(cuDevicePrimaryCtxRetain, WATCHED, "which context a device's primary one is")                                   \
    ROW(cuDevicePrimaryCtxRelease, FREED, "at the last release all that was allocated in the context")                  \
    ROW(cuDevicePrimaryCtxRelease_v2, FREED, "as cuDevicePrimaryCtxRelease")                                            \
    ROW(cuDevicePrimaryCtxReset, FREED, "all that was allocated in the context")                                        \
    ROW(cuDevicePrimaryCtxReset_v2, FREED, "all that was allocated in the context")                                     \
    ROW(cuMemGetInfo, REPORTED, "grant and what is free of it")                                                         \
    ROW(cuMemGetInfo_v2, REPORTED, "grant and what is free of it")                                                      \
    ROW(cuDeviceTotalMem, REPORTED, "the grant")                                                                        \
    ROW(cuDeviceTotalMem_v2, REPORTED, "the grant")

/* None obtains memory that was not counted: a graph's was when it was instantiated. */
#define CUDA_LAUNCHES(ROW)                                                                                              \
    ROW(cuLaunch, THROTTLED, "of before CUDA 4")                                                                        \
    ROW(cuLaunchGrid, THROTTLED, "of before CUDA 4")                                                                    \
    ROW(cuLaunchGridAsync, THROTTLED, "of before CUDA 4")                                                               \
    ROW(cuLaunchKernel, THROTTLED, "")                                                                                  \
    ROW(cuLaunchKernel_ptsz, THROTTLED, "")                                                                             \
    ROW(cuLaunchKernelEx, THROTTLED, "")                                                                                \
    ROW(cuLaunchKernelEx_ptsz, THROTTLED, "")                                                                           \
    ROW(cuLaunchCooperativeKernel, THROTTLED, "")                                                                       \
    ROW(cuLaunchCooperativeKernel_ptsz, THROTTLED, "")                                                                  \
    ROW(cuLaunchCooperativeKernelMultiDevice, THROTTLED, "the gates of all its devices")                                \
    ROW(cuGraphLaunch, THROTTLED, "the whole graph at once")                                                            \
    ROW(cuGraphLaunch_ptsz, THROTTLED, "the whole graph at once")

/* Entry points that the reference list of memory names and that go straight to the driver.
 *
 * TRUTH     it obtains memory that no call here can measure; the node measures the process from outside and publishes
 *           the difference as overhead, which counts against the grant
 * HARMLESS  it obtains no device memory of its own */
#define CUDA_PASSED(ROW)                                                                                                \
    ROW(cuGetExportTable, TRUTH, "undocumented tables that the CUDA runtime needs to start; one makes contexts")        \
    ROW(cuCtxCreate, TRUTH, "a context's size is the driver's affair")                                                  \
    ROW(cuCtxCreate_v2, TRUTH, "as cuCtxCreate")                                                                        \
    ROW(cuCtxCreate_v3, TRUTH, "as cuCtxCreate")                                                                        \
    ROW(cuCtxCreate_v4, TRUTH, "as cuCtxCreate")                                                                        \
    ROW(cuGreenCtxCreate, TRUTH, "as cuCtxCreate")                                                                      \
    ROW(cuGreenCtxDestroy, TRUTH, "as cuCtxCreate")                                                                     \
    ROW(cuCtxSetLimit, TRUTH, "the heap, printf and stack buffers of a context")                                        \
    ROW(cuStreamCreate, TRUTH, "small buffers of the context")                                                          \
    ROW(cuStreamCreateWithPriority, TRUTH, "as cuStreamCreate")                                                         \
    ROW(cuCtxEnablePeerAccess, TRUTH, "page tables")                                                                    \
    ROW(cuModuleLoad, TRUTH, "code and static variables; lazy loading takes them later")                                \
    ROW(cuModuleLoadData, TRUTH, "as cuModuleLoad")                                                                     \
    ROW(cuModuleLoadDataEx, TRUTH, "as cuModuleLoad")                                                                   \
    ROW(cuModuleLoadFatBinary, TRUTH, "as cuModuleLoad")                                                                \
    ROW(cuModuleUnload, TRUTH, "as cuModuleLoad")                                                                       \
    ROW(cuLibraryLoadData, TRUTH, "as cuModuleLoad")                                                                    \
    ROW(cuLibraryLoadFromFile, TRUTH, "as cuModuleLoad")                                                                \
    ROW(cuLibraryUnload, TRUTH, "as cuModuleLoad")                                                                      \
    ROW(cuLinkCreate, HARMLESS, "links on the host")                                                                    \
    ROW(cuLinkCreate_v2, HARMLESS, "links on the host")                                                                 \
    ROW(cuLinkAddData, HARMLESS, "links on the host")                                                                   \
    ROW(cuLinkAddData_v2, HARMLESS, "links on the host")                                                                \
    ROW(cuLinkComplete, HARMLESS, "links on the host")                                                                  \
    ROW(cuFuncLoad, TRUTH, "as cuModuleLoad")                                                                           \
    ROW(cuKernelGetFunction, TRUTH, "as cuModuleLoad")                                                                  \
    ROW(cuMemPoolSetAttribute, HARMLESS, "a threshold: what a pool keeps stays counted")                                \
    ROW(cuMemPoolGetAttribute, HARMLESS, "the pool's own numbers, which are right")                                     \
    ROW(cuMemPoolImportFromShareableHandle, HARMLESS, "memory of the process that made the pool, counted there")        \
    ROW(cuMemPoolImportPointer, HARMLESS, "memory of the process that made the pool, counted there")                    \
    ROW(cuDeviceGetMemPool, HARMLESS, "a handle; the pool is asked for its device when it is used")                     \
    ROW(cuDeviceSetMemPool, HARMLESS, "a choice; it is looked up at each allocation")                                   \
    ROW(cuDeviceGetDefaultMemPool, HARMLESS, "a handle; the pool is asked for its device when it is used")              \
    ROW(cuMemSetMemPool, HARMLESS, "a choice; it is looked up at each allocation")                                      \
    ROW(cuMemImportFromShareableHandle, TRUTH, "memory of the process that made it, counted there; who outlives that one") \
    ROW(cuMemMapArrayAsync, TRUTH, "memory of cuMemCreate; an array that outlives the handle keeps it")                 \
    ROW(cuMemMapArrayAsync_ptsz, TRUTH, "as cuMemMapArrayAsync")                                                        \
    ROW(cuIpcOpenMemHandle, HARMLESS, "memory of the process that made it, counted there")                              \
    ROW(cuIpcOpenMemHandle_v2, HARMLESS, "memory of the process that made it, counted there")                           \
    ROW(cuIpcCloseMemHandle, HARMLESS, "memory of the process that made it, counted there")                             \
    ROW(cuImportExternalMemory, TRUTH, "memory that Vulkan or another interface obtained")                              \
    ROW(cuExternalMemoryGetMappedBuffer, HARMLESS, "a view of imported memory")                                         \
    ROW(cuExternalMemoryGetMappedMipmappedArray, HARMLESS, "a view of imported memory")                                 \
    ROW(cuDestroyExternalMemory, TRUTH, "as cuImportExternalMemory")                                                    \
    ROW(cuGraphAddMemAllocNode, HARMLESS, "a plan; counted when it is instantiated")                                    \
    ROW(cuGraphAddMemFreeNode, HARMLESS, "a plan")                                                                      \
    ROW(cuGraphAddNode, HARMLESS, "a plan; counted when it is instantiated")                                            \
    ROW(cuGraphAddNode_v2, HARMLESS, "a plan; counted when it is instantiated")                                         \
    ROW(cuStreamBeginCapture, HARMLESS, "a plan; allocations in a capture are nodes")                                   \
    ROW(cuStreamBeginCapture_v2, HARMLESS, "a plan; allocations in a capture are nodes")                                \
    ROW(cuStreamBeginCaptureToGraph, HARMLESS, "a plan; allocations in a capture are nodes")                            \
    ROW(cuGraphUpload, HARMLESS, "memory that was counted when the graph was instantiated")                             \
    ROW(cuGraphUpload_ptsz, HARMLESS, "memory that was counted when the graph was instantiated")                        \
    ROW(cuDeviceSetGraphMemAttribute, HARMLESS, "resets high-water marks")                                              \
    ROW(cuDeviceGetGraphMemAttribute, HARMLESS, "the graphs' own numbers, which are right")                             \
    ROW(cuDeviceGraphMemTrim, HARMLESS, "gives back what no executable graph needs, which is not counted")              \
    ROW(cuMulticastCreate, TRUTH, "tables; the memory bound to it is counted at cuMemCreate")                           \
    ROW(cuMulticastAddDevice, TRUTH, "as cuMulticastCreate")                                                            \
    ROW(cuMulticastBindMem, TRUTH, "as cuMulticastCreate; a binding that outlives the handle keeps the memory")         \
    ROW(cuMulticastBindMem_v2, TRUTH, "as cuMulticastBindMem")                                                          \
    ROW(cuMulticastBindAddr, TRUTH, "as cuMulticastCreate")                                                             \
    ROW(cuMulticastBindAddr_v2, TRUTH, "as cuMulticastBindMem")                                                         \
    ROW(cuLogicalEndpointCreate, TRUTH, "CUDA 13.3's fabric endpoints; as cuMulticastCreate")                           \
    ROW(cuGraphicsGLRegisterBuffer, TRUTH, "memory that OpenGL obtained")                                               \
    ROW(cuGraphicsGLRegisterImage, TRUTH, "memory that OpenGL obtained")                                                \
    ROW(cuGraphicsEGLRegisterImage, TRUTH, "memory that EGL obtained")                                                  \
    ROW(cuGraphicsVDPAURegisterVideoSurface, TRUTH, "memory that VDPAU obtained")                                       \
    ROW(cuGraphicsVDPAURegisterOutputSurface, TRUTH, "memory that VDPAU obtained")                                      \
    ROW(cuMemPrefetchAsync, HARMLESS, "moves managed memory that is counted in full")                                   \
    ROW(cuMemPrefetchAsync_v2, HARMLESS, "moves managed memory that is counted in full")                                \
    ROW(cuMemPrefetchBatchAsync, HARMLESS, "moves managed memory that is counted in full")                              \
    ROW(cuCheckpointProcessRestore, TRUTH, "brings back what a checkpoint took away; the slot stayed as it was")        \
    ROW(cuDeviceGetProperties, HARMLESS, "tells of no device memory, in spite of its name")                             \
    ROW(cuArrayGetMemoryRequirements, HARMLESS, "what an array needs, which is right")

/* What the wrappers themselves ask of the driver. */
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
    ROW(cuDeviceGraphMemTrim)
