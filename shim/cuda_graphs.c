/* Graphs with memory nodes. The driver allocates their memory at the first launch and keeps it
 * until the executable graph is destroyed. It is counted from instantiation to destruction, with
 * one entry a device, and what is not freed by then longer (cuda_left.h). */
#include "account.h"
#include "cuda_count.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "cuda_pools.h"
#include "os.h"
#include "track.h"

enum { DEPTH = 16 };

struct graph_memory { uint64_t bytes[ORDINALS]; /* by ordinal */ };

/* key_of: a handle is an address. Its highest byte is free for the ordinal. */
static uint64_t key_of(CUgraphExec e, int ordinal) { return (uint64_t)(uintptr_t)e ^ (uint64_t)ordinal << 56; }

/* What the nodes of a graph allocate. Nodes whose memory is not in use at the same time may get the
 * same addresses. */
struct range { uint64_t start, end; int ordinal; };
struct ranges { struct range *at; size_t n, room; };

static void free_ranges(struct ranges *r)
{
    if (r->at) os_pages_free(r->at, r->room * sizeof *r->at);
}

static bool add_range(struct ranges *r, struct range one)
{
    struct ranges larger = {.n = r->n, .room = r->room ? 2 * r->room : 128};

    if (r->n == r->room) {
        larger.at = os_pages(larger.room * sizeof *larger.at);
        if (!larger.at) return false;
        for (size_t i = 0; i < r->n; i++) larger.at[i] = r->at[i];
        free_ranges(r);
        *r = larger;
    }
    r->at[r->n++] = one;
    return true;
}

static bool is_before(const struct range *a, const struct range *b)
{
    return a->ordinal != b->ordinal ? a->ordinal < b->ordinal : a->start < b->start;
}

/* Shell's sort: qsort may call malloc. */
static void sort_ranges(struct ranges *r)
{
    for (size_t gap = r->n / 2; gap > 0; gap /= 2)
        for (size_t i = gap; i < r->n; i++) {
            struct range one = r->at[i];
            size_t to = i;
            for (; to >= gap && is_before(&one, &r->at[to - gap]); to -= gap) r->at[to] = r->at[to - gap];
            r->at[to] = one;
        }
}

/* add_up counts each address once. */
static void add_up(struct graph_memory *m, struct ranges *r)
{
    uint64_t end = 0;

    sort_ranges(r);
    for (size_t i = 0; i < r->n; i++) {
        const struct range *one = &r->at[i];
        if (i > 0 && one->ordinal != one[-1].ordinal) end = 0;
        if (one->end <= end) continue;
        m->bytes[one->ordinal] += one->end - (one->start > end ? one->start : end);
        end = one->end;
    }
}

static bool add_graph(struct ranges *r, CUgraph g, int depth);

static bool add_node(struct ranges *r, CUgraphNode n, int depth)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p;
    struct range one;
    CUgraph child;
    int type = 0;

    if (REAL(cuGraphNodeGetType)(n, &type)) return false;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return REAL(cuGraphChildGraphNodeGetGraph)(n, &child) == CUDA_SUCCESS && add_graph(r, child, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return true;
    if (REAL(cuGraphMemAllocNodeGetParams)(n, &p)) return false;
    if (ordinal_of(&p.poolProps.location, p.poolProps.allocType, &one.ordinal)) return false;
    if (one.ordinal == HOST_MEMORY) return true;
    one.start = p.dptr;
    return one.ordinal >= 0 && one.ordinal < ORDINALS && !__builtin_add_overflow(p.dptr, p.bytesize, &one.end) &&
           add_range(r, one);
}

/* add_graph adds the ranges of all memory nodes, false if the driver does not report them. */
static bool add_graph(struct ranges *r, CUgraph g, int depth)
{
    size_t n = 0;
    CUgraphNode *nodes;
    bool ok;

    if (depth > DEPTH || REAL(cuGraphGetNodes)(g, NULL, &n)) return false;
    if (n == 0) return true;
    nodes = os_pages(n * sizeof *nodes);
    ok = nodes && REAL(cuGraphGetNodes)(g, nodes, &n) == CUDA_SUCCESS;
    for (size_t i = 0; ok && i < n; i++) ok = add_node(r, nodes[i], depth);
    if (nodes) os_pages_free(nodes, n * sizeof *nodes);
    return ok;
}

static void give_all(const struct graph_memory *m, int ordinals)
{
    for (int i = 0; i < ordinals; i++)
        if (m->bytes[i]) account_give(device_of(i), m->bytes[i]);
}

static bool take_all(const struct graph_memory *m)
{
    for (int i = 0; i < ORDINALS; i++)
        if (m->bytes[i] && !take_of_grant(device_of(i), m->bytes[i])) {
            give_all(m, i);
            return false;
        }
    return true;
}

/* begin_instantiate counts a graph's memory. A graph that the driver cannot read is not counted:
 * the driver refuses it. */
static CUresult begin_instantiate(struct graph_memory *m, CUgraph g)
{
    struct ranges r = {.n = 0};
    size_t n;
    bool ok;

    *m = (struct graph_memory){{0}};
    if (!g || REAL(cuGraphGetNodes)(g, NULL, &n)) return CUDA_SUCCESS;
    ok = add_graph(&r, g, 0);
    if (ok) add_up(m, &r);
    free_ranges(&r);
    return ok && take_all(m) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool add_entries(const struct graph_memory *m, CUgraphExec e)
{
    struct track old;

    for (int i = 0; i < ORDINALS; i++) {
        struct track t = {
            .kind = TRACK_EXEC, .key = key_of(e, i), .bytes = m->bytes[i], .device = (int8_t)device_of(i)};
        if (!m->bytes[i]) continue;
        if (!track_put(&t, &old)) return false;
        left_instantiated(i, m->bytes[i]);
        if (old.kind) left_destroyed(i, old.device, old.bytes);
    }
    return true;
}

static CUresult finish_instantiate(CUresult r, const struct graph_memory *m, CUgraphExec *e)
{
    struct track t;

    if (r == CUDA_SUCCESS && !add_entries(m, *e)) {
        REAL(cuGraphExecDestroy)(*e);
        for (int i = 0; i < ORDINALS; i++)
            if (track_remove(TRACK_EXEC, key_of(*e, i), &t)) left_instantiated(i, -t.bytes);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r != CUDA_SUCCESS) give_all(m, ORDINALS);
    return r;
}

#define INSTANTIATE(function, parameters, ...)                            \
    API CUresult function parameters                                      \
    {                                                                     \
        struct graph_memory m;                                            \
        CUresult r;                                                       \
        if (!exec) return REAL(function)(__VA_ARGS__);                    \
        if ((r = begin_instantiate(&m, graph)) != CUDA_SUCCESS) return r; \
        return finish_instantiate(REAL(function)(__VA_ARGS__), &m, exec); \
    }
INSTANTIATE(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size), exec, graph, bad, log, size)
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size), exec, graph, bad, log, size)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags), exec, graph, flags)
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p), exec, graph, p)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p), exec, graph, p)

/* The driver would keep the memory for the next graph. left_destroyed returns it to the GPU, as the
 * account says. */
API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct track removed[ORDINALS], old;
    CUresult r;

    for (int i = 0; i < ORDINALS; i++) track_remove(TRACK_EXEC, key_of(exec, i), &removed[i]);
    r = REAL(cuGraphExecDestroy)(exec);
    for (int i = 0; i < ORDINALS; i++) {
        if (!removed[i].kind) continue;
        if (r != CUDA_SUCCESS) {
            track_put(&removed[i], &old);
            continue;
        }
        left_destroyed(i, removed[i].device, removed[i].bytes);
    }
    return r;
}
