/* Graphs with memory nodes. The driver takes their memory at the first launch and keeps it while the executable graph
 * lives, so it is counted from instantiation to destruction: one entry a device. */
#include "cuda.h"

#include "os.h"

enum { DEVICES = 64, DEPTH = 16 };

struct demand { uint64_t bytes[DEVICES]; /* by ordinal */ };

/* key_of: a handle is an address, whose highest byte is free for the ordinal. */
static uint64_t key_of(CUgraphExec e, int ordinal) { return (uint64_t)(uintptr_t)e ^ (uint64_t)ordinal << 56; }

static bool add_graph(struct demand *d, CUgraph g, int depth);

static bool add_node(struct demand *d, CUgraphNode n, int depth)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p;
    CUgraph child;
    int type = 0, ordinal;

    if (REAL(cuGraphNodeGetType)(n, &type)) return false;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) return REAL(cuGraphChildGraphNodeGetGraph)(n, &child) == CUDA_SUCCESS && add_graph(d, child, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return true;
    if (REAL(cuGraphMemAllocNodeGetParams)(n, &p)) return false;
    ordinal = p.poolProps.location.id;
    if (p.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return true;
    return ordinal >= 0 && ordinal < DEVICES && !__builtin_add_overflow(d->bytes[ordinal], p.bytesize, &d->bytes[ordinal]);
}

/* add_graph adds up the memory nodes, false if that can't be known. */
static bool add_graph(struct demand *d, CUgraph g, int depth)
{
    size_t n = 0;
    CUgraphNode *nodes;
    bool ok;

    if (depth > DEPTH || REAL(cuGraphGetNodes)(g, NULL, &n)) return false;
    if (n == 0) return true;
    nodes = os_pages(n * sizeof *nodes);
    ok = nodes && REAL(cuGraphGetNodes)(g, nodes, &n) == CUDA_SUCCESS;
    for (size_t i = 0; ok && i < n; i++) ok = add_node(d, nodes[i], depth);
    if (nodes) os_pages_free(nodes, n * sizeof *nodes);
    return ok;
}

static void give_all(const struct demand *d, int ordinals)
{
    for (int i = 0; i < ordinals; i++)
        if (d->bytes[i]) account_give(device_of(i), d->bytes[i]);
}

static bool take_all(const struct demand *d)
{
    for (int i = 0; i < DEVICES; i++)
        if (d->bytes[i] && !account_take(device_of(i), d->bytes[i])) {
            give_all(d, i);
            return false;
        }
    return true;
}

/* begin counts a graph's memory. A graph that the driver would not take either is left for it to refuse. */
static CUresult begin(struct demand *d, CUgraph g)
{
    size_t n;

    *d = (struct demand){{0}};
    if (!g || REAL(cuGraphGetNodes)(g, NULL, &n)) return CUDA_SUCCESS;
    return add_graph(d, g, 0) && take_all(d) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool enter(const struct demand *d, CUgraphExec e)
{
    struct track old;

    for (int i = 0; i < DEVICES; i++) {
        struct track t = {.kind = TRACK_EXEC, .key = key_of(e, i), .bytes = d->bytes[i], .device = (int8_t)device_of(i)};
        if (!d->bytes[i]) continue;
        if (!track_put(&t, &old)) return false;
        give(&old);
    }
    return true;
}

static CUresult finish(CUresult r, const struct demand *d, CUgraphExec *e)
{
    if (r == CUDA_SUCCESS && !enter(d, *e)) {
        REAL(cuGraphExecDestroy)(*e);
        for (int i = 0; i < DEVICES; i++) track_remove(TRACK_EXEC, key_of(*e, i), &(struct track){0});
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r != CUDA_SUCCESS) give_all(d, DEVICES);
    return r;
}

#define INSTANTIATE(function, parameters, ...)                                \
    API CUresult function parameters                                          \
    {                                                                         \
        struct demand d;                                                      \
        CUresult r;                                                           \
        if (!exec) return REAL(function)(__VA_ARGS__);                        \
        if ((r = begin(&d, graph)) != CUDA_SUCCESS) return r;                 \
        return finish(REAL(function)(__VA_ARGS__), &d, exec);                 \
    }
INSTANTIATE(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size), exec, graph, bad, log, size)
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size), exec, graph, bad, log, size)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags), exec, graph, flags)
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p), exec, graph, p)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p), exec, graph, p)

/* The device would keep the memory for the next graph; trimmed, it is what is counted: gone. */
API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct track taken[DEVICES], old;
    CUresult r;

    for (int i = 0; i < DEVICES; i++) track_remove(TRACK_EXEC, key_of(exec, i), &taken[i]);
    r = REAL(cuGraphExecDestroy)(exec);
    for (int i = 0; i < DEVICES; i++) {
        if (!taken[i].kind) continue;
        if (r != CUDA_SUCCESS) {
            track_put(&taken[i], &old);
            continue;
        }
        REAL(cuDeviceGraphMemTrim)(i);
        give(&taken[i]);
    }
    return r;
}
