/* What is done about each entry point of libnvidia-ml that reports memory or processes, as in
 * cuda_entries.h.
 *
 * REFUSED   the wrapper answers with an error */
#pragma once

#define NVML_WRAPPED(ROW)                                                                                               \
    ROW(nvmlDeviceGetMemoryInfo, REPORTED, "the grant, what is used and what is free of it")                            \
    ROW(nvmlDeviceGetMemoryInfo_v2, REPORTED, "the grant, what is used and what is free of it")                         \
    ROW(nvmlDeviceGetConfComputeProtectedMemoryUsage, REPORTED, "as nvmlDeviceGetMemoryInfo")                           \
    ROW(nvmlDeviceGetComputeRunningProcesses, REPORTED, "the container's own processes and what they use")              \
    ROW(nvmlDeviceGetComputeRunningProcesses_v2, REPORTED, "the container's own processes and what they use")           \
    ROW(nvmlDeviceGetComputeRunningProcesses_v3, REPORTED, "the container's own processes and what they use")           \
    ROW(nvmlDeviceGetGraphicsRunningProcesses, REPORTED, "none: all of the container's processes are in the compute list") \
    ROW(nvmlDeviceGetGraphicsRunningProcesses_v2, REPORTED, "none: all of the container's processes are in the compute list") \
    ROW(nvmlDeviceGetGraphicsRunningProcesses_v3, REPORTED, "none: all of the container's processes are in the compute list") \
    ROW(nvmlDeviceGetMPSComputeRunningProcesses, REPORTED, "none: all of the container's processes are in the compute list") \
    ROW(nvmlDeviceGetMPSComputeRunningProcesses_v2, REPORTED, "none: all of the container's processes are in the compute list") \
    ROW(nvmlDeviceGetMPSComputeRunningProcesses_v3, REPORTED, "none: all of the container's processes are in the compute list") \
    ROW(nvmlDeviceGetRunningProcessDetailList, REFUSED, "memory of other containers' processes; NVML_ERROR_NOT_SUPPORTED")

#define NVML_PASSED(ROW)                                                                                                \
    ROW(nvmlDeviceGetBAR1MemoryInfo, HARMLESS, "an aperture of the card, not memory")                                   \
    ROW(nvmlDeviceGetProcessUtilization, HARMLESS, "shares of time, by pids of the node")                               \
    ROW(nvmlDeviceGetProcessesUtilizationInfo, HARMLESS, "shares of time, by pids of the node")                         \
    ROW(nvmlDeviceGetAccountingMode, HARMLESS, "whether accounting is on")                                              \
    ROW(nvmlDeviceGetAccountingStats, HARMLESS, "off unless the node's administrator turned it on")                     \
    ROW(nvmlDeviceGetAccountingPids, HARMLESS, "off unless the node's administrator turned it on")                      \
    ROW(nvmlDeviceGetAccountingBufferSize, HARMLESS, "off unless the node's administrator turned it on")                \
    ROW(nvmlDeviceGetAttributes, HARMLESS, "the profile of a MIG device, which the shim does not limit")                \
    ROW(nvmlDeviceGetAttributes_v2, HARMLESS, "the profile of a MIG device, which the shim does not limit")             \
    ROW(nvmlDeviceGetUtilizationRates, HARMLESS, "shares of time")                                                      \
    ROW(nvmlDeviceGetMemoryLimits_v1, HARMLESS, "the driver's own limit of a cgroup")                                   \
    ROW(nvmlDeviceSetMemoryLimits_v1, HARMLESS, "needs root on the node")                                               \
    ROW(nvmlDeviceGetConfComputeMemSizeInfo, HARMLESS, "how a card's memory is divided, the same for all")              \
    ROW(nvmlVgpuInstanceGetFbUsage, HARMLESS, "of a host of vGPUs; a container with a limit is on none")                \
    ROW(nvmlInternalGetExportTable, HARMLESS, "undocumented tables that nvidia-smi needs to start")

#define NVML_USED(ROW) ROW(nvmlDeviceGetUUID)
