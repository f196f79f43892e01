
/* Matrix products of a whole block. Factors pass through shared memory, the stage, DEPTH steps at a time: while one of its STAGES parts
   is multiplied, the others are filled. Factors that are on chip may be multiplied where they are. Sums are in registers. Factors of
   16 bits are multiplied by tensor cores where a GPU has those that take bf16, all others by plain units. */
#ifndef MEMLET_SHIM
extern __shared__ __attribute__((aligned(16))) char block_memory[];
#define PLACED(T, name, at, count) T *const name = (T *)(block_memory + (at))
#if __CUDA_ARCH__ >= 800
#define TENSOR_CORES 1
#else
#define TENSOR_CORES 0
#endif
#if TENSOR_CORES
DEVICE uint32_t stage_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* Squares of 8 by 8 values: each lane names a line of one of them, and gets two neighbours along the lines of each; of TURNED squares
   two neighbours across them. */
template <bool TURNED, class S> DEVICE void load_squares(uint32_t (&x)[4], const S *p, int at) {
    const uint32_t from = stage_address(p) + at * (int)sizeof(S);
    if (TURNED) asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    else asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
}
template <bool TURNED, class S> DEVICE void load_squares(uint32_t (&x)[2], const S *p, int at) {
    const uint32_t from = stage_address(p) + at * (int)sizeof(S);
    if (TURNED) asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    else asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
}
/* 16 rows of 16 steps times 16 steps of 8 columns. */
#define MULTIPLY_BY(type) asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16_t) { MULTIPLY_BY("bf16"); }
DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16_t) { MULTIPLY_BY("f16"); }
#endif
#endif
#if defined(MEMLET_SHIM)
#define TENSOR_CORES 1
#elif __CUDA_ARCH__ >= 800
/* 16 bytes from global memory to the stage, while the thread goes on; all that were asked for until an end are one group. */
template <class S> DEVICE void copy_later(S *to, int at, const S *from, index_t place) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(stage_address(to) + at * (int)sizeof(S)), "l"(from + place) : "memory");
}
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/* All groups of this thread have arrived but the last LATER ones. */
template <int LATER> DEVICE void await_copies() { asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory"); }
#else
template <class S> DEVICE void copy_later(S *to, int at, const S *from, index_t place) {
    constexpr int P = 16 / sizeof(S);
    write_pack<P>(to, at, read_pack<P>((S *)from, place));
}
DEVICE void end_copies() {}
template <int LATER> DEVICE void await_copies() {}
#endif

constexpr int WARPS = THREADS / 32;

/* A value of a factor as it is multiplied. */
template <class S, class T> struct Staged { static DEVICE_MEMBER S of(T x) { return From<S>::real_(to_real(x)); } };
template <class S> struct Staged<S, S> { static DEVICE_MEMBER S of(S x) { return x; } };
template <class S> struct Staged<S, const S> { static DEVICE_MEMBER S of(S x) { return x; } };
template <class S, class T> struct Same { enum { value = 0 }; };
template <class S> struct Same<S, S> { enum { value = 1 }; };
template <class S> struct Same<S, const S> { enum { value = 1 }; };

/* Where a factor lies: in global memory, on chip but brought to the stage, on chip and multiplied from there. */
enum { ELSEWHERE, STAGED, HERE };
/* What lies near one another in a factor: steps, or rows (columns), or neither. */
enum { STEPS, SIDE, NEITHER };

/* In which order lines lie in the stage. DEALT are those that squares of tensor cores take two at a time, each eight after the last:
   the eight lines of a square are neighbours there, and begin in different banks. */
enum { IN_ORDER, DEALT };
DEVICE uint32_t slot(int order, uint32_t line) { return order == DEALT ? (line & ~30u) | (line & 6u) << 2 | (line & 24u) >> 2 : line; }

/* LINES lines of LENGTH neighbours, of a factor, in the stage; what lies beyond `lines` and `length` counts as zero. Neighbours lie `unit`
   apart in the factor; NEAR promises that this is 1. What lies ELSEWHERE, whole, and of the stage's type, comes later; WHOLE promises
   that all does. */
template <int LINES, int LENGTH, int PITCH, bool NEAR, int WHERE, int ORDER, bool WHOLE, class S, class T>
DEVICE void stage(POINTER(S) to, POINTER(T) from, index_t line, index_t unit, index_t lines, index_t length) {
    constexpr int P = 16 / sizeof(S), Q = 16 / sizeof(T) < P ? 16 / sizeof(T) : P, PARTS = LENGTH / P;
    constexpr bool LATER = NEAR && WHERE == ELSEWHERE && Same<S, T>::value;
    if constexpr (LATER) {
        /* Of a whole panel nobody asks again. */
        if (WHOLE || (lines >= LINES && length >= LENGTH && line % P == 0 && aligned<P>(from, 0))) {
#pragma unroll
            for (int c = 0; c < LINES * PARTS; c += THREADS) {
                const uint32_t e = c + threadIdx.x, n = e / PARTS, first = e % PARTS * P;
                if (c + THREADS > LINES * PARTS && e >= LINES * PARTS) break;
                copy_later<S>(to, slot(ORDER, n) * PITCH + first, from, (index_t)n * line + (index_t)first);
            }
            return;
        }
    }
#pragma unroll 1
    for (int e = threadIdx.x; e < LINES * PARTS; e += THREADS) {
        /* Threads walk along what is near. */
        const int n = NEAR ? e / PARTS : e % LINES, first = (NEAR ? e % PARTS : e / LINES) * P;
        const bool whole = NEAR && n < lines && first + P <= length && aligned<Q>(from, n * line + first);
        if constexpr (LATER) {
            if (whole) {
                copy_later<S>(to, slot(ORDER, n) * PITCH + first, from, n * line + first);
                continue;
            }
        }
        Pack<S, P> pack;
        if (whole) {
#pragma unroll
            for (int q = 0; q < P; q += Q) {
                const auto part = read_pack<Q>(from, n * line + first + q);
#pragma unroll
                for (int x = 0; x < Q; ++x) pack.v[q + x] = Staged<S, T>::of(part.v[x]);
            }
        } else {
#pragma unroll
            for (int x = 0; x < P; ++x) {
                const bool inside = n < lines && first + x < length;
                pack.v[x] = inside ? From<S>::real_(to_real(from[n * line + (first + x) * (NEAR ? 1 : unit)])) : From<S>::real_((real)0);
            }
        }
        write_pack<P>(to, slot(ORDER, n) * PITCH + first, pack);
    }
}

/* A factor as products read it: N of its lines, rows or columns of the product, and DEPTH steps. In the stage a line of memory holds
   steps, where they are NEAR one another, else lines. */
template <class S, int N, bool NEAR> struct InStage {
    enum { GAP = 16 / sizeof(S), SIZE = NEAR ? N * (DEPTH + GAP) : DEPTH * (N + GAP) };
    POINTER(S) p;
    DEVICE_MEMBER bool is_whole() const { return true; }
    DEVICE_MEMBER real value(int line, int step) const { return to_real(p[NEAR ? line * (DEPTH + GAP) + step : step * (N + GAP) + line]); }
#if TENSOR_CORES
    /* Squares of 8 lines and 8 steps, as operands of tensor cores: of COUNT = 4 the second lies ALONG steps of the first, or along lines. */
    template <bool WHOLE, bool ALONG, int COUNT> DEVICE_MEMBER void squares(uint32_t (&x)[COUNT], int first, int step) const {
        const int lane = threadIdx.x % 32, odd = lane / 8 % 2 * 8, high = lane / 16 % 2 * 8;
        const int line = first + (ALONG ? high : odd), s = step + (ALONG ? odd : high), near = lane % 8;
        load_squares<!NEAR>(x, p, NEAR ? (line + near) * (DEPTH + GAP) + s : (s + near) * (N + GAP) + line);
    }
#endif
};
/* On chip, in f32: a line lies `line` from the next, a step `step`; so many are left. */
template <class S, int N, bool NEAR, class T> struct OnChip {
    POINTER(T) p;
    index_t line, step, lines, steps;
    DEVICE_MEMBER bool is_whole() const { return lines >= N && steps >= DEPTH && (!NEAR || (line % 2 == 0 && aligned<2>(p, 0))); }
    DEVICE_MEMBER real value(int l, int s) const { return l < lines && s < steps ? to_real(p[l * line + s * (NEAR ? 1 : step)]) : (real)0; }
#if TENSOR_CORES
    template <bool WHOLE> DEVICE_MEMBER uint32_t two(int l, int s) const {
        real x[2];
        if constexpr (WHOLE && NEAR) {
            const auto pack = read_pack<2>(p, l * line + s);
            x[0] = to_real(pack.v[0]); x[1] = to_real(pack.v[1]);
        } else if constexpr (WHOLE) {
            x[0] = to_real(p[l * line + s * step]); x[1] = to_real(p[l * line + (s + 1) * step]);
        } else {
            x[0] = value(l, s); x[1] = value(l, s + 1);
        }
        Pack<S, 2> pack;
        round_pack(pack, x);
        uint32_t bits;
        memcpy(&bits, &pack, sizeof bits);
        return bits;
    }
    template <bool WHOLE, bool ALONG, int COUNT> DEVICE_MEMBER void squares(uint32_t (&x)[COUNT], int first, int at) const {
        const int lane = threadIdx.x % 32, l = first + lane / 4, s = at + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) x[n] = two<WHOLE>(l + (ALONG ? n / 2 : n % 2) * 8, s + (ALONG ? n % 2 : n / 2) * 8);
    }
#endif
};
template <class S, int N, int NEAR, int WHERE, class T> struct Factor {
    enum { SIZE = InStage<S, N, NEAR == STEPS>::SIZE };
    static DEVICE_MEMBER InStage<S, N, NEAR == STEPS> of(POINTER(S) stage, int part, POINTER(T), index_t, index_t, index_t, index_t) {
        return InStage<S, N, NEAR == STEPS>{stage + part * (int)SIZE};
    }
    /* `side` of its lines are left, and `steps` of its steps. */
    template <int ORDER, bool WHOLE>
    static DEVICE_MEMBER void bring(POINTER(S) to, int part, POINTER(T) from, index_t each, index_t step, index_t side, index_t steps) {
        constexpr int GAP = 16 / sizeof(S);
        if constexpr (NEAR == STEPS) stage<N, DEPTH, DEPTH + GAP, true, WHERE, ORDER, WHOLE>(to + part * (int)SIZE, from, each, step, side, steps);
        else stage<DEPTH, N, N + GAP, NEAR == SIDE, WHERE, ORDER, WHOLE>(to + part * (int)SIZE, from, step, each, steps, side);
    }
    static DEVICE_MEMBER void fill(POINTER(S) to, int part, POINTER(T) from, index_t each, index_t step, index_t side, index_t steps) {
        bring<IN_ORDER, false>(to, part, from, each, step, side, steps);
    }
};
template <class S, int N, int NEAR, class T> struct Factor<S, N, NEAR, HERE, T> {
    static DEVICE_MEMBER OnChip<S, N, NEAR == STEPS, T> of(POINTER(S), int, POINTER(T) from, index_t each, index_t step, index_t side, index_t steps) {
        return OnChip<S, N, NEAR == STEPS, T>{from, each, step, side, steps};
    }
    static DEVICE_MEMBER void fill(POINTER(S), int, POINTER(T), index_t, index_t, index_t, index_t) {}
};

/* Warps, or threads, above one another: as square as the part of each can be. */
DEVICE constexpr int above(int rows, int columns, int parts, int least_rows, int least_columns) {
    int best = 1, covered = 0, sides = 0;
    for (int up = 1; up <= parts && rows / up >= least_rows; up *= 2) {
        const int across = parts / up < columns / least_columns ? parts / up : columns / least_columns;
        const int side = rows / up + columns / across;
        if (up * across > covered || (up * across == covered && side < sides)) { best = up; covered = up * across; sides = side; }
    }
    return best;
}

/* The sums of BM rows and BN columns; PAIRS says whether a thread has two neighbours of a row wherever it has one. */
template <class S, int BM, int BN, bool UNITS> struct Sums;

/* By plain units: each thread has rows and columns that lie ABOVE and ACROSS apart. */
template <class S, int BM, int BN> struct Sums<S, BM, BN, false> {
    enum { PAIRS = 0, UP = above(BM, BN, THREADS, 1, 1), ACROSS = THREADS / UP < BN ? THREADS / UP : BN, TM = BM / UP, TN = BN / ACROSS };
    real sums[TM][TN];
    int row, column;

    DEVICE_MEMBER Sums() : row(threadIdx.x / ACROSS), column(threadIdx.x % ACROSS) { clear(); }
    DEVICE_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[i][j] = 0;
    }
    template <class A, class B> DEVICE_MEMBER void add(const A &rows, const B &columns) {
        if (row >= UP) return;
#pragma unroll 4
        for (int s = 0; s < DEPTH; ++s) {
            real a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) a[i] = rows.value(row + i * UP, s);
#pragma unroll
            for (int j = 0; j < TN; ++j) b[j] = columns.value(column + j * ACROSS, s);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
        }
    }
    template <class F> DEVICE_MEMBER void each(F f) {
        if (row >= UP) return;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) f(row + i * UP, column + j * ACROSS, sums[i][j], 0);
    }
};

#if TENSOR_CORES && !defined(REAL_IS_DOUBLE)
/* By tensor cores: each warp has TM times 16 rows and TN times 8 columns. */
template <class S, int BM, int BN> struct Sums<S, BM, BN, true> {
    enum { PAIRS = 1, UP = above(BM, BN, WARPS, 16, 8), ACROSS = WARPS / UP < BN / 8 ? WARPS / UP : BN / 8, TM = BM / UP / 16, TN = BN / ACROSS / 8 };
    float sums[TM][TN][4];
    int row, column, lane;

    DEVICE_MEMBER Sums() : row(threadIdx.x / 32 / ACROSS), column(threadIdx.x / 32 % ACROSS), lane(threadIdx.x % 32) { clear(); }
    DEVICE_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int x = 0; x < 4; ++x) sums[i][j][x] = 0;
    }
    template <bool WHOLE, class A, class B> DEVICE_MEMBER void step(const A &rows, const B &columns, int s) {
        uint32_t a[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) rows.template squares<WHOLE, false>(a[i], (row * TM + i) * 16, s);
        if constexpr (TN % 2 == 0) {
#pragma unroll
            for (int j = 0; j < TN; j += 2) {
                uint32_t b[4];
                columns.template squares<WHOLE, true>(b, (column * TN + j) * 8, s);
                const uint32_t two[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    multiply(sums[i][j], a[i], two[0], S());
                    multiply(sums[i][j + 1], a[i], two[1], S());
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                uint32_t b[2];
                columns.template squares<WHOLE, true>(b, (column * TN + j) * 8, s);
#pragma unroll
                for (int i = 0; i < TM; ++i) multiply(sums[i][j], a[i], b, S());
            }
        }
    }
    template <class A, class B> DEVICE_MEMBER void add(const A &rows, const B &columns) {
        if (row >= UP) return;
        if (rows.is_whole() && columns.is_whole()) {
#pragma unroll
            for (int s = 0; s < DEPTH; s += 16) step<true>(rows, columns, s);
        } else {
#pragma unroll 1
            for (int s = 0; s < DEPTH; s += 16) step<false>(rows, columns, s);
        }
    }
    template <class F> DEVICE_MEMBER void each(F f) {
        if (row >= UP) return;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int x = 0; x < 4; x += 2)
                    f((row * TM + i) * 16 + x / 2 * 8 + lane / 4, (column * TN + j) * 8 + lane % 4 * 2, sums[i][j][x], sums[i][j][x + 1]);
    }
};
#endif

/* c = scale a b, or added to what is in c: m rows, n columns, k steps. The stage is a ring of STAGES parts: while one is multiplied,
   the next ones come, those of the next panel, too. Ends with a barrier. */
template <class S, int BM, int BN, int A_NEAR, int B_NEAR, int A_WHERE, int B_WHERE, class A, class B, class C>
DEVICE void gemm(index_t m, index_t n, index_t k, POINTER(A) a, index_t a_row, index_t a_step, POINTER(B) b, index_t b_step, index_t b_column,
                    POINTER(C) c, index_t c_row, index_t c_column, real scale, bool adds, POINTER(S) rows, POINTER(S) columns) {
    constexpr bool UNITS = TENSOR_CORES && sizeof(S) == 2 && sizeof(real) == 4;
    using Rows = Factor<S, BM, A_NEAR, A_WHERE, A>;
    using Columns = Factor<S, BN, B_NEAR, B_WHERE, B>;
    /* Pairs of neighbours may be written at once. */
    const bool even = c_column == 1 && c_row % 2 == 0 && aligned<2>(c, 0);
    Sums<S, BM, BN, UNITS> sums;
    /* What is multiplied, and what is filled, STAGES - 1 parts ahead. */
    index_t i = 0, j = 0, s = 0, next_i = 0, next_j = 0, next_s = 0;
    int part = 0, next_part = 0;
    for (int ahead = 1 - STAGES; i < m; ++ahead) {
        if (ahead >= 0) {
            await_copies<STAGES - 2>();
            __syncthreads();
        }
        if (next_i < m) {
            Rows::fill(rows, next_part, a + (next_i * a_row + next_s * a_step), a_row, a_step, m - next_i, k - next_s);
            Columns::fill(columns, next_part, b + (next_j * b_column + next_s * b_step), b_column, b_step, n - next_j, k - next_s);
            next_part = next_part + 1 < STAGES ? next_part + 1 : 0;
            next_s += DEPTH;
            if (next_s >= k) { next_s = 0; next_j += BN; }
            if (next_j >= n) { next_j = 0; next_i += BM; }
        }
        end_copies();
        if (ahead < 0) continue;
        sums.add(Rows::of(rows, part, a + (i * a_row + s * a_step), a_row, a_step, m - i, k - s),
                 Columns::of(columns, part, b + (j * b_column + s * b_step), b_column, b_step, n - j, k - s));
        part = part + 1 < STAGES ? part + 1 : 0;
        s += DEPTH;
        if (s < k) continue;
        sums.each([&](int row, int column, real first, real second) {
            constexpr bool PAIRS = Sums<S, BM, BN, UNITS>::PAIRS;
            if (i + row >= m) return;
            const index_t at = (i + row) * c_row + (j + column) * c_column;
            real x[2] = {scale * first, scale * second};
            if (PAIRS && even && j + column + 1 < n) {
                if (adds) {
                    const auto old = read_pack<2>(c, at);
                    x[0] += to_real(old.v[0]); x[1] += to_real(old.v[1]);
                }
                Pack<C, 2> pack;
                round_pack(pack, x);
                write_pack<2>(c, at, pack);
                return;
            }
#pragma unroll
            for (int y = 0; y < 1 + PAIRS; ++y)
                if (j + column + y < n) c[at + y * c_column] = From<C>::real_(adds ? to_real(c[at + y * c_column]) + x[y] : x[y]);
        });
        sums.clear();
        s = 0;
        j += BN;
        if (j >= n) { j = 0; i += BM; }
    }
    __syncthreads();
}
