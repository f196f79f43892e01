/* What a CUDA kernel finds in the place of CUDA when it is compiled for a CPU. Whatever it does to memory, and whenever its threads
 * meet, the simulator (simulator.cpp) is told: that is compiled once for all kernels, with optimisation, and kernels are compiled
 * quickly, without.
 */
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

/* A thread, as its kernel knows it. */
struct Thread { Three at; int number; };
extern __thread Thread *current;
extern __thread Three block_at, grid_size, block_size;
constexpr int WARP = 32;

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
/* Of what is known about it, this is what a pointer needs. */
struct Memory { Region region; };

struct Launch {
    int64_t grid, threads, finish_grid, finish_threads;
    const void *arguments;
    Region *regions;
    int64_t count, seed;
    char *message;
    int64_t room;
};

__attribute__((format(printf, 1, 2))) void fail(const char *format, ...);
/* Bytes from an address to the end of its allocation, where nobody names containers: all that a driver knows of one. */
extern int64_t (*room)(const void *);
int launch(void (*kernel)(const void *), void (*finish)(const void *), Launch *launch);
/* A thread reads or writes `count` elements. */
void touch(Memory &memory, int64_t at, int64_t count, bool writes);
/* A container that begins at this address, and an array of the block that a line of the kernel declares. */
Memory &global_at(const void *address, int64_t element);
Memory &shared_at(int line, int64_t count, int64_t element);
/* What lane `partner` gives. */
double shuffled(uint32_t mask, double given, int partner);
void meet_block();
void meet_warp(uint32_t mask);
/* Operations of tensor cores on 8 x 8 values of 16 bits, as NVIDIA's manual of PTX spreads their operands over a warp. */
void load_squares(uint32_t *x, int squares, bool turned, Memory &memory, int64_t at, const void *address);
void multiply(float *c, const uint32_t *a, const uint32_t *b, bool is_half);
/* 16 bytes that arrive later. */
struct End { Memory *memory; int64_t at; int64_t values; void *address; };
void copy_later(const End &to, const End &from);
void end_copies();
void await_copies(size_t later);

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

template <class T> static inline Checked<T> global(const void *address) { return {(T *)address, &global_at(address, sizeof(T))}; }
template <class T> static inline Checked<T> shared(int line, int64_t count) {
    Memory &memory = shared_at(line, count, sizeof(T));
    return {(T *)memory.region.base, &memory};
}

} // namespace shim

static inline void __syncthreads() { shim::meet_block(); }
static inline void __syncwarp(uint32_t mask) { shim::meet_warp(mask); }
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T x, int lanes, int width) {
    const int lane = shim::current->number % shim::WARP, partner = lane ^ lanes;
    return (T)shim::shuffled(mask, (double)x, partner / width == lane / width ? partner : lane);
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

template <bool TURNED, class S, int N> static void load_squares(uint32_t (&x)[N], shim::Checked<S> p, long long at) {
    shim::load_squares(x, N, TURNED, *p.memory, p.place(at), p.p + at);
}
template <class S, class T> static void copy_later(shim::Checked<S> to, long long at, shim::Checked<T> from, long long place) {
    constexpr int64_t values = 16 / sizeof(S);
    shim::copy_later({to.memory, to.place(at), values, (void *)(to.p + at)}, {from.memory, from.place(place), values, (void *)(from.p + place)});
}
static inline void end_copies() { shim::end_copies(); }
template <int LATER> static inline void await_copies() { shim::await_copies(LATER); }
static inline void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16_t) { shim::multiply(c, a, b, false); }
static inline void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16_t) { shim::multiply(c, a, b, true); }
