#include "cuda_count.h"

#include "account.h"

void uncount(const struct track *t)
{
    if (t->kind && t->device >= 0) account_give(t->device, t->bytes);
}

CUresult finish_allocation(CUresult result, const struct track *t, void (*undo)(uint64_t))
{
    struct track old;

    if (result == CUDA_SUCCESS && !track_put(t, &old)) {
        undo(t->key);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result == CUDA_SUCCESS) {
        uncount(&old);
    }
    if (result != CUDA_SUCCESS) uncount(t);
    return result;
}
