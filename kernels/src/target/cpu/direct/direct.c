/* Products by micro-kernels that read both factors where they lie: vectors of one, single values of the other. */
#ifndef MEMLET_DIRECT
#define MEMLET_DIRECT
typedef real lanes_t __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));
typedef real reg_t __attribute__((vector_size(VEC_BYTES)));
#define VL ((int64_t)(VEC_BYTES / sizeof(real)))
#ifdef REAL_IS_DOUBLE
#define SUFFIX "d"
#define SPREAD_ALL "%{1to8%}"
#else
#define SUFFIX "s"
#define SPREAD_ALL "%{1to16%}"
#endif
/* Instructions are chosen one by one and stay in this order: compilers copy registers of so many sums, and make steps of the depth into
   loads of whole vectors and permutations. */
#if defined(__FMA__) && VEC_BYTES >= 32
#define TAKE(x, at) __asm__ volatile("vmovups %1, %0" : "=v"(x) : "m"(*(const lanes_t *)(at)))
#define TAKE_ONE(x, at) __asm__ volatile("vbroadcasts" SUFFIX " %1, %0" : "=v"(x) : "m"(*(at)))
#define MULTIPLY(sum, x, y) __asm__ volatile("vfmadd231p" SUFFIX " %2, %1, %0" : "+v"(sum) : "v"(y), "v"(x))
#define MULTIPLY_TAKEN(sum, at, y) __asm__ volatile("vfmadd231p" SUFFIX " %2, %1, %0" : "+v"(sum) : "v"(y), "m"(*(const lanes_t *)(at)))
#else
#define TAKE(x, at) (x) = *(const lanes_t *)(at)
#define TAKE_ONE(x, at) (x) = *(at) - (reg_t){0}
#define MULTIPLY(sum, x, y) (sum) += (x) * (y)
#define MULTIPLY_TAKEN(sum, at, y) (sum) += *(const lanes_t *)(at) * (y)
#endif
#if defined(__AVX512F__) && VEC_BYTES == 64
#define MULTIPLY_ONE(sum, at, y) __asm__ volatile("vfmadd231p" SUFFIX " %2" SPREAD_ALL ", %1, %0" : "+v"(sum) : "v"(y), "m"(*(at)))
#else
#define MULTIPLY_ONE(sum, at, y) do { reg_t all_; TAKE_ONE(all_, at); MULTIPLY(sum, all_, y); } while (0)
#endif

/* What a later call reads, brought into the second cache. */
#define BRING_NEAR(at) __builtin_prefetch((at), 0, 2)
#define BRING_TO_WRITE(at) __builtin_prefetch((at), 1, 3)

/* A vector of values that lie apart. */
ALWAYS reg_t gathered(const real *at, int64_t apart, int64_t count)
{
    real room[VL];
    for (int64_t l = 0; l < VL; ++l) room[l] = at[(l < count ? l : count - 1) * apart];
    return *(const lanes_t *)room;
}

/* A run of a padded copy: `extent` elements of `each` values from subscript `low` on, of which those outside a dim of `size`, or all if
   the run is not inside, have the fill. */
ALWAYS void pad_run(real *to, const real *from, int inside, int64_t low, int64_t extent, int64_t size, int64_t each, real fill)
{
    const int64_t before = inside ? min_of(max_of(-low, 0), extent) : extent, end = min_of(max_of(size - low, before), extent);
    for (int64_t i = 0; i < before * each; ++i) to[i] = fill;
    if (end > before) {
        const real *const row = from + (low + before) * each;
        real *const at = to + before * each;
        for (int64_t i = 0; i < (end - before) * each; ++i) at[i] = row[i];
    }
    for (int64_t i = end * each; i < extent * each; ++i) to[i] = fill;
}

/* So many steps of the depth as vectors, of `valid` lanes: zeros beyond. Returns where the next ones go. */
ALWAYS real *pack_vectors(real *to, const real *from, int64_t valid, int64_t lane, int64_t depth, int64_t step)
{
    if (valid < VL)
        for (int64_t d = 0; d < depth * VL; ++d) to[d] = 0;
    if (lane == 1) {
        for (int64_t d = 0; d < depth; ++d)
            for (int64_t l = 0; l < valid; ++l) to[d * VL + l] = from[d * step + l];
    } else {
        for (int64_t l = 0; l < valid; ++l)
            for (int64_t d = 0; d < depth; ++d) to[d * VL + l] = from[l * lane + d * step];
    }
    return to + depth * VL;
}
#endif
