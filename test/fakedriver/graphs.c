/* Graphs with memory of their own. The memory of a graph is taken at its first launch and kept, by the device, after the
 * executable graph is gone until it is trimmed. Nodes that are added later get the addresses of nodes whose memory the
 * same graph has freed before. */
#include "graphs.h"
#include "objects.h"

#include <string.h>

#define CHECK(condition, error) do { if (!(condition)) return error; } while (0)

struct CUgraph_st { struct object head; };
struct CUgraphNode_st { struct object head; CUgraph graph, child; int type, device; CUdeviceptr address; uint64_t bytes; bool freed, reused, reuses; };
struct CUgraphExec_st { struct object head; uint64_t bytes[SHARED_GPUS]; bool launched; };

/* Memory that a graph does not free: it is live from its launch until it is freed, also without the executable graph. */
struct unfreed { struct object head; CUgraphExec exec; int device; CUdeviceptr address; uint64_t bytes; bool live; };

static uint64_t reserved[SHARED_GPUS], used[SHARED_GPUS]; /* by device */

CUgraph graph_new(void) { return object_new(OBJECT_GRAPH, sizeof(struct CUgraph_st)); }

static CUgraphNode node_new(CUgraph g, int type)
{
    CUgraphNode n = object_new(OBJECT_NODE, sizeof *n);
    n->graph = g;
    n->type = type;
    return n;
}

/* suits: the memory of a freed node can be that of a new one. */
static bool suits(void *node, const void *wanted)
{
    const struct CUgraphNode_st *n = node, *w = wanted;
    return n->graph == w->graph && n->device == w->device && n->freed && !n->reused && n->bytes >= w->bytes;
}

CUresult graph_add_memory(CUgraph g, CUdevice device, size_t bytes, CUdeviceptr *p)
{
    CUgraphNode n, former;

    CHECK(p && bytes, CUDA_ERROR_INVALID_VALUE);
    n = node_new(g, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    n->device = device;
    n->bytes = bytes;
    former = object_find(OBJECT_NODE, suits, n);
    if (former) former->reused = n->reuses = true;
    n->address = *p = former ? former->address : address_new(bytes);
    return CUDA_SUCCESS;
}

/* at finds the last node with the address. */
static bool at(void *n, const void *p) { return ((CUgraphNode)n)->address == *(const CUdeviceptr *)p; }

CUresult graph_free_memory(CUgraph g, CUdeviceptr p)
{
    CUgraphNode n = object_find(OBJECT_NODE, at, &p);

    CHECK(n && !n->freed, CUDA_ERROR_INVALID_VALUE);
    if (n->graph == g) n->freed = true;
    node_new(g, CU_GRAPH_NODE_TYPE_MEM_FREE);
    return CUDA_SUCCESS;
}

API CUresult cuGraphCreate(CUgraph *g, unsigned int flags)
{
    GUARD;
    CHECK(g && flags == 0, CUDA_ERROR_INVALID_VALUE);
    *g = graph_new();
    return CUDA_SUCCESS;
}

static bool of(void *n, const void *graph) { return ((CUgraphNode)n)->graph == graph; }

API CUresult cuGraphDestroy(CUgraph g)
{
    GUARD;
    CUgraphNode n;

    CHECK(object_is(g, OBJECT_GRAPH), CUDA_ERROR_INVALID_VALUE);
    while ((n = object_find(OBJECT_NODE, of, g))) object_delete(&n->head);
    object_delete(&g->head);
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    GUARD;
    (void)after, (void)n;
    CHECK(node && p && object_is(g, OBJECT_GRAPH), CUDA_ERROR_INVALID_VALUE);
    CHECK(device_gpu(p->poolProps.location.id) >= 0, CUDA_ERROR_INVALID_DEVICE);
    CHECK(graph_add_memory(g, p->poolProps.location.id, p->bytesize, &p->dptr) == CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE);
    *node = object_find(OBJECT_NODE, at, &p->dptr);
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUgraph child)
{
    GUARD;
    (void)after, (void)n;
    CHECK(node && object_is(g, OBJECT_GRAPH) && object_is(child, OBJECT_GRAPH), CUDA_ERROR_INVALID_VALUE);
    *node = node_new(g, CU_GRAPH_NODE_TYPE_GRAPH);
    (*node)->child = child;
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph g, const CUgraphNode *after, const void *edges, size_t n, CUgraphNodeParams *p)
{
    GUARD;
    (void)edges;
    CHECK(p && p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_ERROR_INVALID_VALUE);
    return cuGraphAddMemAllocNode(node, g, after, n, &p->alloc);
}
API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUgraphNodeParams *p)
{
    GUARD;
    return cuGraphAddNode_v2(node, g, after, NULL, n, p);
}

struct collection { CUgraph graph; CUgraphNode *to; size_t found, room; };
static bool collect(void *node, const void *key)
{
    struct collection *c = *(struct collection *const *)key;
    if (((CUgraphNode)node)->graph == c->graph && c->found++ < c->room) c->to[c->found - 1] = node;
    return false;
}

API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n)
{
    GUARD;
    struct collection c = {.graph = g, .to = nodes, .room = nodes && n ? *n : 0}, *key = &c;

    CHECK(n && object_is(g, OBJECT_GRAPH), CUDA_ERROR_INVALID_VALUE);
    object_find(OBJECT_NODE, collect, &key);
    *n = nodes && c.found > c.room ? c.room : c.found;
    return CUDA_SUCCESS;
}
API CUresult cuGraphNodeGetType(CUgraphNode n, int *type)
{
    GUARD;
    CHECK(type && object_is(n, OBJECT_NODE), CUDA_ERROR_INVALID_VALUE);
    *type = n->type;
    return CUDA_SUCCESS;
}
API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode n, CUgraph *g)
{
    GUARD;
    CHECK(g && object_is(n, OBJECT_NODE) && n->child, CUDA_ERROR_INVALID_VALUE);
    *g = n->child;
    return CUDA_SUCCESS;
}
API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    GUARD;
    CHECK(p && object_is(n, OBJECT_NODE) && n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_ERROR_INVALID_VALUE);
    memset(p, 0, sizeof *p);
    p->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, n->device};
    p->bytesize = n->bytes;
    p->dptr = n->address;
    return CUDA_SUCCESS;
}

static void unfreed_new(CUgraphExec e, CUgraphNode n)
{
    struct unfreed *u = object_new(OBJECT_UNFREED, sizeof *u);
    u->exec = e;
    u->device = n->device;
    u->address = n->address;
    u->bytes = n->bytes;
}
static bool of_exec(void *u, const void *e) { return ((struct unfreed *)u)->exec == e; }
static bool live_at(void *u, const void *p) { return ((struct unfreed *)u)->live && ((struct unfreed *)u)->address == *(const CUdeviceptr *)p; }
static bool goes_live(void *u, const void *e)
{
    if (of_exec(u, e)) ((struct unfreed *)u)->live = true;
    return false;
}

bool graph_memory_free(CUdeviceptr p)
{
    GUARD;
    struct unfreed *u = object_find(OBJECT_UNFREED, live_at, &p);

    if (!u) return false;
    u->live = false;
    if (u->exec) return true;
    used[u->device] -= u->bytes;
    object_delete(&u->head);
    return true;
}

/* total adds up the graph's memory by device, with that of its child graphs. */
static bool total(void *node, const void *key)
{
    struct { CUgraph graph; uint64_t *bytes; } const *t = key;
    CUgraphNode n = node;

    if (n->graph == t->graph && n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !n->reuses) t->bytes[n->device] += n->bytes;
    return false;
}
static void add_up(CUgraph g, CUgraphExec e)
{
    uint64_t *bytes = e->bytes;
    struct { CUgraph graph; uint64_t *bytes; } t = {g, bytes};
    CUgraphNode nodes[64];
    size_t n = 64;

    object_find(OBJECT_NODE, total, &t);
    cuGraphGetNodes(g, nodes, &n);
    for (size_t i = 0; i < n; i++)
        if (nodes[i]->child) add_up(nodes[i]->child, e);
        else if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !nodes[i]->freed) unfreed_new(e, nodes[i]);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long flags)
{
    GUARD;
    (void)flags;
    CHECK(e && object_is(g, OBJECT_GRAPH), CUDA_ERROR_INVALID_VALUE);
    *e = object_new(OBJECT_EXEC, sizeof **e);
    add_up(g, *e);
    return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiate_v2(CUgraphExec *e, CUgraph g, CUgraphNode *bad, char *log, size_t size)
{
    GUARD;
    (void)bad, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(e, g, 0);
}
API CUresult cuGraphInstantiate(CUgraphExec *e, CUgraph g, CUgraphNode *bad, char *log, size_t size) { return cuGraphInstantiate_v2(e, g, bad, log, size); }
API CUresult cuGraphInstantiateWithParams(CUgraphExec *e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    GUARD;
    CHECK(p, CUDA_ERROR_INVALID_VALUE);
    return cuGraphInstantiateWithFlags(e, g, p->flags);
}
API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { return cuGraphInstantiateWithParams(e, g, p); }

static CUresult launch(CUgraphExec e)
{
    GUARD;
    CHECK(object_is(e, OBJECT_EXEC), CUDA_ERROR_INVALID_VALUE);
    for (int d = 0; d < SHARED_GPUS && !e->launched; d++) {
        uint64_t more = used[d] + e->bytes[d] > reserved[d] ? used[d] + e->bytes[d] - reserved[d] : 0;
        CHECK(more == 0 || shared_add(device_gpu(d), SHARED_MEMORY, more), CUDA_ERROR_OUT_OF_MEMORY);
        reserved[d] += more;
        used[d] += e->bytes[d];
    }
    e->launched = true;
    object_find(OBJECT_UNFREED, goes_live, e);
    return CUDA_SUCCESS;
}
API CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
    CUresult r = launch(e);
    return r == CUDA_SUCCESS ? launched(s) : r;
}
API CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { return cuGraphLaunch(e, ptsz(s)); }

static void destroy(CUgraphExec e)
{
    for (int d = 0; d < SHARED_GPUS && e->launched; d++) used[d] -= e->bytes[d];
    for (struct unfreed *u; (u = object_find(OBJECT_UNFREED, of_exec, e));) {
        u->exec = NULL;
        if (u->live) used[u->device] += u->bytes;
        else object_delete(&u->head);
    }
    object_delete(&e->head);
}

API CUresult cuGraphExecDestroy(CUgraphExec e)
{
    GUARD;
    CHECK(object_is(e, OBJECT_EXEC), CUDA_ERROR_INVALID_VALUE);
    destroy(e);
    return CUDA_SUCCESS;
}

static bool has_memory(void *exec, const void *device)
{
    return ((CUgraphExec)exec)->bytes[*(const CUdevice *)device] > 0;
}
static bool live_on(void *object, const void *device)
{
    const struct unfreed *u = object;
    return u->live && u->device == *(const CUdevice *)device;
}

void graphs_reset(CUdevice d)
{
    GUARD;
    CUgraphExec e;
    struct unfreed *u;

    while ((e = object_find(OBJECT_EXEC, has_memory, &d))) destroy(e);
    while ((u = object_find(OBJECT_UNFREED, live_on, &d))) graph_memory_free(u->address);
}

API CUresult cuDeviceGraphMemTrim(CUdevice d)
{
    GUARD;
    CHECK(device_gpu(d) >= 0, CUDA_ERROR_INVALID_DEVICE);
    if (reserved[d] > used[d]) shared_sub(device_gpu(d), SHARED_MEMORY, reserved[d] - used[d]);
    reserved[d] = used[d];
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetGraphMemAttribute(CUdevice d, int attribute, void *value)
{
    GUARD;
    CHECK(device_gpu(d) >= 0, CUDA_ERROR_INVALID_DEVICE);
    *(uint64_t *)value = attribute >= 2 ? reserved[d] : used[d];
    return CUDA_SUCCESS;
}
