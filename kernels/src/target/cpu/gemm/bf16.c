/* bf16 in memory and in panels. */
typedef uint32_t word __attribute__((may_alias));
typedef uint32_t free_word __attribute__((aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t free_words __attribute__((vector_size(VEC_BYTES), aligned(2), may_alias));
typedef uint16_t halves __attribute__((vector_size(VEC_BYTES / 2)));
typedef uint16_t free_halves __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));

/* dot: to each sum the products of both halves of a pair are added, in f32. Instructions for it flush what is subnormal. Those of
   x86 round to nearest after each product; Arm's add both products first and round each of the two sums by up to a unit in the
   last place, twice as much but half as often: either way within the bound for sums in f32. */
#if defined(__AVX512BF16__) && VEC_BYTES == 64 && !defined(EMULATE_PAIRS)
#include <immintrin.h>
#define PAIRS 1
ALWAYS reg dot(reg sum, words x, words y) { return (reg)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y); }
#elif defined(__AVX512BF16__) && defined(__AVX512VL__) && VEC_BYTES == 32 && !defined(EMULATE_PAIRS)
#include <immintrin.h>
#define PAIRS 1
ALWAYS reg dot(reg sum, words x, words y) { return (reg)_mm256_dpbf16_ps((__m256)sum, (__m256bh)x, (__m256bh)y); }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && VEC_BYTES == 16 && !defined(EMULATE_PAIRS)
#include <arm_neon.h>
#define PAIRS 1
ALWAYS reg dot(reg sum, words x, words y) { return (reg)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)y); }
#elif defined(EMULATE_PAIRS)
/* What the instructions mean: so that packing and kernels are tested where they are missing. */
#define PAIRS 1
ALWAYS reg dot(reg sum, words x, words y)
{
    sum += (reg)(x << 16) * (reg)(y << 16);
    return sum + (reg)(x & 0xffff0000u) * (reg)(y & 0xffff0000u);
}
#else
/* Two conversions and two multiply-adds for each pair would take longer than multiply-adds of what packing has widened. */
#define PAIRS 0
#endif

ALWAYS reg widened(const uint16_t *from) { return (reg)(__builtin_convertvector((halves)*(const free_halves *)from, words) << 16); }

/* To bf16, to the nearest, ties to even; a NaN stays one. */
ALWAYS words rounded(reg x)
{
    const words u = (words)x, near = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, number = (words)(x == x);
    return (near & number) | (0x7fc0u & ~number);
}

/* VL elements of a panel that are neighbours in memory along the depth. */
ALWAYS reg along(const void *from, int64_t at, int kind)
{
    if (kind == (NARROW | PAIRED)) return (reg)*(const free_words *)((const uint16_t *)from + at);
    if (kind == NARROW) return widened((const uint16_t *)from + at);
    const vec *const x = (const vec *)((const real *)from + at);
    if (kind != PAIRED) return *x;
    const words first = rounded(x[0]), second = rounded(*(const vec *)((const real *)from + at + VL));
    mask_t even, odd;
#pragma GCC unroll 16
    for (int64_t t = 0; t < VL; ++t) {
        even[t] = 2 * t;
        odd[t] = 2 * t + 1;
    }
    return (reg)(__builtin_shuffle(first, second, (words)even) | __builtin_shuffle(first, second, (words)odd) << 16);
}

/* Pairs of so many halves: the first of each pair from one place, the second from another. */
ALWAYS words paired(const uint16_t *first, const uint16_t *second)
{
#if defined(__AVX512BF16__) && VEC_BYTES == 64 && !defined(EMULATE_PAIRS)
    /* Compilers widen both in two pieces each, a dozen instructions in place of these three. */
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)first)), _mm256_loadu_si256((const void *)second), 1);
    typedef uint16_t lanes __attribute__((vector_size(VEC_BYTES)));
    lanes order;
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) order[2 * t] = t, order[2 * t + 1] = 16 + t;
    return (words)_mm512_permutexvar_epi16((__m512i)order, both);
#else
    return __builtin_convertvector((halves)*(const free_halves *)first, words) |
        __builtin_convertvector((halves)*(const free_halves *)second, words) << 16;
#endif
}

/* VL elements of a panel that are neighbours in memory; the next step of the depth is `step` further. */
ALWAYS reg across(const void *from, int64_t at, int64_t step, int kind)
{
    if (!(kind & PAIRED)) return along(from, at, kind);
    if (kind & NARROW) {
        const uint16_t *const x = (const uint16_t *)from + at;
        return (reg)paired(x, x + step);
    }
    const real *const x = (const real *)from + at;
    return (reg)(rounded(*(const vec *)x) | rounded(*(const vec *)(x + step)) << 16);
}

/* One value in memory, and its bits in bf16. */
ALWAYS uint32_t bits_at(const void *from, int64_t at, int kind)
{
    if (kind & NARROW) return ((const uint16_t *)from)[at];
    const real x = ((const real *)from)[at];
    uint32_t u;
    __builtin_memcpy(&u, &x, 4);
    return x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

/* One element of a panel. Of a pair that has no second half that is zero. */
ALWAYS real one(const void *from, int64_t at, int64_t step, int both, int kind)
{
    if (kind == 0) return ((const real *)from)[at];
    uint32_t u = bits_at(from, at, kind);
    if (kind == NARROW) u <<= 16;
    else if (both) u |= bits_at(from, at + step, kind) << 16;
    real x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}

ALWAYS const void *after(const void *from, int64_t elements, int kind)
{
    return kind & NARROW ? (const void *)((const uint16_t *)from + elements) : (const void *)((const real *)from + elements);
}
