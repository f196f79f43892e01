/* Dropout: Philox 4x32-10. The mask of element e is the 16-bit lane e mod 8 of the block with counter e div 8. */
typedef struct {
    uint64_t step;
    double factor;
    uint32_t key[2];
    /* Lanes below it are dropped; 0 keeps everything. */
    uint32_t threshold;
    uint32_t unused;
} Keep;

static inline void philox_block(const Keep *k, uint64_t counter, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)k->step, c3 = (uint32_t)(k->step >> 32);
    uint32_t k0 = k->key[0], k1 = k->key[1];
    for (int round = 0; round < 10; ++round) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

/* The 16 random bits of one element. */
static inline uint32_t philox_lane(const Keep *k, int64_t element) {
    uint32_t out[4];
    philox_block(k, (uint64_t)element >> 3, out);
    return out[(element & 7) >> 1] >> (16 * (element & 1)) & 0xffff;
}

#ifdef __AVX512F__
#include <immintrin.h>
#define PHILOX_WIDTH 8
/* Eight counters: 64 lanes. Each 64-bit element holds a 32-bit word, which is what the multiplier reads. */
static inline void philox_wide(const Keep *k, uint64_t counter, uint16_t *out) {
    const __m512i low = _mm512_set1_epi64(0xffffffff), m0 = _mm512_set1_epi64(0xD2511F53u), m1 = _mm512_set1_epi64(0xCD9E8D57u);
    __m512i n = _mm512_add_epi64(_mm512_set1_epi64((int64_t)counter), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c0 = n, c1 = _mm512_srli_epi64(n, 32), c2 = _mm512_set1_epi64(k->step), c3 = _mm512_set1_epi64(k->step >> 32);
    uint32_t k0 = k->key[0], k1 = k->key[1];
    for (int round = 0; round < 10; ++round) {
        __m512i a = _mm512_mul_epu32(m0, c0), b = _mm512_mul_epu32(m1, c2);
        c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), c1, _mm512_set1_epi64(k0), 0x96);
        c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), c3, _mm512_set1_epi64(k1), 0x96);
        c1 = b;
        c3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    __m512i x = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
    __m512i y = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(x, _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), y));
    _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi64(x, _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4), y));
}
#else
#define PHILOX_WIDTH 8
static inline void philox_wide(const Keep *k, uint64_t counter, uint16_t *out) {
    uint64_t c0[8], c1[8], c2[8], c3[8];
    for (int l = 0; l < 8; ++l) {
        c0[l] = (uint32_t)(counter + l); c1[l] = (counter + l) >> 32; c2[l] = (uint32_t)k->step; c3[l] = k->step >> 32;
    }
    uint32_t k0 = k->key[0], k1 = k->key[1];
    for (int round = 0; round < 10; ++round) {
        for (int l = 0; l < 8; ++l) {
            uint64_t a = (uint64_t)0xD2511F53u * (uint32_t)c0[l], b = (uint64_t)0xCD9E8D57u * (uint32_t)c2[l];
            c0[l] = (b >> 32) ^ c1[l] ^ k0;
            c1[l] = (uint32_t)b;
            c2[l] = (a >> 32) ^ c3[l] ^ k1;
            c3[l] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int l = 0; l < 8; ++l) {
        uint32_t words[4] = {(uint32_t)c0[l], (uint32_t)c1[l], (uint32_t)c2[l], (uint32_t)c3[l]};
        for (int w = 0; w < 4; ++w) {
            out[8 * l + 2 * w] = (uint16_t)words[w];
            out[8 * l + 2 * w + 1] = (uint16_t)(words[w] >> 16);
        }
    }
}
#endif

/* The lanes of `count` elements from `first` on. Returns where the lane of `first` is; `room` holds count + 80. */
static inline const uint16_t *philox_lanes(const Keep *k, int64_t first, int64_t count, uint16_t *room) {
    if (k->threshold == 0) {
        return room;
    }
    uint64_t counter = (uint64_t)first >> 3;
    for (int64_t done = 0; done < count + (first & 7); done += 8 * PHILOX_WIDTH, counter += PHILOX_WIDTH) {
        philox_wide(k, counter, room + done);
    }
    return room + (first & 7);
}
