/* Prints the tables for the checks of test/shim, one row a line: "wrapped cuMemAlloc COUNTED the
 * reason". */
#include "../cuda_entries.h"
#include "../nvml_entries.h"

#include <stdio.h>

int main(void)
{
#define WRAPPED(name, how, why) puts("wrapped " #name " " #how " " why);
#define PASSED(name, how, why) puts("passed " #name " " #how " " why);
    CUDA_WRAPPED(WRAPPED)
#define LAUNCHED(name, how, why) puts("launched " #name " " #how " " why);
    CUDA_LAUNCHES(LAUNCHED)
    CUDA_PASSED(PASSED)
    NVML_WRAPPED(WRAPPED)
    NVML_PASSED(PASSED)
    return 0;
}
