/* Winograd's minimal filtering F(m×m, 3×3): tiles of m×m results from patches of (m+2)×(m+2), in vectors of channels (Lavin and Gray, "Fast
   Algorithms for Convolutional Neural Networks", section 4). Interpolation at 0, ±1, ∞ for m = 2, and at ±2 besides for m = 4. */
#ifndef MEMLET_WINOGRAD
#define MEMLET_WINOGRAD
#define POINTS_OF(m) ((m) + 2)
/* All of these are vectors in registers. */
#define UNROLL _Pragma("GCC unroll 8")

/* One dim of a patch: the transposed matrix B times m + 2 vectors. */
ALWAYS void winograd_patch_dim_2(const reg_t *d, reg_t *r)
{
    r[0] = d[0] - d[2], r[1] = d[1] + d[2], r[2] = d[2] - d[1], r[3] = d[1] - d[3];
}

ALWAYS void winograd_patch_dim_4(const reg_t *d, reg_t *r)
{
    const reg_t a = d[4] - 4 * d[2], b = d[3] - 4 * d[1], e = d[4] - d[2], f = 2 * (d[3] - d[1]);
    r[0] = 4 * d[0] - 5 * d[2] + d[4], r[1] = a + b, r[2] = a - b, r[3] = e + f, r[4] = e - f, r[5] = 4 * d[1] - 5 * d[3] + d[5];
}

/* One dim of results: the transposed matrix A times m + 2 vectors. */
ALWAYS void winograd_result_dim_2(const reg_t *p, reg_t *r)
{
    r[0] = p[0] + p[1] + p[2], r[1] = p[1] - p[2] - p[3];
}

ALWAYS void winograd_result_dim_4(const reg_t *p, reg_t *r)
{
    const reg_t a = p[1] + p[2], b = p[1] - p[2], e = p[3] + p[4], f = p[3] - p[4];
    r[0] = p[0] + a + e, r[1] = b + 2 * f, r[2] = a + 4 * e, r[3] = b + 8 * f + p[5];
}

/* One dim of a window of weights: the matrix G times three vectors. */
ALWAYS void winograd_window_dim_2(const reg_t *g, reg_t *r)
{
    const reg_t a = (real)0.5 * (g[0] + g[2]), b = (real)0.5 * g[1];
    r[0] = g[0], r[1] = a + b, r[2] = a - b, r[3] = g[2];
}

ALWAYS void winograd_window_dim_4(const reg_t *g, reg_t *r)
{
    const reg_t a = (real)(-1.0 / 6) * (g[0] + g[2]), b = (real)(-1.0 / 6) * g[1];
    const reg_t e = (real)(1.0 / 24) * g[0] + (real)(1.0 / 6) * g[2], f = (real)(1.0 / 12) * g[1];
    r[0] = (real)0.25 * g[0], r[1] = a + b, r[2] = a - b, r[3] = e + f, r[4] = e - f, r[5] = g[2];
}

#define WINOGRAD(m)                                                                                                                  \
    /* A patch at `x`, with rows and columns so far apart, as (m+2)² vectors `apart` elements from one another. */                   \
    static __attribute__((noinline)) void winograd_patch_##m(const real *x, int64_t row, int64_t column, real *to, int64_t apart)    \
    {                                                                                                                                \
        reg_t t[POINTS_OF(m)][POINTS_OF(m)];                                                                                         \
        UNROLL for (int b = 0; b < POINTS_OF(m); ++b) {                                                                              \
            reg_t d[POINTS_OF(m)], r[POINTS_OF(m)];                                                                                  \
            UNROLL for (int a = 0; a < POINTS_OF(m); ++a) d[a] = *(const lanes_t *)(x + a * row + b * column);                       \
            winograd_patch_dim_##m(d, r);                                                                                            \
            UNROLL for (int a = 0; a < POINTS_OF(m); ++a) t[a][b] = r[a];                                                            \
        }                                                                                                                            \
        UNROLL for (int a = 0; a < POINTS_OF(m); ++a) {                                                                              \
            reg_t r[POINTS_OF(m)];                                                                                                   \
            winograd_patch_dim_##m(t[a], r);                                                                                         \
            UNROLL for (int b = 0; b < POINTS_OF(m); ++b) *(lanes_t *)(to + (a * POINTS_OF(m) + b) * apart) = r[b];                  \
        }                                                                                                                            \
    }                                                                                                                                \
    /* The same at the border of a picture: what lies outside has the fill. `h` and `w` are the place of the patch. */               \
    static __attribute__((noinline)) void winograd_border_##m(const real *x, int64_t row, int64_t column, int64_t h, int64_t w,      \
                                                              int64_t height, int64_t width, real fill, real *to, int64_t apart)     \
    {                                                                                                                                \
        real room[POINTS_OF(m) * POINTS_OF(m) * VL] __attribute__((aligned(64)));                                                    \
        for (int64_t a = 0; a < POINTS_OF(m); ++a)                                                                                   \
            for (int64_t b = 0; b < POINTS_OF(m); ++b) {                                                                             \
                const int inside = h + a >= 0 && h + a < height && w + b >= 0 && w + b < width;                                      \
                reg_t d = fill - (reg_t){0};                                                                                         \
                if (inside) d = *(const lanes_t *)(x + a * row + b * column);                                                        \
                *(lanes_t *)(room + (a * POINTS_OF(m) + b) * VL) = d;                                                                \
            }                                                                                                                        \
        winograd_patch_##m(room, POINTS_OF(m) * VL, VL, to, apart);                                                                  \
    }                                                                                                                                \
    /* Sums at (m+2)² points, `apart` elements from one another, as m² vectors of results. */                                        \
    ALWAYS void winograd_result_##m(const real *from, int64_t apart, real *to)                                                       \
    {                                                                                                                                \
        reg_t t[m][POINTS_OF(m)];                                                                                                    \
        UNROLL for (int b = 0; b < POINTS_OF(m); ++b) {                                                                              \
            reg_t p[POINTS_OF(m)], r[m];                                                                                             \
            UNROLL for (int a = 0; a < POINTS_OF(m); ++a) p[a] = *(const lanes_t *)(from + (a * POINTS_OF(m) + b) * apart);          \
            winograd_result_dim_##m(p, r);                                                                                           \
            UNROLL for (int a = 0; a < m; ++a) t[a][b] = r[a];                                                                       \
        }                                                                                                                            \
        UNROLL for (int a = 0; a < m; ++a) {                                                                                         \
            reg_t r[m];                                                                                                              \
            winograd_result_dim_##m(t[a], r);                                                                                        \
            UNROLL for (int b = 0; b < m; ++b) *(lanes_t *)(to + (a * m + b) * VL) = r[b];                                           \
        }                                                                                                                            \
    }                                                                                                                                \
    /* A window of weights for a vector of results, as (m+2)² vectors. */                                                            \
    static __attribute__((noinline)) void winograd_window_##m(const real *k, int64_t lane, int64_t row, int64_t column, real *to,    \
                                                              int64_t apart)                                                         \
    {                                                                                                                                \
        reg_t t[POINTS_OF(m)][3];                                                                                                    \
        UNROLL for (int b = 0; b < 3; ++b) {                                                                                         \
            reg_t g[3], r[POINTS_OF(m)];                                                                                             \
            UNROLL for (int a = 0; a < 3; ++a) g[a] = gathered(k + a * row + b * column, lane, VL);                                  \
            winograd_window_dim_##m(g, r);                                                                                           \
            UNROLL for (int a = 0; a < POINTS_OF(m); ++a) t[a][b] = r[a];                                                            \
        }                                                                                                                            \
        UNROLL for (int a = 0; a < POINTS_OF(m); ++a) {                                                                              \
            reg_t r[POINTS_OF(m)];                                                                                                   \
            winograd_window_dim_##m(t[a], r);                                                                                        \
            UNROLL for (int b = 0; b < POINTS_OF(m); ++b) *(lanes_t *)(to + (a * POINTS_OF(m) + b) * apart) = r[b];                  \
        }                                                                                                                            \
    }
#endif
