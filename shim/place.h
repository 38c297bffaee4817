/* The paths of the shim's files in a container. docs/adr/0020 has the reasons. */
#pragma once

#define PLACE "/run/gpuledger/"
#define PLACE_LIMITS PLACE "limits"
#define PLACE_REGION PLACE "region"
#define PLACE_LIBCUDA PLACE "driver/libcuda.so.1"
#define PLACE_LIBNVML PLACE "driver/libnvidia-ml.so.1"
