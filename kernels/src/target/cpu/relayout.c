/* A copy whose neighbours lie along one dim in the source, along another in the target: squares of N by N elements are transposed in
 * registers, so that every line of either is touched once. WORD is an unsigned integer of SIZE bytes. */
#include <stdint.h>

#define ALWAYS static inline __attribute__((always_inline))
/* How the prelude's Host begins. */
typedef struct { void *keep, *row, *stream; int64_t streams; } Host;
typedef WORD word;

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define VECTOR 64
#elif defined(__AVX2__)
#define VECTOR 32
#else
#define VECTOR 16
#endif

/* Elements of a vector, at most 16. */
#if VECTOR / SIZE >= 16
#define N 16
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VECTOR / SIZE == 8
#define N 8
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif VECTOR / SIZE == 4
#define N 4
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define N 2
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

typedef word row __attribute__((vector_size(N * SIZE)));
typedef word free_row __attribute__((vector_size(N * SIZE), aligned(SIZE), may_alias));

ALWAYS int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Squares side by side whose rows are together a line of the target: lines that are written whole can go around the caches. */
#define LINE 64
#define BESIDE (N * SIZE < LINE ? LINE / (N * SIZE) : 1)
#if N * SIZE * BESIDE == LINE && (VECTOR == 64 || (VECTOR == 32 && N * SIZE == 32))
#define STREAMS 1
#define STREAM(at, x) __asm__ volatile("vmovntdq %1, %0" : "=m"(*(row *)(at)) : "v"(x))
#else
#define STREAMS 0
#define STREAM(at, x) *(free_row *)(at) = (x)
#endif

#if __has_builtin(__builtin_shufflevector)
/* N rows of the source, `source` apart, of N elements each, as columns. */
ALWAYS void turn(const word *from, int64_t source, row *x)
{
    row y[N];
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) x[r] = *(const free_row *)(from + r * source);
    /* Rows half the square apart are interleaved, and after log N times of that they are columns. */
#pragma GCC unroll 4
    for (int half = N; half > 1; half /= 2) {
#pragma GCC unroll 16
        for (int r = 0; r < N / 2; ++r) {
            y[2 * r] = LOW(x[r], x[r + N / 2]);
            y[2 * r + 1] = HIGH(x[r], x[r + N / 2]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < N; ++r) x[r] = y[r];
    }
}
#endif

/* `rows` rows of the source, `source` apart, of `columns` elements each become columns of the target, whose rows are `target` apart: at
 * most BESIDE squares. `streams` asks for these to be written around the caches. */
ALWAYS void squares(const word *from, int64_t source, word *to, int64_t target, int64_t rows, int64_t columns, int streams)
{
#if __has_builtin(__builtin_shufflevector)
    if (STREAMS && streams && rows == BESIDE * N && columns == N && ((uintptr_t)to | target * SIZE) % LINE == 0) {
        row x[BESIDE][N];
#pragma GCC unroll 4
        for (int s = 0; s < BESIDE; ++s) turn(from + s * N * source, source, x[s]);
#pragma GCC unroll 16
        for (int r = 0; r < N; ++r)
#pragma GCC unroll 4
            for (int s = 0; s < BESIDE; ++s) STREAM(to + r * target + s * N, x[s][r]);
        return;
    }
    for (; rows >= N && columns == N; rows -= N, from += N * source, to += N) {
        row x[N];
        turn(from, source, x);
#pragma GCC unroll 16
        for (int r = 0; r < N; ++r) *(free_row *)(to + r * target) = x[r];
    }
#endif
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = 0; r < rows; ++r) to[c * target + r] = from[r * source + c];
}

/* Of n: extents of the dims along which the source's and the target's neighbours lie, what neighbours along the other one are apart in
 * each; whether points are walked along the target's lines; how many other dims there are; for each of them its extent, and what
 * neighbours along it are apart in source and target. A point is a strip of STRIP lines. */
void memlet_kernel(char *const *p, const int64_t *n, const Host *host, char *scratch, int64_t from, int64_t to)
{
    (void)scratch;
    const int streams = host->streams != 0;
    const int64_t columns = n[0], rows = n[1], source = n[2], target = n[3], along = n[4], outer = n[5], *const dims = n + 6;
    const int64_t lines = along ? columns : rows, length = along ? rows : columns, strips = (lines + STRIP - 1) / STRIP;
    for (int64_t point = from; point < to; ++point) {
        int64_t rest = point / strips;
        const int64_t first = point % strips * STRIP, end = min_of(first + STRIP, lines);
        const word *x = (const word *)p[0];
        word *y = (word *)p[1];
        for (int64_t d = outer - 1; d >= 0; --d) {
            const int64_t at = rest % dims[3 * d];
            rest /= dims[3 * d];
            x += at * dims[3 * d + 1];
            y += at * dims[3 * d + 2];
        }
        const int64_t lines_at_once = along ? N : BESIDE * N, at_once = along ? BESIDE * N : N;
        for (int64_t line = first; line < end; line += lines_at_once) {
            for (int64_t at = 0; at < length; at += at_once) {
                const int64_t c = along ? line : at, r = along ? at : line;
                const int64_t wide = along ? end - line : length - at, high = along ? length - at : end - line;
                squares(x + r * source + c, source, y + c * target + r, target, min_of(BESIDE * N, high), min_of(N, wide), streams);
            }
        }
    }
}
