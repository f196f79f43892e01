/* Matrix products on tiles, for all tile kernels of one element type: panels are packed so that the micro-kernels read them in one stream each. */
typedef real vec __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));
typedef real reg __attribute__((vector_size(VEC_BYTES)));
#define VL ((int64_t)(VEC_BYTES / sizeof(real)))
#define WIDTH (NV * VL)
#ifdef REAL_IS_DOUBLE
typedef int64_t mask_t __attribute__((vector_size(VEC_BYTES)));
#else
typedef int32_t mask_t __attribute__((vector_size(VEC_BYTES)));
#endif
#if defined(__x86_64__)
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#elif defined(__aarch64__)
#define IN_REGISTER(x) __asm__("" : "+w"(x))
#else
#define IN_REGISTER(x)
#endif
MICRO_KERNELS

/* Panels of at most HEIGHT rows, as equal as can be: panel p starts at row m p / panels. */
ALWAYS int64_t panels_of(int64_t m) { return (m + HEIGHT - 1) / HEIGHT; }

/* The square of VL lines and VL columns that starts at `from`, turned: line t of it goes to `to + t step`. Lines from
   `lines` on count as zero. */
ALWAYS void turn(const real *from, int64_t line, int64_t lines, real scale, real *to, int64_t step)
{
    reg v[VL];
#pragma GCC unroll 16
    for (int64_t i = 0; i < VL; ++i) {
        v[i] = (reg){0};
        if (i < lines) v[i] = (reg)*(const vec *)(from + i * line) * scale;
    }
#pragma GCC unroll 4
    for (int64_t d = 1; d < VL; d *= 2) {
        mask_t low, high;
#pragma GCC unroll 16
        for (int64_t t = 0; t < VL; ++t) {
            low[t] = (t & d) ? VL + t - d : t;
            high[t] = (t & d) ? VL + t : t + d;
        }
#pragma GCC unroll 16
        for (int64_t i = 0; i < VL; ++i) {
            if (i & d) continue;
            const reg x = v[i], y = v[i + d];
            v[i] = __builtin_shuffle(x, y, low);
            v[i + d] = __builtin_shuffle(x, y, high);
        }
    }
#pragma GCC unroll 16
    for (int64_t t = 0; t < VL; ++t) *(vec *)(to + t * step) = v[t];
}

/* One panel of `height` rows: depth by depth, `height` values each. Writes up to a vector beyond its end. */
ALWAYS void pack_panel(const real *a, int64_t row, int64_t step, int64_t height, int64_t depth, real scale, real *to)
{
    int64_t k = 0;
    if (step == 1 && VL >= HEIGHT) {
        for (; k + VL <= depth; k += VL) turn(a + k, row, height, scale, to + k * height, height);
    } else if (row == 1 && VL >= HEIGHT) {
        for (; k + 1 < depth; ++k) *(vec *)(to + k * height) = *(const vec *)(a + k * step) * scale;
    }
    for (; k < depth; ++k)
        for (int64_t i = 0; i < height; ++i) to[k * height + i] = a[i * row + k * step] * scale;
}

static __attribute__((noinline)) void pack_rows(const real *a, int64_t row, int64_t step, int64_t m, int64_t depth, real scale, real *to)
{
    const int64_t panels = panels_of(m);
    for (int64_t p = 0; p < panels; ++p) {
        const int64_t first = m * p / panels, height = m * (p + 1) / panels - first;
        pack_panel(a + first * row, row, step, height, depth, scale, to + first * depth);
    }
}

/* Panels of WIDTH columns: depth by depth, WIDTH values each, zeros beyond the last column. */
static __attribute__((noinline)) void pack_columns(const real *b, int64_t step, int64_t column, int64_t n, int64_t depth, real *to)
{
    for (int64_t j = 0; j < n; j += WIDTH, b += WIDTH * column, to += WIDTH * depth) {
        const int64_t width = min_of(WIDTH, n - j);
        int64_t k = 0;
        if (width == WIDTH && column == 1) {
            for (; k < depth; ++k) {
#pragma GCC unroll 4
                for (int64_t v = 0; v < NV; ++v) *(vec *)(to + k * WIDTH + v * VL) = *(const vec *)(b + k * step + v * VL);
            }
        } else if (width == WIDTH && step == 1) {
            for (; k + VL <= depth; k += VL) {
#pragma GCC unroll 4
                for (int64_t v = 0; v < NV; ++v) turn(b + v * VL * column + k, column, VL, 1, to + k * WIDTH + v * VL, WIDTH);
            }
        }
        for (; k < depth; ++k) {
            for (int64_t i = 0; i < width; ++i) to[k * WIDTH + i] = b[k * step + i * column];
            for (int64_t i = width; i < WIDTH; ++i) to[k * WIDTH + i] = 0;
        }
    }
}

/* Whether rows are better read where they lie than packed: where steps of the depth are neighbours, unless very many columns
   are multiplied by them; where rows are neighbours, for few columns and steps that do not touch a page each. */
ALWAYS int lie_well(int64_t n, int64_t row, int64_t step) { return step == 1 ? n <= 16 * WIDTH : row == 1 && step <= 256 && n <= 4 * WIDTH; }

/* c (+)= scale x rows x packed columns: rows as they lie, or packed (then scaled already, and `a_step` is 0). `next` is how far
   apart the panels of columns are. */
static void multiply(int64_t m, int64_t n, int64_t depth, const real *a, int64_t a_row, int64_t a_step, real scale, const real *b, int64_t next,
    real *c, int64_t row, int64_t column, int add)
{
    const int64_t panels = panels_of(m), across = (n + WIDTH - 1) / WIDTH;
    for (int64_t block = 0; block < panels * across; ++block) {
        /* Few columns stay in the nearest cache, so rows are read once; of many, one panel at a time stays. */
        const int64_t p = a_step ? block / across : block % panels, q = a_step ? block % across : block / panels;
        const int64_t first = m * p / panels, height = m * (p + 1) / panels - first;
        const int64_t j = q * WIDTH, width = min_of(WIDTH, n - j);
        real *const at = c + first * row + j * column;
        real room[HEIGHT * WIDTH];
        const int whole = width == WIDTH && column == 1;
        real *const to = whole ? at : room;
        const int64_t to_row = whole ? row : WIDTH;
        if (a_step) direct[height](depth, a + first * a_row, a_row, a_step, b + q * next, to, to_row, whole && add, &scale);
        else micro[height](depth, a + first * depth, b + q * next, to, to_row, whole && add);
        if (whole) continue;
        for (int64_t i = 0; i < height; ++i)
            for (int64_t x = 0; x < width; ++x) {
                real *const out = at + i * row + x * column;
                *out = add ? *out + room[i * WIDTH + x] : room[i * WIDTH + x];
            }
    }
}

/* Where chunk number q of the depth starts. */
ALWAYS int64_t chunk_at(int64_t k, int64_t chunks, int64_t q) { return k * q / chunks; }

/* All columns of an operand, chunk by chunk of the depth: what `product` takes as `ready`. */
void memlet_pack(const real *b, int64_t step, int64_t column, int64_t n, int64_t k, int64_t most, int64_t whole, int64_t first, real *to)
{
    const int64_t chunks = (k + most - 1) / most;
    for (int64_t q = 0; q < chunks; ++q) {
        const int64_t from = chunk_at(k, chunks, q), depth = chunk_at(k, chunks, q + 1) - from;
        pack_columns(b + from * step, step, column, n, depth, to + from * whole + first * depth);
    }
}

/* c (+)= scale a b on one tile: a is m x k, b k x n, `most` steps of the depth at a time. `ready` holds b packed (of `whole` columns, from column `first` on), or
   is null; then b is packed here. Row, depth and column strides in elements. */
void memlet_product(int64_t m, int64_t n, int64_t k, int64_t most, const real *a, int64_t a_row, int64_t a_step, real scale, const real *b, int64_t b_step,
    int64_t b_column, real *c, int64_t c_row, int64_t c_column, int add, real *rows, real *columns, const real *ready, int64_t whole,
    int64_t first)
{
    const int64_t chunks = (k + most - 1) / most;
    for (int64_t q = 0; q < chunks; ++q) {
        const int64_t from = chunk_at(k, chunks, q), depth = chunk_at(k, chunks, q + 1) - from;
        const real *panels = ready + from * whole + first * depth;
        if (!ready) {
            pack_columns(b + from * b_step, b_step, b_column, n, depth, columns);
            panels = columns;
        }
        const real *const lines = a + from * a_step;
        if (lie_well(n, a_row, a_step)) {
            multiply(m, n, depth, lines, a_row, a_step, scale, panels, WIDTH * depth, c, c_row, c_column, add || q > 0);
            continue;
        }
        pack_rows(lines, a_row, a_step, m, depth, scale, rows);
        multiply(m, n, depth, rows, 0, 0, 1, panels, WIDTH * depth, c, c_row, c_column, add || q > 0);
    }
}
