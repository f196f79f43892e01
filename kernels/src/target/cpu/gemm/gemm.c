/* Matrix products on tiles, for all tile kernels of one element type: panels are packed so that the micro-kernels read them in one stream each. */
typedef real vec __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));
typedef real reg __attribute__((vector_size(VEC_BYTES)));
#define VL ((int64_t)(VEC_BYTES / sizeof(real)))
#define WIDTH (NV * VL)
/* Panels of rows for which columns are not worth packing. */
#ifndef FEW
#define FEW 10
#endif
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

/* What micro-kernels are made of. Where registers are those of AVX2 or AVX-512, instructions are chosen one by one and stay in this order:
   a core that is shared with others decodes three or four in a cycle, so that every instruction beside the multiply-adds costs time, and
   compilers make several steps of the depth into loads of whole vectors and permutations, which share a port with multiply-adds. */
#if defined(__FMA__) && VEC_BYTES >= 32
#define EXACT 1
#ifdef REAL_IS_DOUBLE
#define SUFFIX "d"
#define BROADCAST "%{1to8%}"
#else
#define SUFFIX "s"
#define BROADCAST "%{1to16%}"
#endif
#define LOAD(x, at) __asm__ volatile("vmovups %1, %0" : "=v"(x) : "m"(*(const vec *)(at)))
#define FETCH(at) __asm__ volatile("prefetcht0 %0" : : "m"(*(at)))
#define SPREAD(x, at) __asm__ volatile("vbroadcasts" SUFFIX " %1, %0" : "=v"(x) : "m"(*(at)))
#define ADD(sum, x, y) __asm__ volatile("vfmadd231p" SUFFIX " %2, %1, %0" : "+v"(sum) : "v"(y), "v"(x))
#define STREAM(at, x) __asm__ volatile("vmovntps %1, %0" : "=m"(*(vec *)(at)) : "v"(x))
#if VEC_BYTES == 64
#define ADD_READ(sum, at, y) __asm__ volatile("vfmadd231p" SUFFIX " %2" BROADCAST ", %1, %0" : "+v"(sum) : "v"(y), "m"(*(at)))
#endif
#else
#define EXACT 0
#define STREAM(at, x) *(vec *)(at) = (x)
#define LOAD(x, at) (x) = *(const vec *)(at)
#define FETCH(at) __builtin_prefetch(at)
#define SPREAD(x, at) (x) = *(at) - (reg){0}; IN_REGISTER(x)
#define ADD(sum, x, y) (sum) += (x) * (y)
#endif
/* A panel of rows stays in the first cache while those of columns pass, if it is large: then this would only take a read's place. */
#if READS_ROWS
#define FETCH_ROWS(at) FETCH(at)
#else
#define FETCH_ROWS(at) (void)(at)
#endif
#define LOAD_PAIRS(x, at) (x) = (words)*(const vec *)(at)

/* How a factor lies in memory, and what panels are made of it: `real`, or pairs of bf16, two steps of the depth in the place of
   one `real`, for processors that multiply and add them in one instruction. */
enum { NARROW = 1, PAIRED = 2 };
#ifdef HAS_NARROW
NARROW_FACTORS
#else
#define PAIRS 0
ALWAYS reg along(const void *from, int64_t at, int kind) { (void)kind; return *(const vec *)((const real *)from + at); }
ALWAYS reg across(const void *from, int64_t at, int64_t step, int kind) { (void)step; return along(from, at, kind); }
ALWAYS real one(const void *from, int64_t at, int64_t step, int both, int kind) { (void)step; (void)both; (void)kind; return ((const real *)from)[at]; }
ALWAYS const void *after(const void *from, int64_t elements, int kind) { (void)kind; return (const real *)from + elements; }
#endif
/* What becomes of results: they are added to what is there, or go around the caches, which they do in whole lines. HELD: the rows are
   in a near cache already. */
enum { ADDED = 1, STREAMED = 2, HELD = 4 };
WALKS
typedef void Micro(int64_t, const real *, int64_t, int64_t, const real *, int64_t, const real *, real *, int64_t, int, Walk *);
MICRO_KERNELS
#if PAIRS
MICRO_KERNELS_OF_PAIRS
#endif

/* Panels of at most so many rows, as equal as can be: panel p starts at row m p / panels. */
ALWAYS int64_t panels_of(int64_t m, int64_t most) { return (m + most - 1) / most; }
/* Steps of the depth in one element of a panel, and elements for so many steps. */
ALWAYS int64_t steps_of(int kind) { return kind & PAIRED ? 2 : 1; }
ALWAYS int64_t elements_of(int64_t depth, int kind) { return kind & PAIRED ? (depth + 1) / 2 : depth; }

PACKING

/* Whether rows hold elements of panels where they lie: values as wide as those, or whole pairs. */
ALWAYS int are_elements(int kind, int64_t row, int64_t step, int64_t depth)
{
    return kind == 0 || (kind == (NARROW | PAIRED) && step == 1 && row % 2 == 0 && depth % 2 == 0);
}

/* Whether rows are better read where they lie than packed: where steps of the depth are neighbours, unless many columns pass and
   rows lie so that all of a panel want the same few places of the first cache; where rows are neighbours, for few columns and
   steps that do not touch a page each. Where processors decode little (READS_ROWS is 0) many columns pay for packing anyway: rows
   that lie apart take an instruction more for each address that is not one register, a tenth of the speed of shared cores. */
ALWAYS int lie_well(int64_t n, int64_t row, int64_t step)
{
    if (step == 1) return READS_ROWS ? n <= 2 * WIDTH || row * (int64_t)sizeof(real) % 2048 != 0 : n <= 8 * WIDTH;
    return row == 1 && step <= 256 && n <= 4 * WIDTH;
}

/* Whether columns are better read where they lie than packed: neighbours that few rows pass, if steps of the depth do not all want the
   same place of the first cache. */
ALWAYS int columns_lie_well(int64_t m, int64_t step, int64_t column)
{
    return column == 1 && m <= FEW * HEIGHT && step * (int64_t)sizeof(real) % 4096 != 0;
}

/* Elements between rows of so many that lie well. */
ALWAYS int64_t apart_for(int64_t depth)
{
    const int64_t apart = (depth / VL + 2) * VL;
    return apart * (int64_t)sizeof(real) % 2048 != 0 ? apart : apart + VL;
}

ALWAYS int64_t place_of(Columns lie, int64_t j) { return lie.jump ? j / lie.block * lie.jump + j % lie.block * lie.column : j * lie.column; }

/* c (+)= scale x rows x columns: rows as they lie, or packed (then `a_step` is 0); columns packed, or where rows lie also as they do.
   Neighbouring rows start `a_row`, panels of columns `next` and their steps `b_step` elements apart; results are columns from `from`
   on. A panel of rows stays in the first cache while those of columns pass. Rows that lie apart are short pieces that no processor
   foresees: those of the next panel are asked for while this one is multiplied; while packed ones are, what `ahead` walks over, and
   then what `later` does. */
static void multiply(Micro *const *kernels, int64_t m, int64_t n, int64_t elements, real scale, const real *a, int64_t a_row, int64_t a_step,
    const real *b, int64_t next, int64_t b_step, real *c, Columns results, int64_t from, int how, Walk ahead, Walk *later)
{
    const int64_t row = results.step, column = results.column;
    /* Rows that lie a multiple of 4 KiB apart all want the same place of the first cache, which has so many ways. */
    const int64_t tallest = a_step == 1 && a_row * (int64_t)sizeof(real) % 4096 == 0 ? min_of(HEIGHT, WAYS) : HEIGHT;
    const int64_t panels = panels_of(m, tallest), rounds = elements / ROUND, bytes = elements * (int64_t)sizeof(real);
    const int64_t stride = a_step ? LYING : PACKED;
    /* Whether rows that are not in reach follow on, and all passes of columns together have a round for their lines. */
    const int rows_next = a_step == 1 && !(how & HELD), spread = EXACT && n / WIDTH * rounds * stride >= tallest * bytes;
    for (int64_t p = 0; p < panels; ++p) {
        const int64_t first = m * p / panels, height = m * (p + 1) / panels - first;
        const real *const below = a + (first + height) * a_row;
        if (rows_next && spread && p + 1 < panels) ahead = walk_over(below, height, bytes, a_row * sizeof(real), stride);
        for (int64_t j = 0; j < n; j += WIDTH) {
            const int64_t width = min_of(WIDTH, n - j);
            real *const at = c + first * row + place_of(results, from + j);
            real room[HEIGHT * WIDTH];
            const int whole = width == WIDTH && column == 1, add = how & ADDED;
            const int lines = ((uintptr_t)at | row * sizeof(real)) % LINE == 0;
            if (row == 1)
                for (int64_t x = 0; x < width; ++x) __builtin_prefetch(at + x * column, 1);
            if (rows_next && !spread) fetch_share(below, a_row, height, elements, j, min_of(j + WIDTH, n), n);
            Walk nowhere = walk_nowhere(room, stride);
            Walk *const walk = ahead.rounds > 0 ? &ahead : later[0].rounds > 0 ? &later[0] : later[1].rounds > 0 ? &later[1] : &nowhere;
            kernels[height](elements, a + first * a_row, a_row, a_step, b + j / WIDTH * next, b_step, &scale, whole ? at : room,
                whole ? row : WIDTH, whole ? how & (lines ? ADDED | STREAMED : ADDED) : 0, walk);
            walk->rounds -= rounds;
            if (whole) continue;
            if (row == 1 && VL >= HEIGHT) {
                /* Rows are neighbours: whole vectors of them, a square at a time. */
                real turned[VL * VL];
                for (int64_t x = 0; x < width; x += VL) {
                    turn(room, x, WIDTH, height, 0, turned, VL, VL * VL);
                    for (int64_t t = 0; t < min_of(VL, width - x); ++t) put(at + (x + t) * column, turned + t * VL, height, add);
                }
                continue;
            }
            for (int64_t i = 0; i < height; ++i)
                for (int64_t x = 0; x < width; ++x) {
                    real *const to = at + i * row + x * column;
                    *to = add ? *to + room[i * WIDTH + x] : room[i * WIDTH + x];
                }
        }
    }
}

/* Chunks of the depth of at most `most` steps, made of whole blocks. */
ALWAYS int64_t chunks_of(int64_t k, int64_t most, int64_t block)
{
    const int64_t fit = most > block ? most / block : 1;
    return block > 1 ? (k / block + fit - 1) / fit : (k + most - 1) / most;
}
/* Where chunk number q of the depth starts. No pair and no block lies in two of them. */
ALWAYS int64_t chunk_at(int64_t k, int64_t chunks, int64_t q, int64_t each) { return q == chunks ? k : k * q / chunks / each * each; }

/* The kind of a factor. `types` says which of them are bf16 in memory (1: rows, 2: columns), whether both count as bf16 (4), and
   whether nobody reads the result soon (8). */
ALWAYS int kind_of(int types, int side) { return ((types & side) ? NARROW : 0) | (PAIRS && (types & 4) ? PAIRED : 0); }

/* Panels of `n` columns from column `first` on, whose steps start at `from`. */
ALWAYS void pack_blocks(const void *b, Columns lie, int64_t from, int64_t first, int64_t n, int64_t depth, int64_t elements, int kind, real *to)
{
    for (int64_t j = 0, run; j < n; j += run) {
        run = lie.jump ? min_of(n - j, lie.block - (first + j) % lie.block) : n;
        pack_columns[kind](after(b, from * lie.step + place_of(lie, first + j), kind), lie.step, lie.column, run, depth, to + j * elements);
    }
}

/* Copies bytes around the caches: for what every core is to read. A core that writes what others have read since must first take it
   from all of their caches. */
typedef void Stream(void *, const void *, int64_t);
/* Values that are packed near this core before they are streamed. */
#define SLICE ((int64_t)(65536 / sizeof(real)))
/* Steps of so many lines or columns that one slice holds. */
ALWAYS int64_t slice_of(int64_t lines) { return SLICE / lines / VL * VL; }

/* Columns `first` to `first` + n of an operand, chunk by chunk of the depth: what `gemm` takes as `ready`. By `stream`, where
   there is one. */
void memlet_pack(const void *b, int64_t step, int64_t column, int64_t column_block, int64_t jump, int types, int64_t n, int64_t k, int64_t most,
    int64_t block, int64_t whole, int64_t first, real *to, Stream *stream)
{
    const int kind = kind_of(types, 2);
    const int64_t chunks = chunks_of(k, most, block), each = steps_of(kind), apart = block > each ? block : each;
    for (int64_t q = 0; q < chunks; ++q) {
        const int64_t from = chunk_at(k, chunks, q, apart), depth = chunk_at(k, chunks, q + 1, apart) - from, elements = elements_of(depth, kind);
        const Columns lie = {step, column, column_block, jump};
        real *const at = to + from / each * whole + first * elements;
        const int64_t slice = stream ? slice_of(panels_of(n, WIDTH) * WIDTH) : 0;
        if (!slice) {
            pack_blocks(b, lie, from, first, n, depth, elements, kind, at);
            continue;
        }
        real packed[SLICE] __attribute__((aligned(VEC_BYTES)));
        for (int64_t k = 0; k < elements; k += slice) {
            const int64_t now = min_of(slice, elements - k);
            pack_blocks(b, lie, from + k * each, first, n, min_of(now * each, depth - k * each), now, kind, packed);
            for (int64_t j = 0; j < n; j += WIDTH) stream(at + j * elements + k * WIDTH, packed + j * now, now * WIDTH * sizeof(real));
        }
    }
}

/* Panels `start` to `end` of a tile of m rows, the first of them row `first`, chunk by chunk of the depth: what `gemm` takes as
   `lines`. By `stream`, where there is one, unless steps jump. */
void memlet_pack_rows(const void *a, int64_t row, int64_t step, int64_t block, int64_t jump, int types, int64_t m, int64_t k, int64_t most,
    int64_t whole, int64_t first, int64_t start, int64_t end, real *to, Stream *stream)
{
    const int kind = kind_of(types, 1);
    const int64_t chunks = chunks_of(k, most, block), each = steps_of(kind), apart = block > each ? block : each;
    for (int64_t q = 0; q < chunks; ++q) {
        const int64_t from = chunk_at(k, chunks, q, apart), depth = chunk_at(k, chunks, q + 1, apart) - from;
        const int64_t elements = elements_of(depth, kind);
        const void *const here = after(a, first * row + (jump ? from / block * jump : from * step), kind);
        real *const at = to + from / each * whole + first * elements;
        const int64_t slice = stream && !jump ? slice_of((end - start) * HEIGHT) : 0;
        if (!slice) {
            pack_rows[kind](here, row, step, m, start, end, depth, block, jump, at);
            continue;
        }
        real packed[SLICE] __attribute__((aligned(VEC_BYTES)));
        for (int64_t k = 0; k < elements; k += slice) {
            const int64_t now = min_of(slice, elements - k);
            Panel panel = panel_at(m, start);
            real *const origin = packed - panel.first * now;
            pack_rows[kind](after(here, k * each * step, kind), row, step, m, start, end, min_of(now * each, depth - k * each), block, jump, origin);
            for (int64_t p = start; p < end; ++p, to_next(&panel))
                stream(at + panel.first * elements + k * panel.height, origin + panel.first * now, panel.height * now * sizeof(real));
        }
    }
}

/* c (+)= scale a b on one tile: a is m x k, b k x n, `most` steps of the depth at a time, and as many columns as stay in the second
   cache while all rows pass. `ready` holds b packed (of `whole` columns, from column `first` on), or is null; then b is packed here.
   `lines` likewise holds a (of `whole_rows` rows, from row `first_row` on), or is null; then a is packed or read where it lies.
   Row, depth and column strides in elements. Where a jump is not 0, blocks lie so far apart that otherwise follow on: of `a_block`
   steps of the depth in a (1 where it has none), of `column_block` columns, whole panels, in b and in c. Panels of b are then read
   where they lie if they lie as packed ones. `next_a` and `next_b` are where the next product finds its factors, or null: small ones,
   and what is read first of others, are brought near while this one goes on. */
void memlet_gemm(int64_t m, int64_t n, int64_t k, int64_t most, const void *a, int64_t a_row, int64_t a_step, real scale, const void *b, int64_t b_step,
    int64_t b_column, int types, real *c, int64_t c_row, int64_t c_column, int add, real *rows, real *columns, const real *ready, int64_t whole,
    int64_t first, const real *lines, int64_t whole_rows, int64_t first_row, int64_t a_block, int64_t a_jump, int64_t column_block,
    int64_t b_jump, int64_t c_jump, const void *next_a, const void *next_b)
{
    const int left = kind_of(types, 1), right = kind_of(types, 2);
    const int64_t each = steps_of(left), chunks = chunks_of(k, most, a_block), whole_steps = a_block > each ? a_block : each;
    const int packed = b_jump && column_block == WIDTH && right == 0 && b_step == WIDTH && b_column == 1;
    const Columns given = {b_step, b_column, column_block, b_jump}, results = {c_row, c_column, column_block, c_jump};
    Walk later[2] = {{0}, {0}};
    for (int64_t q = 0; q < chunks; ++q) {
        const int64_t from = chunk_at(k, chunks, q, whole_steps), depth = chunk_at(k, chunks, q + 1, whole_steps) - from, elements = elements_of(depth, left);
        const int64_t next = WIDTH * elements, fit = NEAR / (next * (int64_t)sizeof(real));
        const void *here = after(a, a_jump ? from / a_block * a_jump : from * a_step, left);
        int64_t apart_rows = a_row / each;
        int as_they_lie = !lines && !a_jump && are_elements(left, a_row, a_step, depth) && lie_well(n, apart_rows, a_step);
        const int few_rows = !ready && !b_jump && left == 0 && right == 0 && n % WIDTH == 0 && columns_lie_well(m, b_step, b_column);
        /* Rows so far apart want the same few places of the caches; passed by many columns, they would take them from one another. */
        const int collide = a_row * (int64_t)sizeof(real) % 2048 == 0 && n > 2 * WIDTH;
        const int copied = few_rows && !lines && !a_jump && a_step == 1 && (!as_they_lie || collide);
        if (copied) {
            /* The few are copied to where they do lie well, and the columns are not packed. */
            const int64_t apart = apart_for(depth);
            for (int64_t i = 0; i < m; ++i) __builtin_memcpy(rows + i * apart, (const real *)here + i * a_row, depth * sizeof(real));
            here = rows, apart_rows = apart, as_they_lie = 1;
        }
        const int in_place = as_they_lie && few_rows;
        /* A panel of columns where they lie passes while the next one is on its way from memory. */
        const int64_t stay = (in_place || fit < 1 ? 1 : fit) * WIDTH, stride = as_they_lie ? LYING : PACKED;
        const real *const packed_rows = lines ? lines + from / each * whole_rows + first_row * elements : rows;
        if (!lines && !as_they_lie) pack_rows[left](here, a_row, a_step, m, 0, panels_of(m, HEIGHT), depth, a_block, a_jump, rows);
        if (q == 0) {
            /* Rows that are read where they lie are asked for panel by panel, and so are columns. */
            const int64_t m_next = as_they_lie && !copied ? min_of(m, HEIGHT) : m, n_next = in_place ? WIDTH : n;
            if (!a_jump && next_a != a) later[0] = walk_matrix(next_a, m_next, k, a_row, a_step, left & NARROW, stride);
            if (!b_jump && next_b != b) later[1] = walk_matrix(next_b, k, n_next, b_step, b_column, right & NARROW, stride);
        }
        const int how = add || q > 0 ? ADDED : types & 8 && chunks == 1 ? STREAMED : 0;
        for (int64_t j = 0; j < n; j += stay) {
            const int64_t now = min_of(stay, n - j);
            Walk ahead = walk_nowhere(b, stride);
            if (!ready && !packed) {
                /* The columns that follow on these. */
                const int64_t till = from + depth;
                if (j + now < n) ahead = walk_columns(b, given, from, j + now, min_of(stay, n - j - now), depth, right, stride);
                else if (q + 1 < chunks)
                    ahead = walk_columns(b, given, till, 0, min_of(stay, n), chunk_at(k, chunks, q + 2, whole_steps) - till, right, stride);
            }
            const real *panels = ready + from / each * whole + (first + j) * elements;
            const int64_t apart = packed ? b_jump : in_place ? WIDTH : next;
            if (in_place) {
                panels = (const real *)b + from * b_step + j;
            } else if (packed) {
                panels = (const real *)b + from * WIDTH + j / WIDTH * b_jump;
            } else if (!ready) {
                pack_blocks(b, given, from, j, now, depth, elements, right, columns);
                panels = columns;
            }
            if (as_they_lie)
                multiply(in_place ? open : direct_of[left], m, now, elements, scale, here, apart_rows, a_step, panels, apart,
                    in_place ? b_step : WIDTH, c, results, j, how | (in_place && (copied || j > 0) ? HELD : 0), ahead, later);
            else
                multiply(micro_of[left], m, now, elements, scale, packed_rows, elements, 0, panels, apart, WIDTH, c, results, j, how, ahead, later);
        }
    }
}
