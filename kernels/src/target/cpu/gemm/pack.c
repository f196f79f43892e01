/* How panels are packed: turned, or in whole vectors of what lies side by side. */

/* Steps of the depth that are packed of all panels in turn, where panels share lines of memory. */
#define SOME 8

/* So many values, fewer than 16, to `to` or added to what is there, in pieces of whole vectors. */
ALWAYS void put(real *to, const real *from, int64_t count, int add)
{
#define PIECE(size) \
    if (count & size) { \
        typedef real piece __attribute__((vector_size(size * sizeof(real)), aligned(sizeof(real)), may_alias)); \
        piece x = *(const piece *)from; \
        if (add) x += *(const piece *)to; \
        *(piece *)to = x; \
        to += size, from += size; \
    }
    PIECE(8) PIECE(4) PIECE(2)
    if (count & 1) *to = add ? *to + *from : *from;
}

/* The square of VL lines and VL elements of a panel that starts at `at`, turned: line t of it goes to `to + t step`. What stands for
   lines from `lines` on is of no use. Nothing is written from `to + room` on, where a line is to have fewer than 16 elements. */
ALWAYS void turn(const void *from, int64_t at, int64_t line, int64_t lines, int kind, real *to, int64_t step, int64_t room)
{
    reg v[VL];
#pragma GCC unroll 16
    for (int64_t i = 0; i < VL; ++i) {
        v[i] = along(from, at + min_of(i, lines - 1) * line, kind);
    }
#if defined(__AVX2__) && VEC_BYTES == 32 && !defined(REAL_IS_DOUBLE)
    /* AVX2 shuffles two vectors within their halves alone: three instructions stand for any other order, and for one that compilers do not
       know as soon as they read it. */
#define ORDER(x, y, ...) __builtin_shuffle(x, y, (mask_t){__VA_ARGS__})
    reg x[8], y[8];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 8; i += 2) {
        x[i] = ORDER(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        x[i + 1] = ORDER(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
        const int64_t from = i / 2 * 4 + i % 2;
        y[2 * i] = ORDER(x[from], x[from + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        y[2 * i + 1] = ORDER(x[from], x[from + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
        v[i] = ORDER(y[i], y[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        v[i + 4] = ORDER(y[i], y[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
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
#endif
#pragma GCC unroll 16
    for (int64_t t = 0; t < VL; ++t) {
        if (t * step + VL <= room) {
            *(vec *)(to + t * step) = v[t];
        } else {
            real line[VL];
            *(vec *)line = v[t];
            put(to + t * step, line, room - t * step, 0);
        }
    }
}

/* Elements of a panel of so many rows that a whole vector covers, but for the first. */
ALWAYS int64_t spare_of(int64_t height) { return 2 * height >= VL ? 1 : VL - 1; }

/* Elements `k` to `end` of a panel of `height` rows: `height` values each. Writes up to a vector beyond them, but not
   beyond the panel: others may pack the next one. */
ALWAYS void pack_panel(
    const void *a, int64_t at, int64_t row, int64_t step, int64_t height, int64_t depth, int64_t k, int64_t end, int kind, real *to)
{
    const int64_t each = steps_of(kind), elements = elements_of(depth, kind), whole = depth / each;
    if (step == 1 && VL < HEIGHT && height > VL) {
        /* Squares below one another; the last of them has some lines of the one before again, and none beyond the panel. */
        for (; k <= min_of(end, whole) - VL; k += VL)
            for (int64_t i = 0; i < height; i += VL) {
                const int64_t first = min_of(i, height - VL);
                turn(a, at + first * row + k * each, row, VL, kind, to + k * height + first, height, INT64_MAX);
            }
    } else if (step == 1) {
        /* Squares that lie within the panel with all they write are written without looking. */
        const int64_t last = min_of(end, whole) - VL, within = min_of(last, elements - VL - spare_of(height));
        for (; k <= within; k += VL) turn(a, at + k * each, row, height, kind, to + k * height, height, INT64_MAX);
        for (; k <= last; k += VL) turn(a, at + k * each, row, height, kind, to + k * height, height, (elements - k) * height);
    }
    for (; k < end; ++k)
        for (int64_t i = 0; i < height; ++i) to[k * height + i] = one(a, at + i * row + k * each * step, step, k < whole, kind);
}

/* Panels of rows one after another, from a first one on: where they start, and their heights. */
typedef struct { int64_t first, height, each, more, rest, panels; } Panel;
ALWAYS Panel panel_at(int64_t m, int64_t p)
{
    const int64_t panels = panels_of(m, HEIGHT), first = m * p / panels;
    return (Panel){first, m * (p + 1) / panels - first, m / panels, m % panels, m * (p + 1) % panels, panels};
}
ALWAYS void to_next(Panel *at)
{
    at->first += at->height, at->height = at->each;
    if ((at->rest += at->more) >= at->panels) at->rest -= at->panels, ++at->height;
}

/* As many elements of panels `start` to `end` of m neighbouring rows as whole vectors give; how many these are. Panels share lines of
   the cache: few steps of all of them at a time. */
ALWAYS int64_t pack_neighbours(const void *a, int64_t step, int64_t m, int64_t start, int64_t end, int64_t depth, int kind, real *to)
{
    const int64_t each = steps_of(kind), elements = elements_of(depth, kind);
    const Panel first = panel_at(m, start);
    /* A vector reads beyond the rows of its panel, and so may the last beyond all there are, and writes beyond its element. */
    const int64_t beside = step >= VL ? 1 : VL, whole = min_of((depth - beside) / each, elements - spare_of(first.each));
    if (whole < SOME) return 0;
    for (int64_t next = 0; next < whole; next += SOME) {
        /* The last few steps are taken together with some that were packed already. */
        const int64_t k = min_of(next, whole - SOME);
        Panel panel = first;
        for (int64_t p = start; p < end; ++p, to_next(&panel)) {
            const void *const from = after(a, panel.first + k * each * step, kind);
            real *const at = to + panel.first * elements + k * panel.height;
#pragma GCC unroll 8
            for (int64_t i = 0; i < SOME; ++i) {
                /* What this panel takes next, after SOME steps of the others, and where it goes: pieces too short for the processor to
                   guess what follows. */
                for (int64_t s = 0; s < each; ++s) __builtin_prefetch(after(from, ((i + SOME) * each + s) * step, kind));
                __builtin_prefetch(at + (i + SOME) * panel.height, 1);
                const int64_t rest = VL < HEIGHT && panel.height > VL ? panel.height - VL : 0;
                *(vec *)(at + i * panel.height) = across(from, i * each * step, step, kind);
                /* Further vectors of a taller panel; the last ends with it. */
                for (int64_t v = min_of(VL, rest); v > 0; v = v < rest ? min_of(v + VL, rest) : 0)
                    *(vec *)(at + i * panel.height + v) = across(from, i * each * step + v, step, kind);
            }
        }
    }
    return whole;
}

/* Panels `start` to `end` of m rows. Where `jump` is not 0, blocks of so many steps of the depth lie so far apart. */
ALWAYS void pack_some_rows(const void *a, int64_t row, int64_t step, int64_t m, int64_t start, int64_t end, int64_t depth, int64_t block,
    int64_t jump, int kind, real *to)
{
    const int64_t elements = elements_of(depth, kind), in_block = jump ? block / steps_of(kind) : elements;
    const int64_t done = row == 1 && !jump ? pack_neighbours(a, step, m, start, end, depth, kind, to) : 0;
    Panel panel = panel_at(m, start);
    for (int64_t p = start; p < end; ++p, to_next(&panel))
        for (int64_t from = done; from < elements; from += in_block)
            pack_panel(a, panel.first * row + (jump ? from / in_block * (jump - block * step) : 0), row, step, panel.height, depth, from,
                min_of(from + in_block, elements), kind, to + panel.first * elements);
}

/* Panels of WIDTH columns: depth by depth, WIDTH values each, zeros beyond the last column. */
ALWAYS void pack_all_columns(const void *b, int64_t step, int64_t column, int64_t n, int64_t depth, int kind, real *to)
{
    const int64_t each = steps_of(kind), elements = elements_of(depth, kind), whole = depth / each;
    /* Where columns are neighbours, panels share rows of memory: few steps of all of them at a time. */
    const int64_t neighbours = column == 1 ? n / WIDTH * WIDTH : 0;
    for (int64_t first = 0; neighbours > 0 && first < whole; first += SOME)
        for (int64_t j = 0; j < neighbours; j += WIDTH)
            for (int64_t k = first; k < min_of(first + SOME, whole); ++k) {
                real *const row = to + j * elements + k * WIDTH;
                for (int64_t s = 0; s < each; ++s) __builtin_prefetch(after(b, ((k + SOME) * each + s) * step + j, kind));
#pragma GCC unroll 4
                for (int64_t v = 0; v < NV; ++v) *(vec *)(row + v * VL) = across(b, k * each * step + j + v * VL, step, kind);
            }
    int64_t at = 0;
    for (int64_t j = 0; j < n; j += WIDTH, at += WIDTH * column, to += WIDTH * elements) {
        const int64_t width = min_of(WIDTH, n - j);
        int64_t k = 0;
        if (j < neighbours) {
            k = whole;
        } else if (width == WIDTH && step == 1) {
            for (; k + VL <= whole; k += VL) {
                /* Columns are more streams than processors follow by themselves: they are brought to the second cache, as the first has
                   few places for lines that lie so far apart. Where panels go is not near either. */
                for (int64_t i = 0; i < WIDTH; ++i) {
                    __builtin_prefetch(after(b, at + i * column + (k + 4 * VL) * each, kind), 0, 2);
                    __builtin_prefetch(to + (k + 2 * VL) * WIDTH + i * VL, 1);
                }
#pragma GCC unroll 4
                for (int64_t v = 0; v < NV; ++v) turn(b, at + v * VL * column + k * each, column, VL, kind, to + k * WIDTH + v * VL, WIDTH, VL * WIDTH);
            }
        }
        for (; k < elements; ++k) {
            for (int64_t i = 0; i < width; ++i) to[k * WIDTH + i] = one(b, at + k * each * step + i * column, step, k < whole, kind);
            for (int64_t i = width; i < WIDTH; ++i) to[k * WIDTH + i] = 0;
        }
    }
}

/* One function for each kind of factor. */
#define PACK(name, kind) \
    static __attribute__((noinline)) void rows_##name( \
        const void *a, int64_t row, int64_t step, int64_t m, int64_t start, int64_t end, int64_t depth, int64_t block, int64_t jump, real *to) \
    { pack_some_rows(a, row, step, m, start, end, depth, block, jump, kind, to); } \
    static __attribute__((noinline)) void columns_##name(const void *b, int64_t step, int64_t column, int64_t n, int64_t depth, real *to) \
    { pack_all_columns(b, step, column, n, depth, kind, to); }
typedef void PackRows(const void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, real *);
typedef void Pack(const void *, int64_t, int64_t, int64_t, int64_t, real *);
PACK(wide, 0)
#ifdef HAS_NARROW
PACK(narrow, NARROW)
#endif
#if PAIRS
PACK(wide_pairs, PAIRED)
PACK(narrow_pairs, NARROW | PAIRED)
static PackRows *const pack_rows[] = {rows_wide, rows_narrow, rows_wide_pairs, rows_narrow_pairs};
static Pack *const pack_columns[] = {columns_wide, columns_narrow, columns_wide_pairs, columns_narrow_pairs};
static Micro *const *const micro_of[] = {micro, micro, micro_pairs, micro_pairs};
static Micro *const *const direct_of[] = {direct, 0, 0, direct_pairs};
#elif defined(HAS_NARROW)
static PackRows *const pack_rows[] = {rows_wide, rows_narrow};
static Pack *const pack_columns[] = {columns_wide, columns_narrow};
static Micro *const *const micro_of[] = {micro, micro};
static Micro *const *const direct_of[] = {direct, 0};
#else
static PackRows *const pack_rows[] = {rows_wide};
static Pack *const pack_columns[] = {columns_wide};
static Micro *const *const micro_of[] = {micro};
static Micro *const *const direct_of[] = {direct};
#endif
