/* CUDA C on one thread of a CPU, for tests: every CUDA thread is a fiber, blocks run one after another.
 *
 * A warp runs as far as it can, in an order that depends on a seed; so a missing barrier shows as a wrong order sooner or later.
 * It also shows at once: every element of shared and global memory remembers who wrote and who read it last, and an access by
 * another thread that no barrier separates from it is reported. So are accesses outside their container, reads of what nobody has
 * written, masks of shuffles that do not agree, and barriers that not all threads reach.
 */
#include "shim.h"
#include <cstdarg>
#include <cstdio>
#include <deque>
#include <sys/mman.h>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {

__thread Thread *current;
__thread Three block_at, grid_size, block_size;
int64_t (*room)(const void *);

namespace {

/* The last access of each kind to an element. */
struct Access {
    int32_t block = -1;
    int32_t thread = -1;
    uint32_t block_epoch = 0, warp_epoch = 0;
};
struct Shadow { bool written = false; Access write, read, coming; };

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

struct Tracked : Memory {
    Shadows shadow;

    Tracked() = default;
    Tracked(const Region &given) {
        region = given;
        shadow.resize(region.bytes / region.element, region.given);
    }
};

enum State { READY, BLOCK, WARP_SYNC, WARP_SHUFFLE, DONE };
constexpr size_t STACK = 128 << 10;

/* 16 bytes on their way. */
struct Copy { End to, from; };

struct Fiber : Thread {
    void *stack_pointer;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    /* The first of its warp, and how many that has: what all threads of a launch share is far, in memory of the host's thread. */
    Fiber *warp;
    int lanes;
    State state;
    uint32_t mask;
    double given, taken;
    int partner;
    /* What it brings to a matrix operation of its warp. */
    const uint16_t *line;
    float fragments[12];
    /* Copies that it has asked for and that have not arrived, in groups. */
    std::vector<std::vector<Copy>> copies;
    /* What this thread knows of the lanes of its warp: accesses up to these epochs come before. */
    uint32_t seen[WARP];
};

__thread int32_t block_number;
__thread uint32_t block_epoch;
thread_local std::vector<Fiber> fibers;
__thread char *stacks;
__thread size_t stacks_size;
/* Of which others hold addresses. */
thread_local std::deque<Tracked> memories;
struct SharedArray { int line; Tracked memory; std::vector<char> bytes; };
thread_local std::vector<SharedArray *> shareds;
__thread bool failed;
__thread char *message;
__thread size_t message_room;
__thread void *scheduler;
__thread void (*entry)(const void *);
__thread const void *entry_arguments;
#if !defined(__x86_64__)
thread_local ucontext_t scheduler_context;
#endif

/* The thread that runs, in full. */
Fiber &self() { return *(Fiber *)current; }

} // namespace

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

namespace {

__attribute__((noinline)) void back() {
#if defined(__x86_64__)
    memlet_switch(&self().stack_pointer, scheduler);
#else
    swapcontext(&self().context, &scheduler_context);
#endif
}

} // namespace

/* Says what is wrong, and ends the launch. */
void fail(const char *format, ...) {
    if (!failed) {
        va_list list;
        va_start(list, format);
        vsnprintf(message, message_room, format, list);
        va_end(list);
    }
    failed = true;
    if (current) for (;;) back();
}

namespace {

void start() {
    entry(entry_arguments);
    self().state = DONE;
    for (;;) back();
}

/* Whether what was done before can be seen by a thread that does this now. */
bool ordered(const Access &before, const Access &now, const Fiber &me) {
    if (before.thread < 0) return true;
    if (before.block != now.block) return false;
    if (before.thread == now.thread || before.block_epoch < now.block_epoch) return true;
    if (before.thread / WARP != now.thread / WARP) return false;
    return before.warp_epoch < me.seen[before.thread % WARP];
}

bool inside(const Memory &memory, int64_t at, int64_t count, const char *does) {
    const Region &region = memory.region;
    if (at >= 0 && at + count <= region.bytes / region.element) return true;
    fail("thread %d of block %d %s element %lld of `%s`, which has %lld", current->number, block_number, does, (long long)at, region.name,
         (long long)(region.bytes / region.element));
    return false;
}

void collide(const Memory &memory, int64_t at, const Access &now, const char *does, const Access &other, const char *did) {
    fail("thread %d of block %d %s element %lld of `%s` after thread %d of block %d %s it, with no barrier between them", now.thread, now.block,
         does, (long long)at, memory.region.name, other.thread, other.block, did);
}

/* A copy may arrive as soon as it is asked for: who still reads what was there before must have met the thread that asks. */
void ask(Tracked &memory, int64_t at, int64_t count) {
    if (!inside(memory, at, count, "asks for a copy to")) return;
    const Fiber &me = self();
    const Access now = {block_number, me.number, block_epoch, me.seen[me.number % WARP]};
    for (int64_t n = at; n < at + count; ++n) {
        Shadow &shadow = memory.shadow[n];
        if (!ordered(shadow.write, now, me)) collide(memory, n, now, "asks for a copy to", shadow.write, "wrote");
        if (!ordered(shadow.read, now, me)) collide(memory, n, now, "asks for a copy to", shadow.read, "read");
        shadow.coming = now;
    }
}

const char *doing(const Fiber &fiber) {
    switch (fiber.state) {
    case READY: return "runs";
    case BLOCK: return "waits at __syncthreads";
    case WARP_SYNC: return "waits at __syncwarp";
    case WARP_SHUFFLE: return "waits at a shuffle";
    case DONE: return "has left the kernel";
    }
    return "";
}

void wait(State state, uint32_t mask) {
    Fiber &me = self();
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

uint64_t random(uint64_t &state) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
void shuffle(std::vector<int> &order, uint64_t &state) {
    for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random(state) % n]);
}

void resume(Fiber &fiber) {
    current = &fiber;
#if defined(__x86_64__)
    memlet_switch(&scheduler, fiber.stack_pointer);
#else
    swapcontext(&scheduler_context, &fiber.context);
#endif
    current = nullptr;
}

void run_block(int threads, uint64_t &seed) {
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
void run_grid(void (*kernel)(const void *), const void *arguments, int64_t grid, int64_t threads, uint64_t &seed) {
    entry = kernel;
    entry_arguments = arguments;
    grid_size = {(unsigned)grid, 1, 1};
    block_size = {(unsigned)threads, 1, 1};
    for (Tracked &memory : memories)
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

} // namespace

void touch(Memory &reached, int64_t at, int64_t count, bool writes) {
    Tracked &memory = (Tracked &)reached;
    const Region &region = memory.region;
    if (!inside(memory, at, count, writes ? "writes" : "reads")) return;
    const Fiber &me = self();
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

int launch(void (*kernel)(const void *), void (*finish)(const void *), Launch *launch) {
    failed = false;
    message = launch->message;
    message_room = launch->room;
    current = nullptr;
    uint64_t seed = launch->seed;
    memories.clear();
    for (int64_t n = 0; n < launch->count; ++n) memories.emplace_back(launch->regions[n]);
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

Memory &global_at(const void *address, int64_t element) {
    for (Tracked &memory : memories)
        if (memory.region.base == address) {
            if (memory.region.element == element) return memory;
            if (!room) fail("`%s` is read with elements of another size", memory.region.name);
        }
    if (!room) fail("an argument points to no container");
    return memories.emplace_back(Region{(char *)address, room(address), element, "memory of the GPU", 1, 1, 0, 0});
}

Memory &shared_at(int line, int64_t count, int64_t element) {
    for (SharedArray *array : shareds)
        if (array->line == line) return array->memory;
    SharedArray *array = new SharedArray;
    array->line = line;
    // All bits set is NaN.
    array->bytes.assign(count * element, (char)0xff);
    array->memory = Region{array->bytes.data(), count * element, element, "shared memory", 1, 0, 0, 0};
    shareds.push_back(array);
    return array->memory;
}

double shuffled(uint32_t mask, double given, int partner) {
    Fiber &me = self();
    me.given = given;
    me.partner = partner;
    wait(WARP_SHUFFLE, mask);
    return me.taken;
}

void meet_block() { wait(BLOCK, 0); }
void meet_warp(uint32_t mask) { wait(WARP_SYNC, mask); }

/* Every lane of the warp has come here. Orders no memory. */
static void meet() { shuffled(0xffffffffu, 0, current->number % WARP); }

void load_squares(uint32_t *x, int squares, bool turned, Memory &memory, int64_t at, const void *address) {
    Fiber &me = self();
    const int lane = me.number % WARP;
    const Fiber *const warp = me.warp;
    if (lane < 8 * squares) {
        if ((uint64_t)address & 15) fail("thread %d loads a line of a square from an address that is no multiple of 16", me.number);
        touch(memory, at, 8, false);
        me.line = (const uint16_t *)address;
    }
    meet();
    for (int n = 0; n < squares; ++n) {
        const auto value = [&](int line, int place) { return (uint32_t)warp[8 * n + line].line[place]; };
        const int a = lane / 4, b = lane % 4 * 2;
        x[n] = turned ? value(b, a) | value(b + 1, a) << 16 : value(a, b) | value(a, b + 1) << 16;
    }
    meet();
}

void multiply(float *c, const uint32_t *a, const uint32_t *b, bool is_half) {
    Fiber &me = self();
    const Fiber *const warp = me.warp;
    const int lane = me.number % WARP;
    const auto value = [&](uint32_t bits) { return is_half ? load_f16((uint16_t)bits) : of_bits(bits << 16); };
    for (int n = 0; n < 6; ++n) {
        const uint32_t two = n < 4 ? a[n] : b[n - 4];
        me.fragments[2 * n] = value(two & 0xffff);
        me.fragments[2 * n + 1] = value(two >> 16);
    }
    meet();
    for (int x = 0; x < 4; ++x) {
        const int row = x / 2 * 8 + lane / 4, column = lane % 4 * 2 + x % 2;
        for (int s = 0; s < 16; ++s) {
            const float left = warp[row % 8 * 4 + s % 8 / 2].fragments[(row / 8 + s / 8 * 2) * 2 + s % 2];
            const float right = warp[column * 4 + s % 8 / 2].fragments[(4 + s / 8) * 2 + s % 2];
            c[x] += left * right;
        }
    }
    meet();
}

/* A copy that a thread asks for arrives when it waits for it, and not before: what is read too early is found. */
void copy_later(const End &to, const End &from) {
    auto &copies = self().copies;
    if (copies.empty()) copies.emplace_back();
    ask((Tracked &)*to.memory, to.at, to.values);
    copies.back().push_back({to, from});
}

void end_copies() {
    auto &copies = self().copies;
    if (copies.empty()) copies.emplace_back();
    copies.emplace_back();
}

/* The last entry is the group that is still open. */
void await_copies(size_t later) {
    auto &copies = self().copies;
    while (copies.size() > later + 1) {
        for (const Copy &copy : copies.front()) {
            touch(*copy.from.memory, copy.from.at, copy.from.values, false);
            touch(*copy.to.memory, copy.to.at, copy.to.values, true);
            memcpy(copy.to.address, copy.from.address, 16);
        }
        copies.erase(copies.begin());
    }
}

} // namespace shim
