#include "cuda_count.h"

#include "account.h"
#include "record.h"

enum { PAGE = RECORD_GPU_PAGE };

uint64_t whole_pages(uint64_t bytes)
{
    return bytes > UINT64_MAX - PAGE ? UINT64_MAX : (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static uint64_t page_of(uint64_t address) { return address & ~(uint64_t)(PAGE - 1); }

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

/* join_page adds an allocation to its page. The bytes of t are a page, which is in the account
 * already. They stay there if the page is new. */
static bool join_page(const struct track *t)
{
    struct track page = *t;
    bool joined;

    page.kind = TRACK_PAGE;
    page.key = page_of(t->key);
    page.count = 1;
    if (!track_join(&page, &joined)) return false;
    if (joined) uncount(&page);
    return true;
}

CUresult finish_pointer(CUresult result, const struct track *t, uint64_t bytes, void (*undo)(uint64_t))
{
    if (bytes > PAGE / 2) return finish_allocation(result, t, undo);
    if (result == CUDA_SUCCESS && !join_page(t)) {
        undo(t->key);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) uncount(t);
    return result;
}

/* leave_page takes an allocation out of its page. Only the last one has the page's bytes. */
static bool leave_page(uint64_t address, struct track *t)
{
    if (!track_count(TRACK_PAGE, page_of(address), -1, t)) return false;
    if (t->count > 0) t->bytes = 0;
    t->key = address;
    return true;
}

bool untrack_pointer(uint64_t address, struct track *t)
{
    return track_remove(TRACK_POINTER, address, t) || leave_page(address, t);
}

void track_again(const struct track *t)
{
    struct track page = *t, old;

    if (t->kind != TRACK_PAGE) {
        track_put(t, &old);
        return;
    }
    if (t->bytes == 0) { /* others were in the page */
        if (track_count(TRACK_PAGE, page_of(t->key), 1, &old)) return;
        if (t->device < 0 || !account_take(t->device, PAGE)) return;
        page.bytes = PAGE;
    }
    join_page(&page);
}
