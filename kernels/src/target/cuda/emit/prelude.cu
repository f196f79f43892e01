/* What every kernel starts with. `real` is what it computes in; a team of TEAM threads works on one point of the outer maps;
   each of its threads holds W neighbours along the innermost loop. */
#ifndef MEMLET_SHIM
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define MEMLET_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
/* So many blocks fit a processor at a time. */
#define MEMLET_RESIDENT(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name
#define POINTER(T) T *
#define RESTRICT __restrict__
#define GLOBAL(T, address) ((T *)(address))
#define SHARED(T, name, count) __shared__ __attribute__((aligned(16))) T name[count]

struct bf16_t { uint16_t bits; };
struct f16_t { uint16_t bits; };
DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
DEVICE float of_bits(uint32_t u) { return __uint_as_float(u); }
DEVICE float load_f16(uint16_t u) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(u)); return x; }
DEVICE uint16_t store_f16(float x) { uint16_t u; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(u) : "f"(x)); return u; }
/* One instruction; as a product of 64 bits it is three. */
DEVICE uint64_t wide_product(uint32_t a, uint32_t b) { uint64_t p; asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b)); return p; }
/* Rounded to the nearest, ties to even; two at once take one instruction where there is one. */
DEVICE uint16_t rounded_bf16(float x) {
    const uint32_t u = __float_as_uint(x);
    return (uint16_t)(x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#if __CUDA_ARCH__ >= 800
DEVICE uint16_t store_bf16(float x) { uint16_t u; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(u) : "f"(x)); return u; }
DEVICE uint32_t store_two_bf16(float x, float y) { uint32_t u; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(y), "f"(x)); return u; }
#else
DEVICE uint16_t store_bf16(float x) { return rounded_bf16(x); }
DEVICE uint32_t store_two_bf16(float x, float y) { return rounded_bf16(x) | (uint32_t)rounded_bf16(y) << 16; }
#endif

/* P neighbours as one access of at most 16 bytes. */
template <class T, int P> struct alignas(sizeof(T) * P) Pack { T v[P]; };
template <int P, class T> DEVICE bool aligned(T *p, long long at) { return ((uint64_t)(p + at) & (sizeof(T) * P - 1)) == 0; }
template <int P, class T> DEVICE Pack<T, P> read_pack(T *p, long long at) { return *(const Pack<T, P> *)(p + at); }
/* Vectors of what a kernel only reads are read by a path that no store is waited for on. */
template <int P, class T> DEVICE Pack<T, P> read_pack(const T *p, long long at) {
    Pack<T, P> pack;
    if (sizeof pack == 16) { const uint4 x = __ldg((const uint4 *)(p + at)); memcpy(&pack, &x, sizeof x); }
    else if (sizeof pack == 8) { const uint2 x = __ldg((const uint2 *)(p + at)); memcpy(&pack, &x, sizeof x); }
    else pack = *(const Pack<T, P> *)(p + at);
    return pack;
}
template <int P, class T> DEVICE void write_pack(T *p, long long at, const Pack<T, P> &pack) { *(Pack<T, P> *)(p + at) = pack; }
#endif

#define INF ((real)of_bits(0x7f800000u))
#undef __builtin_nan
#define __builtin_nan(text) of_bits(0x7fc00000u)

/* Storage and value. */
DEVICE real to_real(float x) { return x; }
DEVICE real to_real(double x) { return x; }
DEVICE real to_real(bf16_t x) { return of_bits((uint32_t)x.bits << 16); }
DEVICE real to_real(f16_t x) { return load_f16(x.bits); }
DEVICE real to_real(int64_t x) { return (real)x; }
DEVICE real to_real(int32_t x) { return (real)x; }
DEVICE real to_real(int16_t x) { return (real)x; }
DEVICE real to_real(uint8_t x) { return (real)x; }
template <class T> struct From { static DEVICE_MEMBER T real_(real x) { return (T)x; } };
/* A double as a float whose last bit is 1 where that is not exact, so that rounding it once more rounds as if at once. */
DEVICE float to_odd(double x) {
    const float near = (float)x;
    const double back = near;
    const uint32_t u = bits_of(near), beyond = x > 0 ? back > x : back < x;
    return of_bits(back == x || x != x ? u : (u - beyond) | 1);
}
DEVICE float to_odd(float x) { return x; }
template <> struct From<bf16_t> {
    static DEVICE_MEMBER bf16_t real_(real x) { bf16_t y = {store_bf16(to_odd(x))}; return y; }
};
template <> struct From<f16_t> { static DEVICE_MEMBER f16_t real_(real x) { f16_t y = {store_f16(to_odd(x))}; return y; } };

/* Values of a pack. */
template <class T, int P> DEVICE void widen_pack(real *x, const Pack<T, P> &pack) {
#pragma unroll
    for (int k = 0; k < P; ++k) x[k] = to_real(pack.v[k]);
}
template <int P> DEVICE void widen_pack(real *x, const Pack<bf16_t, P> &pack) {
#pragma unroll
    for (int k = 0; k + 1 < P; k += 2) {
        uint32_t two;
        memcpy(&two, &pack.v[k], sizeof two);
        x[k] = of_bits(two << 16); x[k + 1] = of_bits(two & 0xffff0000u);
    }
    if (P % 2) x[P - 1] = to_real(pack.v[P - 1]);
}

/* W neighbours: in accesses of up to 16 bytes where the address allows it, which EVEN promises, word by word elsewhere. */
template <bool EVEN, class T> DEVICE void load_row(real (&x)[W], POINTER(T) p, index_t at, int live) {
    constexpr int P = W * sizeof(T) > 16 ? 16 / sizeof(T) : W;
    if (live == W && (EVEN || aligned<P>(p, at))) {
#pragma unroll
        for (int n = 0; n < W; n += P) {
            widen_pack(x + n, read_pack<P>(p, at + n));
        }
    } else {
#pragma unroll
        for (int n = 0; n < W; ++n) x[n] = n < live ? to_real(p[at + n]) : (real)0;
    }
}
template <class T, int P> DEVICE void round_pack(Pack<T, P> &pack, const real *x) {
#pragma unroll
    for (int k = 0; k < P; ++k) pack.v[k] = From<T>::real_(x[k]);
}
template <int P> DEVICE void round_pack(Pack<bf16_t, P> &pack, const real *x) {
#pragma unroll
    for (int k = 0; k + 1 < P; k += 2) {
        const uint32_t two = store_two_bf16(to_odd(x[k]), to_odd(x[k + 1]));
        memcpy(&pack.v[k], &two, sizeof two);
    }
    if (P % 2) pack.v[P - 1] = From<bf16_t>::real_(x[P - 1]);
}
template <bool EVEN, class T> DEVICE void store_row(POINTER(T) p, index_t at, const real (&x)[W], int live) {
    constexpr int P = W * sizeof(T) > 16 ? 16 / sizeof(T) : W;
    if (live == W && (EVEN || aligned<P>(p, at))) {
#pragma unroll
        for (int n = 0; n < W; n += P) {
            Pack<T, P> pack;
            round_pack(pack, x + n);
            write_pack<P>(p, at + n, pack);
        }
    } else {
#pragma unroll
        for (int n = 0; n < W; ++n)
            if (n < live) p[at + n] = From<T>::real_(x[n]);
    }
}

/* Floor division and remainder with the sign of the divisor. */
DEVICE index_t div_floor(index_t a, index_t b) { index_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
DEVICE index_t mod_floor(index_t a, index_t b) { return a - div_floor(a, b) * b; }
DEVICE index_t min_of(index_t a, index_t b) { return a < b ? a : b; }
DEVICE index_t max_of(index_t a, index_t b) { return a > b ? a : b; }
/* The quotient of numbers below 2^31 by one that is known beforehand, as its `magic` = floor(2^shift / n) + 1, shift = 31 + log2 n
   rounded up: a division takes thirty instructions. */
DEVICE index_t quotient(index_t a, index_t magic, index_t shift) { return (index_t)(wide_product((uint32_t)a, (uint32_t)magic) >> shift); }
DEVICE int live_of(index_t rest) { return rest < 0 ? 0 : rest < W ? (int)rest : W; }

/* The greater and the lesser of two values; NaN if one of them is, which fmax hides. One instruction where a GPU has it. */
#if __CUDA_ARCH__ >= 800 && !defined(REAL_IS_DOUBLE) && !defined(MEMLET_SHIM)
DEVICE real r_max(real a, real b) { real y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE real r_min(real a, real b) { real y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
#else
DEVICE real r_max(real a, real b) { return b > a || b != b ? b : a; }
DEVICE real r_min(real a, real b) { return b < a || b != b ? b : a; }
#endif
#ifdef REAL_IS_DOUBLE
//@ double exp log tanh erf sqrt sin cos floor
DEVICE real r_pow(real x, real y) { return pow(x, y); }
//@ double *
#else
#if defined(ROUGH) && !defined(MEMLET_SHIM)
/* To 22 bits for small arguments, 17 for those of 80; no result has more than 11. */
DEVICE real r_exp(real x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f)); return y; }
#else
DEVICE real r_exp(real x) { return expf(x); }
#endif
//@ float log tanh erf sqrt sin cos floor
DEVICE real r_pow(real x, real y) { return powf(x, y); }
//@ float *
#endif
/* A power of two: times this, a divisor has a reciprocal that is a normal number. What is divided is multiplied with it, too. */
DEVICE real fit_of(real x) {
    const real far = sizeof(real) == 8 ? (real)1.3407807929942597e154 : (real)1.8446744073709552e19, a = r_abs(x);
    return a < 1 / far ? far : a > far ? 1 / far : (real)1;
}
DEVICE real r_sigmoid(real x) { return (real)1 / ((real)1 + r_exp(-x)); }

/* Dropout: what a kernel knows of a mask, */
struct Mask {
    uint64_t stream;
    double factor;
    uint32_t threshold;
    uint32_t unused;
};
/* and what decides about it in a run; an element is dropped if its lane, 16 random bits, is below the threshold. */
struct Keep {
    uint64_t step;
    double factor;
    uint32_t key[2];
    uint32_t threshold;
};
/* What is drawn for all kernels of a run lies in memory: seed, step, and whether anything is dropped. A recorded launch finds
   there what its run asks for. */
DEVICE Keep keep_of(const Mask &mask, POINTER(const uint64_t) draw) {
    /* The key of a stream: one round of splitmix64. */
    uint64_t z = (draw[0] ^ mask.stream) + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    const bool drops = draw[2] != 0;
    Keep keep = {draw[1], drops ? mask.factor : 1.0, {(uint32_t)z, (uint32_t)(z >> 32)}, drops ? mask.threshold : 0};
    return keep;
}

/* Philox 4x32-10 of the eight elements of one block. */
DEVICE void philox(uint32_t (&c)[4], const Keep &keep, uint64_t block) {
    uint32_t k0 = keep.key[0], k1 = keep.key[1];
    c[0] = (uint32_t)block; c[1] = (uint32_t)(block >> 32); c[2] = (uint32_t)keep.step; c[3] = (uint32_t)(keep.step >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = wide_product(0xd2511f53u, c[0]), b = wide_product(0xcd9e8d57u, c[2]);
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0; c[1] = (uint32_t)b; c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1; c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u; k1 += 0xbb67ae85u;
    }
}
DEVICE uint32_t lanes_of(const uint32_t (&c)[4], uint64_t element) {
    return element & 4 ? (element & 2 ? c[3] : c[2]) : (element & 2 ? c[1] : c[0]);
}
DEVICE uint32_t lane_of(const uint32_t (&c)[4], uint64_t element) {
    const uint32_t two = lanes_of(c, element);
    return element & 1 ? two >> 16 : two & 0xffffu;
}
/* A word whose upper half is the lane. What is below matters to no comparison with such a word whose lower half is zero. */
DEVICE uint32_t upper_of(const uint32_t (&c)[4], uint64_t element) {
    const uint32_t two = lanes_of(c, element);
    return element & 1 ? two : two << 16;
}
DEVICE uint32_t lane_of(const Keep &keep, uint64_t element) {
    uint32_t c[4];
    philox(c, keep, element >> 3);
    return lane_of(c, element);
}
/* The lanes of the elements first + n step: each of another block, most likely, and none waits for another. */
DEVICE void keep_row(uint32_t (&lanes)[W], const Keep &keep, uint64_t first, uint64_t step) {
    if (keep.threshold == 0) {
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = 0;
        return;
    }
#pragma unroll
    for (int n = 0; n < W; ++n) lanes[n] = lane_of(keep, first + n * step);
}
/* The same, where the mask's neighbours are the rows of a block: if eight of them are one block of random numbers, each draws a part
   of what all of them need. All threads of a block come here, and know the same of `together`. */
DEVICE void keep_rows(uint32_t (&lanes)[W], const Keep &keep, uint64_t first, uint64_t step, bool together, POINTER(uint16_t) drawn) {
    if (keep.threshold == 0) {
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = 0;
        return;
    }
    if (!together) {
        /* Everyone for itself; the loop is no longer than it must be, and registers have no numbers. */
#pragma unroll 1
        for (int n = 0; n < W; ++n) drawn[threadIdx.x * W + n] = (uint16_t)lane_of(keep, first + n * step);
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = drawn[threadIdx.x * W + n];
        return;
    }
    const int member = threadIdx.x % TEAM, row = threadIdx.x / TEAM, place = row % 8;
    const uint64_t head = first - place - (uint64_t)(member * W) * step;
    for (int p = place * TEAM + member; p < TEAM * W; p += 8 * TEAM) {
        uint32_t c[4];
        philox(c, keep, (head + p * step) >> 3);
#pragma unroll
        for (int n = 0; n < 8; ++n) drawn[(row - place + n) * TEAM * W + p] = (uint16_t)(n % 2 ? c[n / 2] >> 16 : c[n / 2]);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < W; ++n) lanes[n] = drawn[threadIdx.x * W + n];
    __syncthreads();
}
/* The lanes in the upper halves of words, where a team comes to the mask's neighbours one after the other: what is held decides about
   eight. */
DEVICE void keep_turn(uint32_t (&lanes)[W], const Keep &keep, uint64_t first, uint64_t step, uint32_t (&held)[W][4], uint64_t &at) {
    if (keep.threshold == 0) {
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = 0;
        return;
    }
    if (first >> 3 != at || step % 8 != 0) {
        at = first >> 3;
#pragma unroll
        for (int n = 0; n < W; ++n) philox(held[n], keep, (first + n * step) >> 3);
    }
    if (step % 8 == 0) {
        const uint32_t place = (uint32_t)first & 7;
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = upper_of(held[n], place);
        return;
    }
#pragma unroll
    for (int n = 0; n < W; ++n) lanes[n] = upper_of(held[n], first + n * step);
}
/* The lanes of neighbours, in the upper halves of words: a block has eight, and W of them lie in one or two; in one if EVEN promises that
   the first is a multiple of W. Then nothing is asked, so that what a thread reads next need not wait for it. */
template <bool EVEN> DEVICE void keep_line(uint32_t (&lanes)[W], const Keep &keep, uint64_t first) {
    static_assert(W <= 8, "neighbours of more than two blocks");
    if (EVEN) {
        uint32_t c[4];
        philox(c, keep, first >> 3);
        const uint32_t part = (uint32_t)first & (8 - W);
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = upper_of(c, part | n);
        return;
    }
    if (keep.threshold == 0) {
#pragma unroll
        for (int n = 0; n < W; ++n) lanes[n] = 0;
        return;
    }
    uint32_t c[4];
    philox(c, keep, first >> 3);
    const uint32_t skipped = (uint32_t)first & 7;
    if (skipped) {
        uint32_t next[4] = {0, 0, 0, 0};
        if (skipped + W > 8) philox(next, keep, (first >> 3) + 1);
        uint32_t all[9] = {c[0], c[1], c[2], c[3], next[0], next[1], next[2], next[3], 0};
#pragma unroll
        for (int k = 0; k < 6; ++k) all[k] = skipped & 4 ? all[k + 2] : all[k];
#pragma unroll
        for (int k = 0; k < 5; ++k) all[k] = skipped & 2 ? all[k + 1] : all[k];
#pragma unroll
        for (int k = 0; k < 4; ++k) c[k] = skipped & 1 ? all[k] >> 16 | all[k + 1] << 16 : all[k];
    }
#pragma unroll
    for (int n = 0; n < W; ++n) lanes[n] = n % 2 ? c[n / 2] : c[n / 2] << 16;
}

/* Teams: lanes of one warp, a warp, or a whole block. */
DEVICE uint32_t team_mask() { return TEAM >= 32 ? 0xffffffffu : ((1u << (TEAM & 31)) - 1u) << (threadIdx.x & 31 & ~(TEAM - 1)); }
DEVICE void team_sync() {
    if (TEAM > 32) __syncthreads();
    else if (TEAM > 1) __syncwarp(team_mask());
}
struct Sum { DEVICE_MEMBER real operator()(real a, real b) const { return a + b; } };
struct Product { DEVICE_MEMBER real operator()(real a, real b) const { return a * b; } };
struct Max { DEVICE_MEMBER real operator()(real a, real b) const { return r_max(a, b); } };
struct Min { DEVICE_MEMBER real operator()(real a, real b) const { return r_min(a, b); } };
/* The combined values of all threads of a team within a warp, the same in each of them. */
template <int N, class F> DEVICE void warp_reduce(real (&x)[N], F f) {
#pragma unroll
    for (int step = (TEAM < 32 ? TEAM : 32) / 2; step > 0; step /= 2)
#pragma unroll
        for (int n = 0; n < N; ++n) x[n] = f(x[n], __shfl_xor_sync(team_mask(), x[n], step, 32));
}
/* The combined values of all threads of a team of several warps, the same in each of them. `slots` holds N values for each warp, twice: those of the
   next time lie apart from these, so that all threads meet but once. */
template <int N, class F> DEVICE void team_reduce(real (&x)[N], F f, POINTER(real) slots, int &turn) {
    warp_reduce(x, f);
    POINTER(real) own = slots + turn * SLOTS;
    turn ^= 1;
#pragma unroll
    for (int n = 0; n < N; ++n)
        if (threadIdx.x % 32 == 0) own[n * (THREADS / 32) + threadIdx.x / 32] = x[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) {
        x[n] = own[n * (THREADS / 32)];
        for (int warp = 1; warp < TEAM / 32; ++warp) x[n] = f(x[n], own[n * (THREADS / 32) + warp]);
    }
}
/* What the rows of a block hold at one place of a team, put together in the order of rows; the first row has it. All threads of the
   block come here. */
template <class F> DEVICE real rows_reduce(real x, F f, POINTER(real) gathered) {
    __syncthreads();
    gathered[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x < TEAM)
        for (int row = 1; row < ROWS; ++row) x = f(x, gathered[row * TEAM + threadIdx.x]);
    return x;
}
/* The same of W values that each thread holds: threads share the places of a team, so that all of them meet three times and not
   twice for each value. */
template <class F> DEVICE void rows_reduce_strip(real (&x)[W], F f, POINTER(real) gathered) {
    __syncthreads();
#pragma unroll
    for (int w = 0; w < W; ++w) gathered[w * THREADS + threadIdx.x] = x[w];
    __syncthreads();
    for (int e = threadIdx.x; e < TEAM * W; e += THREADS) {
        const int at = e / TEAM * THREADS + e % TEAM;
        real whole = gathered[at];
#pragma unroll
        for (int row = 1; row < ROWS; ++row) whole = f(whole, gathered[at + row * TEAM]);
        gathered[at] = whole;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < W; ++w) x[w] = gathered[w * THREADS + threadIdx.x % TEAM];
}
/* A strip of every row of the block, `left` of its values from the team's first thread on, written with the rows next to one
   another: they pass through `tile`. `at` is the place of a thread's first value, `step` the way from one value to the next. */
template <class T>
DEVICE void turn_rows(POINTER(T) p, index_t at, index_t step, const real (&x)[W], int live, index_t left, bool active, POINTER(real) tile,
                      POINTER(index_t) heads, POINTER(int32_t) lives) {
    const int member = threadIdx.x % TEAM, row = threadIdx.x / TEAM;
    constexpr int PLANE = TEAM * (ROWS + 1) + ROWS;
#pragma unroll
    for (int n = 0; n < W; ++n)
        if (n < live) tile[n * PLANE + member * (ROWS + 1) + row] = x[n];
    if (member == 0) {
        heads[row] = at;
        lives[row] = active ? (int32_t)min_of(max_of(left, 0), TEAM * W) : 0;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * TEAM * W; e += THREADS) {
        const int to = e % ROWS, n = e / ROWS;
        if (n < lives[to]) p[heads[to] + n * step] = From<T>::real_(tile[n % W * PLANE + n / W * (ROWS + 1) + to]);
    }
    __syncthreads();
}
