/* Graphs with memory nodes. The driver allocates their memory at the first launch and keeps it
 * until the executable graph is destroyed. It is counted from instantiation to destruction, with
 * one entry a device. */
#include "account.h"
#include "cuda_count.h"
#include "cuda_devices.h"
#include "cuda_driver.h"
#include "os.h"
#include "track.h"

enum { DEVICES = 64, DEPTH = 16 };

struct graph_memory { uint64_t bytes[DEVICES]; /* by ordinal */ };

/* key_of: a handle is an address. Its highest byte is free for the ordinal. */
static uint64_t key_of(CUgraphExec e, int ordinal) { return (uint64_t)(uintptr_t)e ^ (uint64_t)ordinal << 56; }

static bool add_graph(struct graph_memory *m, CUgraph g, int depth);

static bool add_node(struct graph_memory *m, CUgraphNode n, int depth)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p;
    CUgraph child;
    int type = 0, ordinal;

    if (REAL(cuGraphNodeGetType)(n, &type)) return false;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return REAL(cuGraphChildGraphNodeGetGraph)(n, &child) == CUDA_SUCCESS && add_graph(m, child, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return true;
    if (REAL(cuGraphMemAllocNodeGetParams)(n, &p)) return false;
    if (ordinal_of(&p.poolProps.location, p.poolProps.allocType, &ordinal)) return false;
    if (ordinal == HOST_MEMORY) return true;
    return ordinal >= 0 && ordinal < DEVICES &&
           !__builtin_add_overflow(m->bytes[ordinal], p.bytesize, &m->bytes[ordinal]);
}

/* add_graph adds the bytes of all memory nodes, false if the driver does not report them. */
static bool add_graph(struct graph_memory *m, CUgraph g, int depth)
{
    size_t n = 0;
    CUgraphNode *nodes;
    bool ok;

    if (depth > DEPTH || REAL(cuGraphGetNodes)(g, NULL, &n)) return false;
    if (n == 0) return true;
    nodes = os_pages(n * sizeof *nodes);
    ok = nodes && REAL(cuGraphGetNodes)(g, nodes, &n) == CUDA_SUCCESS;
    for (size_t i = 0; ok && i < n; i++) ok = add_node(m, nodes[i], depth);
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
    for (int i = 0; i < DEVICES; i++)
        if (m->bytes[i] && !account_take(device_of(i), m->bytes[i])) {
            give_all(m, i);
            return false;
        }
    return true;
}

/* begin_instantiate counts a graph's memory. A graph that the driver cannot read is not counted:
 * the driver refuses it. */
static CUresult begin_instantiate(struct graph_memory *m, CUgraph g)
{
    size_t n;

    *m = (struct graph_memory){{0}};
    if (!g || REAL(cuGraphGetNodes)(g, NULL, &n)) return CUDA_SUCCESS;
    return add_graph(m, g, 0) && take_all(m) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool add_entries(const struct graph_memory *m, CUgraphExec e)
{
    struct track old;

    for (int i = 0; i < DEVICES; i++) {
        struct track t = {
            .kind = TRACK_EXEC, .key = key_of(e, i), .bytes = m->bytes[i], .device = (int8_t)device_of(i)};
        if (!m->bytes[i]) continue;
        if (!track_put(&t, &old)) return false;
        uncount(&old);
    }
    return true;
}

static CUresult finish_instantiate(CUresult r, const struct graph_memory *m, CUgraphExec *e)
{
    if (r == CUDA_SUCCESS && !add_entries(m, *e)) {
        REAL(cuGraphExecDestroy)(*e);
        for (int i = 0; i < DEVICES; i++) track_remove(TRACK_EXEC, key_of(*e, i), &(struct track){0});
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r != CUDA_SUCCESS) give_all(m, DEVICES);
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

/* The driver would keep the memory for the next graph. The trim returns it to the GPU, as the
 * account says. */
API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct track removed[DEVICES], old;
    CUresult r;

    for (int i = 0; i < DEVICES; i++) track_remove(TRACK_EXEC, key_of(exec, i), &removed[i]);
    r = REAL(cuGraphExecDestroy)(exec);
    for (int i = 0; i < DEVICES; i++) {
        if (!removed[i].kind) continue;
        if (r != CUDA_SUCCESS) {
            track_put(&removed[i], &old);
            continue;
        }
        REAL(cuDeviceGraphMemTrim)(i);
        uncount(&removed[i]);
    }
    return r;
}
