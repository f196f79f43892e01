/* Dropout's random numbers: Philox 4x32-10 (Salmon et al., SC 2011), keyed by seed and stream, counted by element and step. A block of
   four words has the lanes of eight elements. */
#include "internal.h"
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define ALWAYS static inline __attribute__((always_inline))
enum { WIDTH = 8, LANES = 64 };
#define MULTIPLIER_0 UINT32_C(0xD2511F53)
#define MULTIPLIER_1 UINT32_C(0xCD9E8D57)

typedef struct {
    uint32_t keys[10][2];
    uint64_t step;
} Rounds;

int NAME_instructions(void)
{
    int needs = 0;
#if defined(__AVX2__)
    needs |= CAPS_NEEDS_AVX2;
#endif
#if defined(__AVX512F__)
    needs |= CAPS_NEEDS_AVX512;
#endif
#if defined(__AVX512BF16__)
    needs |= CAPS_NEEDS_BF16;
#endif
    return needs;
}

NAME_keep NAME_keep_of(const NAME_mask *mask, uint64_t seed, uint64_t step, int drops)
{
    const uint32_t threshold = drops ? mask->threshold : 0;
    uint64_t mixed = (seed ^ mask->stream) + UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94D049BB133111EB);
    mixed ^= mixed >> 31;
    return (NAME_keep){step, 65536.0 / (double)(65536 - threshold), {(uint32_t)mixed, (uint32_t)(mixed >> 32)}, threshold, 0};
}

ALWAYS Rounds rounds_of(const NAME_keep *keep)
{
    Rounds rounds = {.step = keep->step};
    for (int n = 0; n < 10; ++n) {
        rounds.keys[n][0] = n ? rounds.keys[n - 1][0] + UINT32_C(0x9E3779B9) : keep->key[0];
        rounds.keys[n][1] = n ? rounds.keys[n - 1][1] + UINT32_C(0xBB67AE85) : keep->key[1];
    }
    return rounds;
}

#if defined(__AVX512F__)
/* The four words of eight blocks, each in the low half of a 64-bit element; the high half is noise. */
typedef struct {
    __m512i c[4];
} Words;

ALWAYS Words words_of(const Rounds *rounds, const uint64_t *counters)
{
    __m512i c0 = _mm512_loadu_si512(counters), c1 = _mm512_shuffle_epi32(c0, 0xf5);
    __m512i c2 = _mm512_set1_epi64((uint32_t)rounds->step), c3 = _mm512_set1_epi64((uint32_t)(rounds->step >> 32));
    for (int n = 0; n < 10; ++n) {
        const __m512i a = _mm512_mul_epu32(_mm512_set1_epi64(MULTIPLIER_0), c0), b = _mm512_mul_epu32(_mm512_set1_epi64(MULTIPLIER_1), c2);
        c0 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(b, 0xf5), c1, _mm512_set1_epi64(rounds->keys[n][0]), 0x96);
        c2 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(a, 0xf5), c3, _mm512_set1_epi64(rounds->keys[n][1]), 0x96);
        c1 = b;
        c3 = a;
    }
    return (Words){{c0, c1, c2, c3}};
}

/* The lanes of eight blocks, one block after the other. */
ALWAYS void in_order(const Rounds *rounds, const uint64_t *counters, uint16_t *to)
{
    const Words w = words_of(rounds, counters);
    const __m512i low = _mm512_set1_epi64(0xffffffff);
    const __m512i front = _mm512_or_si512(_mm512_and_si512(w.c[0], low), _mm512_slli_epi64(w.c[1], 32));
    const __m512i back = _mm512_or_si512(_mm512_and_si512(w.c[2], low), _mm512_slli_epi64(w.c[3], 32));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(front, _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), back));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi64(front, _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4), back));
}

/* The first lanes of eight blocks, `pitch` further their second lanes, and so on. */
ALWAYS void turned(const Rounds *rounds, const uint64_t *counters, uint16_t *to, int64_t pitch)
{
    const Words w = words_of(rounds, counters);
    for (int pair = 0; pair < 4; ++pair) {
        _mm_storeu_si128((__m128i *)(to + 2 * pair * pitch), _mm512_cvtepi64_epi16(w.c[pair]));
        _mm_storeu_si128((__m128i *)(to + (2 * pair + 1) * pitch), _mm512_cvtepi64_epi16(_mm512_srli_epi64(w.c[pair], 16)));
    }
}
#elif defined(__AVX2__)
/* The four words of eight blocks, each in the low half of a 64-bit element: of each word the first four blocks, then the other four. The
   high half is noise. */
typedef struct {
    __m256i c[4][2];
} Words;

ALWAYS Words words_of(const Rounds *rounds, const uint64_t *counters)
{
    Words w;
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
        __m256i c0 = _mm256_loadu_si256((const __m256i *)(counters + 4 * n)), c1 = _mm256_shuffle_epi32(c0, 0xf5);
        __m256i c2 = _mm256_set1_epi64x((uint32_t)rounds->step), c3 = _mm256_set1_epi64x((uint32_t)(rounds->step >> 32));
#pragma GCC unroll 10
        for (int r = 0; r < 10; ++r) {
            const __m256i a = _mm256_mul_epu32(_mm256_set1_epi64x(MULTIPLIER_0), c0), b = _mm256_mul_epu32(_mm256_set1_epi64x(MULTIPLIER_1), c2);
            c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_shuffle_epi32(b, 0xf5), c1), _mm256_set1_epi64x(rounds->keys[r][0]));
            c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_shuffle_epi32(a, 0xf5), c3), _mm256_set1_epi64x(rounds->keys[r][1]));
            c1 = b;
            c3 = a;
        }
        w.c[0][n] = c0, w.c[1][n] = c1, w.c[2][n] = c2, w.c[3][n] = c3;
    }
    return w;
}

/* The lanes of eight blocks, one block after the other. */
ALWAYS void in_order(const Rounds *rounds, const uint64_t *counters, uint16_t *to)
{
    const Words w = words_of(rounds, counters);
    for (int n = 0; n < 2; ++n) {
        const __m256i front = _mm256_blend_epi32(w.c[0][n], _mm256_slli_epi64(w.c[1][n], 32), 0xaa);
        const __m256i back = _mm256_blend_epi32(w.c[2][n], _mm256_slli_epi64(w.c[3][n], 32), 0xaa);
        /* Of four blocks the first and the third, the second and the fourth. */
        const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
        _mm256_storeu_si256((__m256i *)(to + 32 * n), _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(to + 32 * n + 16), _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

/* The first lanes of eight blocks, `pitch` further their second lanes, and so on. */
ALWAYS void turned(const Rounds *rounds, const uint64_t *counters, uint16_t *to, int64_t pitch)
{
    const Words w = words_of(rounds, counters);
    /* Within each half of a register: the lower lanes of four words, then their upper lanes, those of the first blocks before the others'. */
    const __m256i split = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15));
    const __m256i pairs = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int pair = 0; pair < 4; ++pair) {
        const __m256i both = _mm256_blend_epi32(w.c[pair][0], _mm256_slli_epi64(w.c[pair][1], 32), 0xaa);
        const __m256i lanes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(both, split), pairs);
        _mm_storeu_si128((__m128i *)(to + 2 * pair * pitch), _mm256_castsi256_si128(lanes));
        _mm_storeu_si128((__m128i *)(to + (2 * pair + 1) * pitch), _mm256_extracti128_si256(lanes, 1));
    }
}
#else
/* The words of eight blocks. */
ALWAYS void words_of(const Rounds *rounds, const uint64_t *counters, uint32_t c[4][WIDTH])
{
    for (int n = 0; n < WIDTH; ++n) {
        c[0][n] = (uint32_t)counters[n], c[1][n] = (uint32_t)(counters[n] >> 32);
        c[2][n] = (uint32_t)rounds->step, c[3][n] = (uint32_t)(rounds->step >> 32);
    }
    for (int r = 0; r < 10; ++r)
        for (int n = 0; n < WIDTH; ++n) {
            const uint64_t a = (uint64_t)MULTIPLIER_0 * c[0][n], b = (uint64_t)MULTIPLIER_1 * c[2][n];
            c[0][n] = (uint32_t)(b >> 32) ^ c[1][n] ^ rounds->keys[r][0], c[1][n] = (uint32_t)b;
            c[2][n] = (uint32_t)(a >> 32) ^ c[3][n] ^ rounds->keys[r][1], c[3][n] = (uint32_t)a;
        }
}

ALWAYS void in_order(const Rounds *rounds, const uint64_t *counters, uint16_t *to)
{
    uint32_t c[4][WIDTH];
    words_of(rounds, counters, c);
    for (int n = 0; n < LANES; ++n) to[n] = (uint16_t)(c[n % WIDTH / 2][n / WIDTH] >> (16 * (n % 2)));
}

ALWAYS void turned(const Rounds *rounds, const uint64_t *counters, uint16_t *to, int64_t pitch)
{
    uint32_t c[4][WIDTH];
    words_of(rounds, counters, c);
    for (int lane = 0; lane < WIDTH; ++lane)
        for (int block = 0; block < WIDTH; ++block) to[lane * pitch + block] = (uint16_t)(c[lane / 2][block] >> (16 * (lane % 2)));
}
#endif

/* The lanes of the elements first + n stride, n < count, as a pointer into `room`. If the stride is a multiple of 8, the lanes of the
   eight elements that share a block with each of these are left there, too, and `held` says which. */
const uint16_t *NAME_draw_row(const NAME_keep *keep, int64_t first, int64_t stride, int64_t count, uint16_t *room, int64_t *held)
{
    if (keep->threshold == 0) return room;
    const Rounds rounds = rounds_of(keep);
    const int64_t block = first >> 3, lane = first & 7;
    uint64_t counters[WIDTH];
    if (stride == 1) {
        for (int n = 0; n < WIDTH; ++n) counters[n] = (uint64_t)(block + n);
        for (int64_t n = 0; n < count + lane; n += LANES) {
            in_order(&rounds, counters, room + n);
            for (int c = 0; c < WIDTH; ++c) counters[c] += WIDTH;
        }
        return room + lane;
    }
    if (stride % WIDTH == 0) {
        const int64_t pitch = (count + WIDTH - 1) / WIDTH * WIDTH, step = stride / WIDTH;
        if (*held != block) {
            for (int n = 0; n < WIDTH; ++n) counters[n] = (uint64_t)(block + n * step);
            for (int64_t n = 0; n < count; n += WIDTH) {
                turned(&rounds, counters, room + n, pitch);
                for (int c = 0; c < WIDTH; ++c) counters[c] += (uint64_t)(step * WIDTH);
            }
            *held = block;
        }
        return room + lane * pitch;
    }
    for (int64_t n = 0; n < count; n += WIDTH) {
        uint16_t lanes[LANES], chosen[WIDTH];
        for (int c = 0; c < WIDTH; ++c) counters[c] = (uint64_t)((first + (n + c) * stride) >> 3);
        in_order(&rounds, counters, lanes);
        for (int c = 0; c < WIDTH; ++c) chosen[c] = lanes[c * WIDTH + ((first + (n + c) * stride) & 7)];
        memcpy(room + n, chosen, sizeof(chosen));
    }
    return room;
}
