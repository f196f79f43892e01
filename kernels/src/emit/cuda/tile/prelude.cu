
/* Matrix products of a whole block. Factors pass through shared memory, the stage, DEPTH steps at a time: while one half of it is
   multiplied, the other half is filled. Sums are in registers. Factors of 16 bits are multiplied by tensor cores where a GPU has those that take bf16, all others by plain units. */
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
    uint32_t at;
    asm("{ .reg .u64 whole; cvta.to.shared.u64 whole, %1; cvt.u32.u64 %0, whole; }" : "=r"(at) : "l"(p));
    return at;
}
/* Squares of 8 by 8 values: each lane names a line of one of them, and gets two neighbours along the lines of each; of TURNED squares
   two neighbours across them. */
template <bool TURNED, class S> DEVICE void load_squares(uint32_t (&x)[4], const S *p, index_t at) {
    const uint32_t from = stage_address(p + at);
    if (TURNED) asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    else asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
}
template <bool TURNED, class S> DEVICE void load_squares(uint32_t (&x)[2], const S *p, index_t at) {
    const uint32_t from = stage_address(p + at);
    if (TURNED) asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    else asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
}
/* 16 rows of 16 steps times 16 steps of 8 columns. */
#define MULTIPLY_BY(type) asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16_t) { MULTIPLY_BY("bf16"); }
DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16_t) { MULTIPLY_BY("f16"); }
#endif
#endif
#if defined(MEMLET_SHIM)
#define TENSOR_CORES 1
#elif __CUDA_ARCH__ >= 800
/* 16 bytes from global memory to the stage, while the thread goes on; all that were asked for until an end are one group. */
template <class S> DEVICE void copy_later(S *to, index_t at, const S *from, index_t place) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(stage_address(to + at)), "l"(from + place) : "memory");
}
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/* All groups of this thread have arrived but the last. */
DEVICE void await_copies() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }
#else
template <class S> DEVICE void copy_later(S *to, index_t at, const S *from, index_t place) {
    constexpr int P = 16 / sizeof(S);
    write_pack<P>(to, at, read_pack<P>((S *)from, place));
}
DEVICE void end_copies() {}
DEVICE void await_copies() {}
#endif

constexpr int WARPS = THREADS / 32;

/* A value of a factor as it is multiplied. */
template <class S, class T> struct Staged { static DEVICE_MEMBER S of(T x) { return From<S>::real_(to_real(x)); } };
template <class S> struct Staged<S, S> { static DEVICE_MEMBER S of(S x) { return x; } };
template <class S> struct Staged<S, const S> { static DEVICE_MEMBER S of(S x) { return x; } };
template <class S, class T> struct Same { enum { value = 0 }; };
template <class S> struct Same<S, S> { enum { value = 1 }; };
template <class S> struct Same<S, const S> { enum { value = 1 }; };

/* LINES lines of LENGTH neighbours, of a factor, in the stage; what lies beyond `lines` and `length` counts as zero. Neighbours lie `unit`
   apart in the factor; NEAR promises that this is 1. What is GLOBAL, whole, and of the stage's type, comes later. */
template <int LINES, int LENGTH, int PITCH, bool NEAR, bool GLOBAL_MEMORY, class S, class T>
DEVICE void stage(POINTER(S) to, POINTER(T) from, index_t line, index_t unit, index_t lines, index_t length) {
    constexpr int P = 16 / sizeof(S), Q = 16 / sizeof(T) < P ? 16 / sizeof(T) : P;
    for (int e = threadIdx.x; e < LINES * (LENGTH / P); e += THREADS) {
        /* Threads walk along what is near. */
        const int n = NEAR ? e / (LENGTH / P) : e % LINES, first = (NEAR ? e % (LENGTH / P) : e / LINES) * P;
        const bool whole = NEAR && n < lines && first + P <= length && aligned<Q>(from, n * line + first);
        if constexpr (GLOBAL_MEMORY && Same<S, T>::value) {
            if (whole) {
                copy_later<S>(to, n * PITCH + first, from, n * line + first);
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
        write_pack<P>(to, n * PITCH + first, pack);
    }
}

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

/* What lies near one another in a factor: steps, or rows (columns), or neither. */
enum { STEPS, SIDE, NEITHER };

/* The sums of BM rows and BN columns. Lines of the stage are rows (or columns) where steps are NEAR one another, else steps. */
template <class S, int BM, int BN, bool ROWS_NEAR, bool COLUMNS_NEAR, bool UNITS> struct Sums;

/* By plain units: each thread has rows and columns that lie ABOVE and ACROSS apart. */
template <class S, int BM, int BN, bool ROWS_NEAR, bool COLUMNS_NEAR> struct Sums<S, BM, BN, ROWS_NEAR, COLUMNS_NEAR, false> {
    enum { GAP = 16 / sizeof(S) };
    enum { UP = above(BM, BN, THREADS, 1, 1), ACROSS = THREADS / UP < BN ? THREADS / UP : BN, TM = BM / UP, TN = BN / ACROSS };
    real sums[TM][TN];
    int row, column;

    DEVICE_MEMBER Sums() : row(threadIdx.x / ACROSS), column(threadIdx.x % ACROSS) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[i][j] = 0;
    }
    DEVICE_MEMBER void add(POINTER(S) rows, POINTER(S) columns) {
        if (row >= UP) return;
#pragma unroll 4
        for (int s = 0; s < DEPTH; ++s) {
            real a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) a[i] = to_real(rows[ROWS_NEAR ? (row + i * UP) * (DEPTH + GAP) + s : s * (BM + GAP) + row + i * UP]);
#pragma unroll
            for (int j = 0; j < TN; ++j)
                b[j] = to_real(columns[COLUMNS_NEAR ? (column + j * ACROSS) * (DEPTH + GAP) + s : s * (BN + GAP) + column + j * ACROSS]);
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
            for (int j = 0; j < TN; ++j) f(row + i * UP, column + j * ACROSS, sums[i][j]);
    }
};

#if TENSOR_CORES && !defined(REAL_IS_DOUBLE)
/* By tensor cores: each warp has TM times 16 rows and TN times 8 columns. */
template <class S, int BM, int BN, bool ROWS_NEAR, bool COLUMNS_NEAR> struct Sums<S, BM, BN, ROWS_NEAR, COLUMNS_NEAR, true> {
    enum { GAP = 16 / sizeof(S) };
    enum { UP = above(BM, BN, WARPS, 16, 8), ACROSS = WARPS / UP < BN / 8 ? WARPS / UP : BN / 8, TM = BM / UP / 16, TN = BN / ACROSS / 8 };
    float sums[TM][TN][4];
    int row, column, lane;

    DEVICE_MEMBER Sums() : row(threadIdx.x / 32 / ACROSS), column(threadIdx.x / 32 % ACROSS), lane(threadIdx.x % 32) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int x = 0; x < 4; ++x) sums[i][j][x] = 0;
    }
    DEVICE_MEMBER void add(POINTER(S) rows, POINTER(S) columns) {
        if (row >= UP) return;
        const int line = lane % 8, odd = lane / 8 % 2, high = lane / 16;
#pragma unroll
        for (int s = 0; s < DEPTH; s += 16) {
            uint32_t a[TM][4];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const int first = (row * TM + i) * 16 + odd * 8, step = s + high * 8;
                load_squares<!ROWS_NEAR>(a[i], rows, ROWS_NEAR ? (first + line) * (DEPTH + GAP) + step : (step + line) * (BM + GAP) + first);
            }
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int first = (column * TN + j) * 8, step = s + odd * 8;
                uint32_t b[2];
                load_squares<!COLUMNS_NEAR>(b, columns, COLUMNS_NEAR ? (first + line) * (DEPTH + GAP) + step : (step + line) * (BN + GAP) + first);
#pragma unroll
                for (int i = 0; i < TM; ++i) multiply(sums[i][j], a[i], b, S());
            }
        }
    }
    template <class F> DEVICE_MEMBER void each(F f) {
        if (row >= UP) return;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int x = 0; x < 4; ++x) f((row * TM + i) * 16 + x / 2 * 8 + lane / 4, (column * TN + j) * 8 + lane % 4 * 2 + x % 2, sums[i][j][x]);
    }
};
#endif

/* Lines of the stage from one factor: N of its rows (columns), of which there are `side`, and DEPTH steps, of which there are `steps`. */
template <int N, int NEAR, bool GLOBAL_MEMORY, class S, class T>
DEVICE void stage_side(POINTER(S) to, POINTER(T) from, index_t each, index_t step, index_t side, index_t steps) {
    constexpr int GAP = 16 / sizeof(S);
    if constexpr (NEAR == STEPS) stage<N, DEPTH, DEPTH + GAP, true, GLOBAL_MEMORY>(to, from, each, step, side, steps);
    else stage<DEPTH, N, N + GAP, NEAR == SIDE, GLOBAL_MEMORY>(to, from, step, each, steps, side);
}

/* c = scale a b, or added to what is in c: m rows, n columns, k steps. Ends with a barrier. */
template <class S, int BM, int BN, int A_NEAR, int B_NEAR, bool A_GLOBAL, bool B_GLOBAL, class A, class B, class C>
DEVICE void product(index_t m, index_t n, index_t k, POINTER(A) a, index_t a_row, index_t a_step, POINTER(B) b, index_t b_step, index_t b_column,
                    POINTER(C) c, index_t c_row, index_t c_column, real scale, bool adds, POINTER(S) rows, POINTER(S) columns) {
    constexpr bool UNITS = TENSOR_CORES && sizeof(S) == 2 && sizeof(real) == 4;
    constexpr int GAP = 16 / sizeof(S);
    constexpr int HALF_A = A_NEAR == STEPS ? BM * (DEPTH + GAP) : DEPTH * (BM + GAP);
    constexpr int HALF_B = B_NEAR == STEPS ? BN * (DEPTH + GAP) : DEPTH * (BN + GAP);
    for (index_t i = 0; i < m; i += BM) {
        for (index_t j = 0; j < n; j += BN) {
            Sums<S, BM, BN, A_NEAR == STEPS, B_NEAR == STEPS, UNITS> sums;
            const auto fill = [&](index_t s, int half) {
                stage_side<BM, A_NEAR, A_GLOBAL>(rows + half * HALF_A, a + (i * a_row + s * a_step), a_row, a_step, m - i, k - s);
                stage_side<BN, B_NEAR, B_GLOBAL>(columns + half * HALF_B, b + (j * b_column + s * b_step), b_column, b_step, n - j, k - s);
                end_copies();
            };
            fill(0, 0);
            int half = 0;
            for (index_t s = 0; s < k; s += DEPTH) {
                if (s + DEPTH < k) fill(s + DEPTH, 1 - half);
                else end_copies();
                await_copies();
                __syncthreads();
                sums.add(rows + half * HALF_A, columns + half * HALF_B);
                __syncthreads();
                half = 1 - half;
            }
            sums.each([&](int row, int column, real sum) {
                if (i + row < m && j + column < n) {
                    const index_t at = (i + row) * c_row + (j + column) * c_column;
                    c[at] = From<C>::real_(adds ? to_real(c[at]) + scale * sum : scale * sum);
                }
            });
        }
    }
    __syncthreads();
}
