/* What is asked for before it is needed: lines of memory, by micro-kernels while they multiply. */

/* Lines of memory that are needed next, in runs that are `apart`: micro-kernels ask for one in each round, those that read rows where
   they lie for two, so that what they multiply meanwhile hides how long memory takes. Asked for at once, they would fill the few
   places that a core has for them, and wait. */
typedef struct { const char *at, *end; int64_t skip, apart, rounds; } Walk;
enum { LINE = 64, ROUND = 4, PACKED = LINE, LYING = 2 * LINE };

/* Columns of an operand that lie one after another, or in blocks that are `jump` apart. */
typedef struct { int64_t step, column, block, jump; } Columns;

/* A walk over so many runs of so many bytes, by so many bytes in a round. */
ALWAYS Walk walk_over(const void *from, int64_t runs, int64_t bytes, int64_t apart, int64_t stride)
{
    const int64_t rounds = (bytes + stride - 1) / stride;
    return (Walk){from, (const char *)from + rounds * stride, apart - rounds * stride, apart, runs * rounds};
}
/* A walk that stays where it is. */
ALWAYS Walk walk_nowhere(const void *here, int64_t stride) { return (Walk){here, (const char *)here + stride, -stride, 0, 0}; }

/* A walk over columns that `pack_blocks` takes, or that are read where they lie. */
ALWAYS Walk walk_columns(const void *b, Columns lie, int64_t from, int64_t first, int64_t n, int64_t depth, int kind, int64_t stride)
{
    const int64_t bytes = kind & NARROW ? 2 : sizeof(real);
    const void *const at = after(b, from * lie.step + first * lie.column, kind);
    if (lie.jump || (lie.column != 1 && lie.step != 1)) return walk_nowhere(b, stride);
    return lie.column == 1 ? walk_over(at, depth, n * bytes, lie.step * bytes, stride) : walk_over(at, n, depth * bytes, lie.column * bytes, stride);
}

/* A walk over a matrix of which either rows or columns are runs; over nothing if it is too large to wait near the core. */
ALWAYS Walk walk_matrix(const void *at, int64_t rows, int64_t columns, int64_t row, int64_t column, int narrow, int64_t stride)
{
    const int64_t bytes = narrow ? 2 : sizeof(real);
    if (!at || rows * columns * bytes > NEAR / 4 || (row != 1 && column != 1)) return walk_nowhere(at, stride);
    return column == 1 ? walk_over(at, rows, columns * bytes, row * bytes, stride) : walk_over(at, columns, rows * bytes, column * bytes, stride);
}

/* Asks for lines of the next panel of rows at once: the share of one pass of columns. */
ALWAYS void fetch_share(const real *a, int64_t row, int64_t height, int64_t elements, int64_t from, int64_t till, int64_t n)
{
    const int64_t in_line = LINE / sizeof(real), lines = (elements + in_line - 1) / in_line, last = height * lines * till / n;
    int64_t at = height * lines * from / n, i = at / lines, x = at % lines;
    for (; at < last; ++at) {
        __builtin_prefetch(a + i * row + x * in_line, 0, 2);
        if (++x == lines) x = 0, ++i;
    }
}
