/* CUDA C on one thread of a CPU, for tests: every CUDA thread is a fiber, blocks run one after another.
 *
 * A warp runs as far as it can, in an order that depends on a seed; so a missing barrier shows as a wrong order sooner or later.
 * It also shows at once: every element of shared and global memory remembers who wrote and who read it last, and an access by
 * another thread that no barrier separates from it is reported. So are accesses outside their container, reads of what nobody has
 * written, masks of shuffles that do not agree, and barriers that not all threads reach.
 */
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <type_traits>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define MEMLET_SHIM
#define __global__
#define DEVICE static inline __attribute__((unused))
#define DEVICE_MEMBER inline
#define MEMLET_KERNEL(name, threads) static void name
#define MEMLET_RESIDENT(name, threads, blocks) static void name
#define POINTER(T) shim::Checked<T>
#define RESTRICT
#define GLOBAL(T, address) shim::global<T>((const void *)(address))
#define SHARED(T, name, count) shim::Checked<T> name = shim::shared<T>(__LINE__, count)
/* Memory of the block that the host gives it: here an array like any other, so that what overlaps does so nowhere. */
#define PLACED(T, name, at, count) shim::Checked<T> name = shim::shared<T>(__LINE__, count)
#define threadIdx (shim::current->at)
#define blockIdx (shim::block_at)
#define gridDim (shim::grid_size)
#define blockDim (shim::block_size)

namespace shim {

struct Three { unsigned x, y, z; };

/* The last access of each kind to an element. */
struct Access {
    int32_t block = -1;
    int32_t thread = -1;
    uint32_t block_epoch = 0, warp_epoch = 0;
};
struct Shadow { bool written = false; Access write, read, coming; };

/* A container, or an array in shared memory. */
struct Region {
    char *base;
    int64_t bytes, element;
    const char *name;
    int64_t writable;
    /* Whether its elements have values before the launch. */
    int64_t given;
    /* Out: elements that nobody has written, and the first of them. */
    int64_t unwritten, first;
};
/* Of each element of a region. Pages are made when an element is first reached: containers may be larger than this machine. */
struct Shadows {
    static constexpr size_t PAGE = 4096;
    size_t count = 0;
    bool given = false;
    std::vector<std::vector<Shadow>> pages;

    void resize(size_t elements, bool have_values) {
        count = elements;
        given = have_values;
        pages.clear();
        pages.resize((elements + PAGE - 1) / PAGE);
    }

    Shadow &operator[](size_t n) {
        std::vector<Shadow> &page = pages[n / PAGE];
        if (page.empty()) {
            page.resize(PAGE);
            for (Shadow &each : page) each.written = given;
        }
        return page[n % PAGE];
    }

    bool written(size_t n) const { return pages[n / PAGE].empty() ? given : pages[n / PAGE][n % PAGE].written; }

    /* A barrier orders what came before it. */
    void order() {
        for (std::vector<Shadow> &page : pages)
            for (Shadow &each : page) each.write = each.read = Access();
    }
};

struct Memory { Region region; Shadows shadow; };

struct Launch {
    int64_t grid, threads, finish_grid, finish_threads;
    const void *arguments;
    Region *regions;
    int64_t count, seed;
    char *message;
    int64_t room;
};

enum State { READY, BLOCK, WARP_SYNC, WARP_SHUFFLE, DONE };
constexpr int WARP = 32;
constexpr size_t STACK = 128 << 10;

/* 16 bytes on their way, as so many values. */
struct Copy {
    Memory *source_memory, *target_memory;
    int64_t source_place, target_place;
    const void *source;
    void *target;
    int values;
};

struct Fiber {
    void *stack_pointer;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    Three at;
    int number;
    /* The first of its warp, and how many that has: what all threads of a launch share is far, in memory of the host's thread. */
    Fiber *warp;
    int lanes;
    State state;
    uint32_t mask;
    double given, taken;
    int partner;
    /* What it brings to a matrix operation of its warp. */
    const uint16_t *line;
    uint32_t fragments[6];
    /* Copies that it has asked for and that have not arrived, in groups. */
    std::vector<std::vector<Copy>> copies;
    /* What this thread knows of the lanes of its warp: accesses up to these epochs come before. */
    uint32_t seen[WARP];
};

static thread_local Fiber *current;
static thread_local Three block_at, grid_size, block_size;
static thread_local int32_t block_number;
static thread_local uint32_t block_epoch;
static thread_local std::vector<Fiber> fibers;
static thread_local char *stacks;
static thread_local size_t stacks_size;
/* Of which others hold addresses. */
static thread_local std::deque<Memory> memories;
struct SharedArray { int line; Memory memory; std::vector<char> bytes; };
static thread_local std::vector<SharedArray *> shareds;
static thread_local bool failed;
static thread_local char *message;
static thread_local size_t message_room;
static thread_local void *scheduler;
static thread_local void (*entry)(const void *);
static thread_local const void *entry_arguments;
#if !defined(__x86_64__)
static thread_local ucontext_t scheduler_context;
#endif

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void memlet_switch(void **from, void *to);
asm(R"(
.text
.hidden memlet_switch
.type memlet_switch,@function
memlet_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size memlet_switch,.-memlet_switch
)");
#endif

__attribute__((noinline)) static void back() {
#if defined(__x86_64__)
    memlet_switch(&current->stack_pointer, scheduler);
#else
    swapcontext(&current->context, &scheduler_context);
#endif
}

/* Says what is wrong, and ends the launch. */
__attribute__((format(printf, 1, 2))) static void fail(const char *format, ...) {
    if (!failed) {
        va_list list;
        va_start(list, format);
        vsnprintf(message, message_room, format, list);
        va_end(list);
    }
    failed = true;
    if (current) for (;;) back();
}

static void start() {
    entry(entry_arguments);
    current->state = DONE;
    for (;;) back();
}

/* Whether what was done before can be seen by a thread that does this now. */
static bool ordered(const Access &before, const Access &now, const Fiber &me) {
    if (before.thread < 0) return true;
    if (before.block != now.block) return false;
    if (before.thread == now.thread || before.block_epoch < now.block_epoch) return true;
    if (before.thread / WARP != now.thread / WARP) return false;
    return before.warp_epoch < me.seen[before.thread % WARP];
}

static bool inside(const Memory &memory, int64_t at, int64_t count, const char *does) {
    const Region &region = memory.region;
    if (at >= 0 && at + count <= region.bytes / region.element) return true;
    fail("thread %d of block %d %s element %lld of `%s`, which has %lld", current->number, block_number, does, (long long)at, region.name,
         (long long)(region.bytes / region.element));
    return false;
}

static void collide(const Memory &memory, int64_t at, const Access &now, const char *does, const Access &other, const char *did) {
    fail("thread %d of block %d %s element %lld of `%s` after thread %d of block %d %s it, with no barrier between them", now.thread, now.block,
         does, (long long)at, memory.region.name, other.thread, other.block, did);
}

static void touch(Memory &memory, int64_t at, int64_t count, bool writes) {
    const Region &region = memory.region;
    if (!inside(memory, at, count, writes ? "writes" : "reads")) return;
    const Fiber &me = *current;
    const Access now = {block_number, me.number, block_epoch, me.seen[me.number % WARP]};
    for (int64_t n = at; n < at + count; ++n) {
        Shadow &shadow = memory.shadow[n];
        const bool was_write = !ordered(shadow.write, now, me);
        if (was_write || (writes && !ordered(shadow.read, now, me)))
            collide(memory, n, now, writes ? "writes" : "reads", was_write ? shadow.write : shadow.read, was_write ? "wrote" : "read");
        if (!ordered(shadow.coming, now, me)) collide(memory, n, now, writes ? "writes" : "reads", shadow.coming, "asked for a copy to");
        if (writes) {
            if (!region.writable) fail("thread %d of block %d writes the input `%s`", me.number, now.block, region.name);
            shadow.written = true;
            shadow.write = now;
        } else {
            if (!shadow.written)
                fail("thread %d of block %d reads element %lld of `%s`, which nobody has written", me.number, now.block, (long long)n, region.name);
            shadow.read = now;
        }
    }
}

/* A copy may arrive as soon as it is asked for: who still reads what was there before must have met the thread that asks. */
static void ask(Memory &memory, int64_t at, int64_t count) {
    if (!inside(memory, at, count, "asks for a copy to")) return;
    const Fiber &me = *current;
    const Access now = {block_number, me.number, block_epoch, me.seen[me.number % WARP]};
    for (int64_t n = at; n < at + count; ++n) {
        Shadow &shadow = memory.shadow[n];
        if (!ordered(shadow.write, now, me)) collide(memory, n, now, "asks for a copy to", shadow.write, "wrote");
        if (!ordered(shadow.read, now, me)) collide(memory, n, now, "asks for a copy to", shadow.read, "read");
        shadow.coming = now;
    }
}

template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };

template <class T> struct Ref {
    typedef typename Plain<T>::type Value;
    T *p;
    Memory *memory;
    int64_t at;
    operator Value() const { touch(*memory, at, 1, false); return *p; }
    const Ref &operator=(Value x) const { touch(*memory, at, 1, true); *const_cast<Value *>(p) = x; return *this; }
    const Ref &operator=(const Ref &x) const { return *this = (Value)x; }
};

template <class T> struct Checked {
    T *p;
    Memory *memory;
    Checked(std::nullptr_t = nullptr) : p(nullptr), memory(nullptr) {}
    Checked(T *p, Memory *memory) : p(p), memory(memory) {}
    int64_t place(int64_t n) const {
        if (!memory) fail("thread %d uses a pointer to nothing", current->number);
        return ((char *)p - memory->region.base) / (int64_t)sizeof(T) + n;
    }
    Ref<T> operator[](int64_t n) const { return {p + n, memory, place(n)}; }
    Checked operator+(int64_t n) const { return {p + n, memory}; }
};

#ifdef MEMLET_STAND_IN
/* Bytes from an address to the end of its allocation: all that a driver knows of a container. */
static int64_t (*room)(const void *);
template <class T> static Checked<T> global(const void *address) {
    for (Memory &memory : memories)
        if (memory.region.base == address && memory.region.element == (int64_t)sizeof(T)) return {(T *)address, &memory};
    memories.emplace_back();
    Memory &memory = memories.back();
    memory.region = {(char *)address, room(address), (int64_t)sizeof(T), "memory of the GPU", 1, 1, 0, 0};
    memory.shadow.resize(memory.region.bytes / sizeof(T), true);
    return {(T *)address, &memory};
}
#else
template <class T> static Checked<T> global(const void *address) {
    for (Memory &memory : memories)
        if (memory.region.base == address) {
            if (memory.region.element != (int64_t)sizeof(T)) fail("`%s` is read with elements of another size", memory.region.name);
            return {(T *)address, &memory};
        }
    fail("an argument points to no container");
    return {};
}
#endif

template <class T> static Checked<T> shared(int line, int64_t count) {
    for (SharedArray *array : shareds)
        if (array->line == line) return {(T *)array->memory.region.base, &array->memory};
    SharedArray *array = new SharedArray;
    array->line = line;
    // All bits set is NaN.
    array->bytes.assign(count * sizeof(T), (char)0xff);
    array->memory.region = {array->bytes.data(), (int64_t)(count * sizeof(T)), (int64_t)sizeof(T), "shared memory", 1, 0, 0, 0};
    array->memory.shadow.resize(count, false);
    shareds.push_back(array);
    return {(T *)array->memory.region.base, &array->memory};
}

static const char *doing(const Fiber &fiber) {
    switch (fiber.state) {
    case READY: return "runs";
    case BLOCK: return "waits at __syncthreads";
    case WARP_SYNC: return "waits at __syncwarp";
    case WARP_SHUFFLE: return "waits at a shuffle";
    case DONE: return "has left the kernel";
    }
    return "";
}

static void wait(State state, uint32_t mask) {
    Fiber &me = *current;
    me.state = state;
    me.mask = mask;
    if (state != BLOCK) {
        Fiber *const warp = me.warp;
        if (!(mask >> me.number % WARP & 1)) fail("thread %d is not in the mask %08x of its own warp operation", me.number, mask);
        bool all = me.lanes == WARP || !(mask >> me.lanes);
        for (int n = 0; n < me.lanes && all; ++n)
            if (mask >> n & 1) all = warp[n].state == state && warp[n].mask == mask;
        if (all) {
            for (int n = 0; n < me.lanes; ++n)
                if (mask >> n & 1) {
                    Fiber &other = warp[n];
                    ++other.seen[n];
                    other.state = READY;
                    if (state == WARP_SHUFFLE) {
                        const int partner = other.partner;
                        if (partner < 0 || partner >= WARP || !(mask >> partner & 1))
                            fail("thread %d takes a value from lane %d, which is not in the mask %08x", other.number, partner, mask);
                        other.taken = warp[partner].given;
                    }
                }
            // A shuffle moves values; it orders no memory.
            if (state == WARP_SYNC) {
                uint32_t joined[WARP] = {};
                for (int n = 0; n < me.lanes; ++n)
                    for (int k = 0; k < WARP && mask >> n & 1; ++k) joined[k] = warp[n].seen[k] > joined[k] ? warp[n].seen[k] : joined[k];
                for (int n = 0; n < me.lanes; ++n)
                    if (mask >> n & 1) memcpy(warp[n].seen, joined, sizeof joined);
            }
        }
    }
    back();
}

static uint64_t random(uint64_t &state) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static void shuffle(std::vector<int> &order, uint64_t &state) {
    for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random(state) % n]);
}

static void resume(Fiber &fiber) {
    current = &fiber;
#if defined(__x86_64__)
    memlet_switch(&scheduler, fiber.stack_pointer);
#else
    swapcontext(&scheduler_context, &fiber.context);
#endif
    current = nullptr;
}

static void run_block(int threads, uint64_t &seed) {
    fibers.assign(threads, Fiber{});
    if (stacks_size < threads * STACK) {
        if (stacks) munmap(stacks, stacks_size);
        stacks_size = threads * STACK;
        void *room = mmap(nullptr, stacks_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        stacks = room == MAP_FAILED ? nullptr : (char *)room;
        if (!stacks) { stacks_size = 0; fail("no memory for stacks"); return; }
    }
    block_epoch = 1;
    for (SharedArray *array : shareds) delete array;
    shareds.clear();
    for (int n = 0; n < threads; ++n) {
        Fiber &fiber = fibers[n];
        fiber.number = n;
        fiber.warp = &fibers[n / WARP * WARP];
        fiber.lanes = threads - n / WARP * WARP < WARP ? threads - n / WARP * WARP : WARP;
        fiber.at = {(unsigned)n, 0, 0};
        for (uint32_t &epoch : fiber.seen) epoch = 0;
        fiber.seen[n % WARP] = 1;
#if defined(__x86_64__)
        // As if `start` had been called: six registers, its address, and a place for where it would return to.
        void **top = (void **)(stacks + (n + 1) * STACK) - 1;
        *--top = (void *)start;
        for (int k = 0; k < 6; ++k) *--top = nullptr;
        fiber.stack_pointer = top;
#else
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks + n * STACK;
        fiber.context.uc_stack.ss_size = STACK;
        makecontext(&fiber.context, start, 0);
#endif
    }
    const int warps = (threads + WARP - 1) / WARP;
    std::vector<int> order(warps), lanes(WARP);
    for (int n = 0; n < warps; ++n) order[n] = n;
    for (int n = 0; n < WARP; ++n) lanes[n] = n;
    for (;;) {
        shuffle(order, seed);
        for (int warp : order) {
            shuffle(lanes, seed);
            for (bool moved = true; moved;) {
                moved = false;
                for (int lane : lanes) {
                    const int n = warp * WARP + lane;
                    if (n >= threads || fibers[n].state != READY) continue;
                    resume(fibers[n]);
                    if (failed) return;
                    moved = true;
                }
            }
        }
        const Fiber *waits = nullptr, *differs = nullptr;
        for (const Fiber &fiber : fibers)
            if (fiber.state != DONE && !waits) waits = &fiber;
        if (!waits) return;
        for (const Fiber &fiber : fibers)
            if (fiber.state != BLOCK && !differs) differs = &fiber;
        if (differs) {
            if (waits->state != BLOCK) for (const Fiber &fiber : fibers) if (fiber.number != waits->number && (fiber.state != waits->state || fiber.mask != waits->mask)) { differs = &fiber; break; }
            fail("barriers diverge in block %d: thread %d %s (mask %08x), thread %d %s (mask %08x)", block_number, waits->number,
                 doing(*waits), waits->mask, differs->number, doing(*differs), differs->mask);
            return;
        }
        ++block_epoch;
        for (Fiber &fiber : fibers) fiber.state = READY;
    }
}

/* Runs a grid; between two grids everything that was written can be seen. */
static void run_grid(void (*kernel)(const void *), const void *arguments, int64_t grid, int64_t threads, uint64_t &seed) {
    entry = kernel;
    entry_arguments = arguments;
    grid_size = {(unsigned)grid, 1, 1};
    block_size = {(unsigned)threads, 1, 1};
    for (Memory &memory : memories)
        memory.shadow.order();
    std::vector<int> blocks(grid);
    for (int64_t n = 0; n < grid; ++n) blocks[n] = (int)n;
    shuffle(blocks, seed);
    for (int block : blocks) {
        block_at = {(unsigned)block, 0, 0};
        block_number = block;
        run_block((int)threads, seed);
        if (failed) return;
    }
}

static int launch(void (*kernel)(const void *), void (*finish)(const void *), Launch *launch) {
    failed = false;
    message = launch->message;
    message_room = launch->room;
    current = nullptr;
    uint64_t seed = launch->seed;
    memories.clear();
    memories.resize(launch->count);
    for (int64_t n = 0; n < launch->count; ++n) {
        memories[n].region = launch->regions[n];
        memories[n].shadow.resize(launch->regions[n].bytes / launch->regions[n].element, launch->regions[n].given);
    }
    run_grid(kernel, launch->arguments, launch->grid, launch->threads, seed);
    if (!failed && finish) run_grid(finish, launch->arguments, launch->finish_grid, launch->finish_threads, seed);
    for (int64_t n = 0; n < launch->count; ++n) {
        Region &region = launch->regions[n];
        region.unwritten = 0;
        region.first = -1;
        for (size_t k = 0; k < memories[n].shadow.count && !region.given; ++k)
            if (!memories[n].shadow.written(k) && region.unwritten++ == 0) region.first = (int64_t)k;
    }
    return failed;
}

} // namespace shim

static inline void __syncthreads() { shim::wait(shim::BLOCK, 0); }
static inline void __syncwarp(uint32_t mask) { shim::wait(shim::WARP_SYNC, mask); }
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T x, int lanes, int width) {
    const int lane = shim::current->number % shim::WARP, partner = lane ^ lanes;
    shim::current->given = (double)x;
    shim::current->partner = partner / width == lane / width ? partner : lane;
    shim::wait(shim::WARP_SHUFFLE, mask);
    return (T)shim::current->taken;
}

/* Every lane of the warp has come here. Orders no memory. */
static inline void meet() {
    shim::current->given = 0;
    shim::current->partner = shim::current->number % shim::WARP;
    shim::wait(shim::WARP_SHUFFLE, 0xffffffffu);
}

struct bf16_t { uint16_t bits; };
struct f16_t { uint16_t bits; };
static inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float of_bits(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline float load_f16(uint16_t u) { _Float16 x; memcpy(&x, &u, 2); return (float)x; }
static inline uint16_t store_f16(float x) { _Float16 y = (_Float16)x; uint16_t u; memcpy(&u, &y, 2); return u; }
static inline uint64_t wide_product(uint32_t a, uint32_t b) { return (uint64_t)a * b; }
static inline uint16_t store_bf16(float x) {
    const uint32_t u = bits_of(x);
    return (uint16_t)(x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline uint32_t store_two_bf16(float x, float y) { return store_bf16(x) | (uint32_t)store_bf16(y) << 16; }

template <class T, int P> struct Pack { T v[P]; };
template <int P, class T> static bool aligned(shim::Checked<T> p, long long at) { return ((uint64_t)(p.p + at) & (sizeof(T) * P - 1)) == 0; }
template <int P, class T> static void want_aligned(shim::Checked<T> p, long long at) {
    if (!aligned<P>(p, at)) shim::fail("thread %d has a vector of %d values at an address that is no multiple of its size", shim::current->number, P);
}
template <int P, class T> static Pack<std::remove_const_t<T>, P> read_pack(shim::Checked<T> p, long long at) {
    want_aligned<P>(p, at);
    shim::touch(*p.memory, p.place(at), P, false);
    return *(const Pack<std::remove_const_t<T>, P> *)(p.p + at);
}
template <int P, class T> static void write_pack(shim::Checked<T> p, long long at, const Pack<T, P> &pack) {
    want_aligned<P>(p, at);
    shim::touch(*p.memory, p.place(at), P, true);
    *(Pack<T, P> *)(p.p + at) = pack;
}

/* Operations of tensor cores, as NVIDIA's manual of PTX spreads their operands over a warp. */
template <bool TURNED, class S, int N> static void load_squares(uint32_t (&x)[N], shim::Checked<S> p, long long at) {
    const int lane = shim::current->number % shim::WARP;
    const shim::Fiber *const warp = shim::current->warp;
    if (lane < 8 * N) {
        if ((uint64_t)(p.p + at) & 15) shim::fail("thread %d loads a line of a square from an address that is no multiple of 16", shim::current->number);
        shim::touch(*p.memory, p.place(at), 8, false);
        shim::current->line = (const uint16_t *)(p.p + at);
    }
    meet();
    for (int n = 0; n < N; ++n) {
        const auto value = [&](int line, int place) { return (uint32_t)warp[8 * n + line].line[place]; };
        const int a = lane / 4, b = lane % 4 * 2;
        x[n] = TURNED ? value(b, a) | value(b + 1, a) << 16 : value(a, b) | value(a, b + 1) << 16;
    }
    meet();
}
/* A copy that a thread asks for arrives when it waits for it, and not before: what is read too early is found. */
template <class S, class T> static void copy_later(shim::Checked<S> to, long long at, shim::Checked<T> from, long long place) {
    auto &copies = shim::current->copies;
    if (copies.empty()) copies.emplace_back();
    shim::ask(*to.memory, to.place(at), 16 / sizeof(S));
    copies.back().push_back({from.memory, to.memory, from.place(place), to.place(at), (const void *)(from.p + place), (void *)(to.p + at), int(16 / sizeof(S))});
}
static inline void end_copies() {
    auto &copies = shim::current->copies;
    if (copies.empty()) copies.emplace_back();
    copies.emplace_back();
}
/* The last entry is the group that is still open. */
template <int LATER> static inline void await_copies() {
    auto &copies = shim::current->copies;
    while (copies.size() > LATER + 1) {
        for (const shim::Copy &copy : copies.front()) {
            shim::touch(*copy.source_memory, copy.source_place, copy.values, false);
            shim::touch(*copy.target_memory, copy.target_place, copy.values, true);
            memcpy(copy.target, copy.source, 16);
        }
        copies.erase(copies.begin());
    }
}
static inline float value_of(bf16_t, uint32_t bits) { return of_bits(bits << 16); }
static inline float value_of(f16_t, uint32_t bits) { return load_f16((uint16_t)bits); }
template <class S> static void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], S type) {
    shim::Fiber &me = *shim::current;
    const shim::Fiber *const warp = me.warp;
    const int lane = me.number % shim::WARP;
    for (int n = 0; n < 4; ++n) me.fragments[n] = a[n];
    for (int n = 0; n < 2; ++n) me.fragments[4 + n] = b[n];
    meet();
    for (int x = 0; x < 4; ++x) {
        const int row = x / 2 * 8 + lane / 4, column = lane % 4 * 2 + x % 2;
        for (int s = 0; s < 16; ++s) {
            const uint32_t left = warp[row % 8 * 4 + s % 8 / 2].fragments[row / 8 + s / 8 * 2];
            const uint32_t right = warp[column * 4 + s % 8 / 2].fragments[4 + s / 8];
            c[x] += value_of(type, left >> s % 2 * 16 & 0xffff) * value_of(type, right >> s % 2 * 16 & 0xffff);
        }
    }
    meet();
}
