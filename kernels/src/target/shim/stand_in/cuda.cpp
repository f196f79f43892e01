/* A driver of a GPU that is the cores of this machine, for tests: what libcuda.so.1 does for Memlet, and no more.
 *
 * Work waits on its stream until somebody waits for it, so that whoever reads too early reads what was there before; captured work
 * runs in any order that its events allow, so that a dependency that is missing shows sooner or later. A kernel that the shim finds
 * wrong leaves the context broken, as on a GPU.
 *
 * The environment says what there is. MEMLET_STAND_IN_GPUS is how many GPUs, MEMLET_STAND_IN_MEMORY the bytes of all of them,
 * MEMLET_STAND_IN_VERSION the driver's version, and MEMLET_STAND_IN_FAULT="FUNCTION COUNT ERROR" an error that a function, or `any`,
 * returns once it was called so often.
 */
#include "stand_in.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

enum : int { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, CAPTURE_WRONG = 900, CAPTURE_UNJOINED = 904 };

struct Node {
    std::function<void()> work;
    /* All nodes that come before. */
    std::set<size_t> before;
};
struct Graph { std::vector<Node> nodes; };
struct Stream {
    std::deque<std::function<void()>> waiting;
    Graph *capture = nullptr;
    std::set<size_t> before;
};
struct Event {
    std::chrono::steady_clock::time_point at;
    bool happened = false;
    Graph *capture = nullptr;
    std::set<size_t> before;
};
struct Module { void *library; };
struct Function { Module *module; int which; };

std::recursive_mutex lock;
std::map<uint64_t, size_t> allocations;
size_t used = 0;
std::set<Stream *> streams;
int broken = SUCCESS;
std::map<std::string, int> calls;
uint64_t order = 1;

const char *set(const char *name, const char *otherwise) {
    const char *text = getenv(name);
    return text && *text ? text : otherwise;
}
int gpus() { return atoi(set("MEMLET_STAND_IN_GPUS", "1")); }
size_t total() { return strtoull(set("MEMLET_STAND_IN_MEMORY", "8589934592"), nullptr, 10); }

/* What a call returns before it has done anything. */
int begins(const char *function) {
    char name[64] = "";
    int count = 0, error = 0;
    if (sscanf(set("MEMLET_STAND_IN_FAULT", ""), "%63s %d %d", name, &count, &error) == 3)
        if ((!strcmp(name, function) || !strcmp(name, "any")) && calls[name]++ >= count) {
            /* After these a context is of no use any more. */
            if (error >= 700 && error <= LAUNCH_FAILED) broken = error;
            return error;
        }
    return broken;
}
#define BEGINS() \
    std::lock_guard<std::recursive_mutex> guard(lock); \
    if (int error = begins(__func__)) return error

uint64_t chance() {
    order += 0x9e3779b97f4a7c15ull;
    uint64_t z = order;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    return z ^ z >> 27;
}

void put(Stream *stream, std::function<void()> work) {
    if (!stream->capture) {
        stream->waiting.push_back(std::move(work));
        return;
    }
    Graph &graph = *stream->capture;
    graph.nodes.push_back({std::move(work), stream->before});
    stream->before.insert(graph.nodes.size() - 1);
}
void run(Stream *stream) {
    while (!stream->waiting.empty()) {
        auto work = std::move(stream->waiting.front());
        stream->waiting.pop_front();
        if (!broken) work();
    }
}
void run(const Graph &graph) {
    std::vector<bool> done(graph.nodes.size());
    for (size_t left = graph.nodes.size(); left > 0 && !broken; --left) {
        std::vector<size_t> ready;
        for (size_t n = 0; n < graph.nodes.size(); ++n) {
            bool free = !done[n];
            for (size_t before : graph.nodes[n].before) free = free && done[before];
            if (free) ready.push_back(n);
        }
        const size_t next = ready[chance() % ready.size()];
        graph.nodes[next].work();
        done[next] = true;
    }
}

/* Bytes from an address to the end of its allocation. */
int64_t room(const void *address) {
    const uint64_t at = (uint64_t)address;
    auto after = allocations.upper_bound(at);
    if (after == allocations.begin()) return 0;
    --after;
    return after->first + after->second > at ? (int64_t)(after->first + after->second - at) : 0;
}
bool inside(uint64_t address, size_t bytes) { return bytes == 0 || room((const void *)address) >= (int64_t)bytes; }
/* What a thread may not do while it captures. */
thread_local int captures = 0;

} // namespace

extern "C" {

bool memlet_stand_in_holds(const void *address, int64_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    const bool holds = room(address) >= bytes;
    if (!holds && !broken) {
        fprintf(stderr, "stand-in GPU: %lld bytes at %p are not memory of the GPU\n", (long long)bytes, address);
        broken = ILLEGAL_ADDRESS;
    }
    return holds;
}
int memlet_stand_in_broken() { return broken; }

void memlet_stand_in_put(void *stream, std::function<void()> work) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    put((Stream *)stream, std::move(work));
}

int cuDriverGetVersion(int *version) { *version = atoi(set("MEMLET_STAND_IN_VERSION", "13000")); return SUCCESS; }
int cuInit(unsigned) { BEGINS(); return SUCCESS; }
int cuDeviceGetCount(int *count) { BEGINS(); *count = gpus(); return SUCCESS; }
int cuDeviceGet(int *device, int number) { BEGINS(); *device = number; return number < gpus() ? SUCCESS : INVALID_VALUE; }
int cuDeviceGetName(char *name, int length, int) { BEGINS(); snprintf(name, length, "Stand-in GPU"); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { BEGINS(); *bytes = total(); return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    BEGINS();
    switch (attribute) {
    case 75: *value = 9; break;         /* Compute capability, major */
    case 76: *value = 0; break;         /* and minor. */
    case 97: *value = 227 << 10; break; /* Shared memory that a block may ask for. */
    case 16: *value = 132; break;       /* Processors. */
    case 38: *value = 1 << 16; break;   /* Second-level cache. */
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int) { BEGINS(); *context = &lock; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { BEGINS(); return SUCCESS; }
int cuCtxSetCurrent(void *) { BEGINS(); return SUCCESS; }
int cuCtxSynchronize() {
    BEGINS();
    if (captures > 0) return CAPTURE_WRONG;
    for (Stream *stream : streams) run(stream);
    return broken;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    BEGINS();
    if (captures > 0) return CAPTURE_WRONG;
    if (bytes == 0) return INVALID_VALUE;
    if (used + bytes > total()) return OUT_OF_MEMORY;
    /* As a GPU's memory, whatever was there: here what is no number. */
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    used += bytes;
    allocations[*address = (uint64_t)memory] = bytes;
    return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
    BEGINS();
    if (captures > 0) return CAPTURE_WRONG;
    auto found = allocations.find(address);
    if (found == allocations.end()) return INVALID_VALUE;
    for (Stream *stream : streams) run(stream);
    used -= found->second;
    allocations.erase(found);
    free((void *)address);
    return broken;
}
int cuMemGetInfo_v2(size_t *unused, size_t *all) { BEGINS(); *all = total(); *unused = total() - used; return SUCCESS; }
/* Streams here wait for nothing but themselves: neither does a copy wait for them. */
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    BEGINS();
    if (captures > 0) return CAPTURE_WRONG;
    if (!inside(to, bytes)) return INVALID_VALUE;
    memcpy((void *)to, from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    BEGINS();
    if (captures > 0) return CAPTURE_WRONG;
    if (!inside(from, bytes)) return INVALID_VALUE;
    memcpy(to, (const void *)from, bytes);
    return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    BEGINS();
    if (!inside(to, bytes)) return INVALID_VALUE;
    std::string held((const char *)from, bytes);
    put((Stream *)stream, [=] { memcpy((void *)to, held.data(), held.size()); });
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    BEGINS();
    if (!inside(to, bytes) || !inside(from, bytes)) return INVALID_VALUE;
    put((Stream *)stream, [=] { memmove((void *)to, (const void *)from, bytes); });
    return SUCCESS;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    BEGINS();
    if (!inside(to, bytes)) return INVALID_VALUE;
    put((Stream *)stream, [=] { memset((void *)to, value, bytes); });
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned) {
    BEGINS();
    Stream *made = new Stream;
    streams.insert(made);
    *stream = made;
    return SUCCESS;
}
int cuStreamDestroy_v2(void *stream) {
    BEGINS();
    run((Stream *)stream);
    streams.erase((Stream *)stream);
    delete (Stream *)stream;
    return broken;
}
int cuStreamQuery(void *stream) {
    BEGINS();
    if (((Stream *)stream)->capture) return CAPTURE_WRONG;
    run((Stream *)stream);
    return broken;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    BEGINS();
    Stream *waits = (Stream *)stream;
    const Event *other = (const Event *)event;
    /* Memlet does so while it captures alone. */
    if (!other->capture) return CAPTURE_WRONG;
    /* A stream joins the capture of whoever it waits for. */
    if (!waits->capture) waits->before.clear();
    waits->capture = other->capture;
    waits->before.insert(other->before.begin(), other->before.end());
    return SUCCESS;
}
int cuStreamIsCapturing(void *stream, int *status) { BEGINS(); *status = ((Stream *)stream)->capture ? 1 : 0; return SUCCESS; }
int cuStreamBeginCapture_v2(void *stream, int) {
    BEGINS();
    Stream *first = (Stream *)stream;
    if (first->capture) return CAPTURE_WRONG;
    first->capture = new Graph;
    ++captures;
    first->before.clear();
    return SUCCESS;
}
int cuStreamEndCapture(void *stream, void **graph) {
    BEGINS();
    Stream *first = (Stream *)stream;
    Graph *captured = first->capture;
    if (!captured) return CAPTURE_WRONG;
    --captures;
    for (Stream *each : streams)
        if (each->capture == captured) each->capture = nullptr;
    if (first->before.size() != captured->nodes.size()) {
        delete captured;
        return CAPTURE_UNJOINED;
    }
    *graph = captured;
    return SUCCESS;
}
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
    BEGINS();
    *executable = new Graph(*(Graph *)graph);
    return SUCCESS;
}
int cuGraphLaunch(void *executable, void *stream) {
    BEGINS();
    put((Stream *)stream, [graph = *(Graph *)executable] { run(graph); });
    return SUCCESS;
}
int cuGraphDestroy(void *graph) { BEGINS(); delete (Graph *)graph; return SUCCESS; }
int cuGraphExecDestroy(void *graph) { BEGINS(); delete (Graph *)graph; return SUCCESS; }

int cuEventCreate(void **event, unsigned) { BEGINS(); *event = new Event; return SUCCESS; }
int cuEventDestroy_v2(void *event) {
    BEGINS();
    for (Stream *stream : streams)
        if (!stream->capture) run(stream);
    delete (Event *)event;
    return SUCCESS;
}
int cuEventRecord(void *event, void *stream) {
    BEGINS();
    Event *marked = (Event *)event;
    Stream *at = (Stream *)stream;
    marked->capture = at->capture;
    if (at->capture) {
        marked->before = at->before;
        return SUCCESS;
    }
    marked->happened = false;
    put(at, [=] { marked->at = std::chrono::steady_clock::now(); marked->happened = true; });
    return SUCCESS;
}
int cuEventElapsedTime_v2(float *ms, void *begin, void *end) {
    BEGINS();
    const Event *from = (const Event *)begin, *to = (const Event *)end;
    if (!from->happened || !to->happened) return NOT_READY;
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return SUCCESS;
}
int cuEventElapsedTime(float *ms, void *begin, void *end) { return cuEventElapsedTime_v2(ms, begin, end); }

/* Code is the path of what the compiler has made. */
int cuModuleLoadData(void **module, const void *code) {
    BEGINS();
    void *library = dlopen((const char *)code, RTLD_NOW | RTLD_LOCAL);
    if (!library) return INVALID_IMAGE;
    *module = new Module{library};
    return SUCCESS;
}
int cuModuleUnload(void *module) { BEGINS(); delete (Module *)module; return SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    BEGINS();
    typedef int (*Which)(const char *);
    const Which which = (Which)dlsym(((Module *)module)->library, "memlet_stand_in_which");
    const int found = which ? which(name) : -1;
    if (found < 0) return NOT_FOUND;
    *function = new Function{(Module *)module, found};
    return SUCCESS;
}
int cuFuncSetAttribute(void *, int, int value) { BEGINS(); return value <= 227 << 10 ? SUCCESS : INVALID_VALUE; }
int cuLaunchKernel(void *function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned shared, void *stream, void **parameters,
                   void **) {
    BEGINS();
    if (x == 0 || threads == 0 || threads > 1024 || shared > 227 << 10) return INVALID_VALUE;
    const Function kernel = *(Function *)function;
    typedef size_t (*Size)();
    typedef int (*Run)(int, const void *, int64_t, int64_t, int64_t (*)(const void *), uint64_t, char *, int64_t);
    const Size size = (Size)dlsym(kernel.module->library, "memlet_stand_in_arguments");
    const Run start = (Run)dlsym(kernel.module->library, "memlet_stand_in_run");
    const std::vector<char> arguments((const char *)parameters[0], (const char *)parameters[0] + size());
    put((Stream *)stream, [=] {
        char message[512] = "";
        if (!start(kernel.which, arguments.data(), x, threads, room, chance(), message, sizeof message)) return;
        fprintf(stderr, "stand-in GPU: %s\n", message);
        broken = LAUNCH_FAILED;
    });
    return SUCCESS;
}

int cuGetErrorName(int error, const char **text) {
    switch (error) {
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case ILLEGAL_ADDRESS: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case LAUNCH_FAILED: *text = "CUDA_ERROR_LAUNCH_FAILED"; break;
    default: *text = "CUDA_ERROR"; break;
    }
    return SUCCESS;
}
int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }

} // extern "C"
