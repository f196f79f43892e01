/* What every kernel starts with. `real` is what it computes in. */
#ifndef MEMLET_PRELUDE
#define MEMLET_PRELUDE
#include <stdint.h>

#define ALWAYS static inline __attribute__((always_inline))
#define INF ((real)__builtin_inf())

ALWAYS uint32_t bits_of(float x) { uint32_t u; __builtin_memcpy(&u, &x, 4); return u; }
ALWAYS float of_bits(uint32_t u) { float x; __builtin_memcpy(&x, &u, 4); return x; }

/* A double as a float whose last bit is 1 where that is not exact: rounded once more, to half of its bits or fewer, it is what the
   double would be rounded to at once. Nearest values, rounded twice, go wrong just above and below halfway points. */
ALWAYS float to_odd(double x) {
    float near = (float)x;
    double back = near;
    uint32_t u = bits_of(near), beyond = x > 0 ? back > x : back < x;
    return of_bits(back == x || x != x ? u : (u - beyond) | 1);
}

/* One of two values by a condition that all lanes of a vector have in common. */
#ifdef REAL_IS_DOUBLE
ALWAYS double select_of(int32_t condition, double a, double b) {
    uint64_t mask = -(uint64_t)(condition != 0), u, v;
    __builtin_memcpy(&u, &a, 8);
    __builtin_memcpy(&v, &b, 8);
    u = (u & mask) | (v & ~mask);
    __builtin_memcpy(&a, &u, 8);
    return a;
}
#else
ALWAYS float select_of(int32_t condition, float a, float b) {
    uint32_t mask = -(uint32_t)(condition != 0);
    return of_bits((bits_of(a) & mask) | (bits_of(b) & ~mask));
}
#endif

/* Half-precision storage. */
ALWAYS float load_bf16(uint16_t u) { return of_bits((uint32_t)u << 16); }
ALWAYS uint16_t store_bf16(real value) {
#ifdef REAL_IS_DOUBLE
    float x = to_odd(value);
#else
    float x = value;
#endif
    uint32_t u = bits_of(x);
    return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Floor division and remainder with the sign of the divisor. */
ALWAYS int64_t div_floor(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
ALWAYS int64_t mod_floor(int64_t a, int64_t b) { return a - div_floor(a, b) * b; }
ALWAYS int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
ALWAYS int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

#ifdef REAL_IS_DOUBLE
//@ double exp log tanh erf sqrt sin cos floor
ALWAYS real r_pow(real x, real y) { return __builtin_pow(x, y); }
//@ double *
#define TWO_TO_HALF_RANGE 0x1p512
#else
#define TWO_TO_HALF_RANGE 0x1p64f
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FUSES 1
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FUSES 0
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* Where erf reaches what it tends to. Weak, so that no compiler works the rest of a function out for these values, which would take
   the place of two instructions with a dozen; constant, so that no result can be thought to lie there: loops whose results lie
   over what they read would not become vector code. */
__attribute__((weak)) const float memlet_erf_range[2] = {-3.832506856900711f, 3.832506856900711f};
/* Written so that NaN comes through. */
ALWAYS float clamp(float x, const float range[2]) {
    float c = range[0] > x ? range[0] : x;
    return range[1] < c ? range[1] : c;
}

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r, then n added to its exponent. Results below 2^-126,
   the smallest normal number, are 0: what underflows costs some processors more than the rest of the function, and masks make
   many of them. Adding a number in whose
   unit place a float's bits end rounds to whole numbers and leaves n in the lowest bits. The steps are written as fused
   operations, so that no compiler merges the two halves of ln 2 or cancels the large number. */
ALWAYS float r_exp(float x) {
#if FUSES
    float whole = FMA(x, 1.44269504f, 12582912.0f), n = whole - 12582912.0f;
    uint32_t power = bits_of(whole) << 23;
#else
    float n = __builtin_rintf(x * 1.44269504f);
    uint32_t power = (uint32_t)(int32_t)n << 23;
#endif
    float r = FMA(n, -0.693359375f, x);
    r = FMA(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = FMA(p, r, 1.3981999507e-3f);
    p = FMA(p, r, 8.3334519073e-3f);
    p = FMA(p, r, 4.1665795894e-2f);
    p = FMA(p, r, 1.6666665459e-1f);
    p = FMA(p, r, 5.0000001201e-1f);
    p = FMA(p, r, 1.0f);
    p = FMA(p, r, 1.0f);
    float scaled = of_bits(bits_of(p) + power);
    scaled = x < -87.33654f ? 0.0f : scaled;
    return x <= 88.72283f ? scaled : x + __builtin_inff();
}

/* log: x = m 2^e, m in [1/sqrt 2, sqrt 2), a polynomial in m - 1. */
ALWAYS float r_log(float x) {
    float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
    float shift = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t u = bits_of(scaled) - 0x3f3504f3u;
    float e = (float)((int32_t)u >> 23) + shift;
    float f = of_bits((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;
    p = FMA(p, f, -1.1514610310e-1f);
    p = FMA(p, f, 1.1676998740e-1f);
    p = FMA(p, f, -1.2420140846e-1f);
    p = FMA(p, f, 1.4249322787e-1f);
    p = FMA(p, f, -1.6668057665e-1f);
    p = FMA(p, f, 2.0000714765e-1f);
    p = FMA(p, f, -2.4999993993e-1f);
    p = FMA(p, f, 3.3333331174e-1f);
    float y = FMA(p * f, z, FMA(e, -2.12194440e-4f, -0.5f * z));
    y = FMA(e, 0.693359375f, f + y);
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x < 0.0f ? __builtin_nanf("") : y;
    y = x > 3.40282347e38f ? x : y;
    return x != x ? x : y;
}

/* tanh: an odd polynomial below 0.625, else 1 - 2 / (exp(2|x|) + 1). */
ALWAYS float r_tanh(float x) {
    float a = __builtin_fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = FMA(p, z, 2.06390887954e-2f);
    p = FMA(p, z, -5.37397155531e-2f);
    p = FMA(p, z, 1.33314422036e-1f);
    p = FMA(p, z, -3.33332819422e-1f);
    float small = FMA(p * z, x, x);
    float large = 1.0f - 2.0f / (r_exp(2.0f * (a > 10.0f ? 10.0f : a)) + 1.0f);
    large = x < 0.0f ? -large : large;
    return x != x ? x : (a < 0.625f ? small : large);
}

/* erf: an odd rational function up to where it rounds to 1; within 8 units of 2^-24 relative to its value. */
ALWAYS float r_erf(float x) {
    float c = clamp(x, memlet_erf_range);
    float z = c * c;
    float p = 2.2905065861350646e-4f;
    p = FMA(p, z, 3.4082910107109506e-3f);
    p = FMA(p, z, 5.0955695062380861e-2f);
    p = FMA(p, z, 1.8520832239976145e-1f);
    p = FMA(p, z, 1.128379143519084f);
    float q = -1.1791602954361697e-7f;
    q = FMA(q, z, 2.3547966471313185e-5f);
    q = FMA(q, z, 1.0179625278914885e-3f);
    q = FMA(q, z, 1.4070470171167667e-2f);
    q = FMA(q, z, 1.1098505178285362e-1f);
    q = FMA(q, z, 4.9746925110067538e-1f);
    q = FMA(q, z, 1.0f);
    return c * p / q;
}

//@ float sigmoid sqrt sin cos floor
ALWAYS float r_pow(float x, float y) { return __builtin_powf(x, y); }
//@ float *
#endif

/* A power of two: times this, a divisor has a reciprocal that is a normal number. What is divided is multiplied with it, too. */
ALWAYS real fit_of(real x) {
    const real a = r_abs(x);
    return a < 1 / TWO_TO_HALF_RANGE ? TWO_TO_HALF_RANGE : a > TWO_TO_HALF_RANGE ? 1 / TWO_TO_HALF_RANGE : 1;
}

/* Dropout: what decides about one mask; an element is dropped if its lane, 16 random bits, is below the threshold. */
typedef struct {
    uint64_t step;
    double factor;
    uint32_t key[2];
    uint32_t threshold;
    uint32_t unused;
} Keep;

/* What the program that loads this kernel does for it. */
typedef struct {
    const Keep *keep;
    /* The lanes of the elements first + n stride, n < count. `held` says which lanes are in `room` already. */
    const uint16_t *(*row)(const Keep *keep, int64_t first, int64_t stride, int64_t count, uint16_t *room, int64_t *held);
    /* A copy around the caches. */
    void (*stream)(void *to, const void *from, int64_t bytes);
    /* Whether results had better be streamed: they are large, or other cores read them that have no cache in common with this one. */
    int64_t streams;
    /* Whether products that nobody reads soon are written around the caches. */
    int64_t late;
    /* `stream`, where factors that every worker is to read had better be streamed; else 0. */
    void (*around)(void *to, const void *from, int64_t bytes);
    /* Packing and products of tiles, for kernels that have any. */
    void (*pack)(void), (*pack_lines)(void), (*gemm)(void);
} Host;

/* The lane of one element. */
ALWAYS uint32_t lane_of(const Host *host, int64_t mask, int64_t element) {
    uint16_t room[192];
    int64_t held = -1;
    return *host->row(&host->keep[mask], element, 1, 1, room, &held);
}
#endif
