
/* Rows of values that are made a few columns at a time, by one product, and multiplied by another while they are in registers. A warp has
   16 rows, and DEPTH columns of them at a time. Columns are dealt such that of four squares side by side each lane has eight neighbours:
   column `c` of a square of the product lies here. */
DEVICE int dealt(int square, int c) { return square / 4 * 32 + c / 2 * 8 + square % 4 * 2 + c % 2; }

DEVICE uint32_t two_of(bf16_t a, bf16_t b) { return a.bits | (uint32_t)b.bits << 16; }
DEVICE uint32_t two_of(f16_t a, f16_t b) { return a.bits | (uint32_t)b.bits << 16; }
template <class S> DEVICE uint32_t rounded_two(real a, real b) {
    const real x[2] = {a, b};
    Pack<S, 2> pack;
    round_pack(pack, x);
    return two_of(pack.v[0], pack.v[1]);
}

/* A warp's 16 rows of a factor, all of their STEPS steps; in the stage they are chunks of DEPTH steps of N rows. */
template <int STEPS, int N, bool NEAR, class S> DEVICE void take_rows(uint32_t (&a)[STEPS / 16][4], POINTER(S) stage) {
    using Chunk = InStage<S, N, NEAR>;
#pragma unroll
    for (int s = 0; s < STEPS; s += 16) {
        const Chunk chunk = {stage + s / DEPTH * (int)Chunk::SIZE};
        chunk.template squares<true, false>(a[s / 16], threadIdx.x / 32 * 16, s % DEPTH);
    }
}

/* The values of DEPTH columns: their factor lies in the stage in chunks of DEPTH steps, DEALT where steps are neighbours. */
template <int STEPS, bool NEAR, class S>
DEVICE void make_values(float (&values)[DEPTH / 8][4], const uint32_t (&a)[STEPS / 16][4], POINTER(S) stage) {
    using Chunk = InStage<S, DEPTH, NEAR>;
    constexpr int GAP = Chunk::GAP;
    const int lane = threadIdx.x % 32, near = lane % 8, odd = lane / 8 % 2, high = lane / 16 % 2;
    POINTER(S) own = stage + ((high * 8 + near) * (DEPTH + GAP) + odd * 8);
#pragma unroll
    for (int j = 0; j < DEPTH / 8; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) values[j][x] = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s += 16) {
        const int first = s / DEPTH * (int)Chunk::SIZE, step = s % DEPTH;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j += 2) {
            uint32_t b[4];
            if constexpr (NEAR) {
                load_squares<false>(b, own, first + j * 8 * (DEPTH + GAP) + step);
            } else {
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int column = dealt(j + n / 2, lane / 4), at = step + n % 2 * 8 + lane % 4 * 2;
                    b[n] = two_of(stage[first + at * (DEPTH + GAP) + column], stage[first + (at + 1) * (DEPTH + GAP) + column]);
                }
            }
            const uint32_t two[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
            multiply(values[j], a[s / 16], two[0], S());
            multiply(values[j + 1], a[s / 16], two[1], S());
        }
    }
}

/* Values as rows of a product, DEPTH of its steps: its other factor has N columns in the stage, DEALT where those are neighbours. */
template <int N, bool NEAR, class S> DEVICE void use_values(float (&sums)[N / 8][4], const uint32_t (&a)[DEPTH / 16][4], POINTER(S) p) {
    constexpr int GAP = InStage<S, N, NEAR>::GAP;
    const int lane = threadIdx.x % 32, near = lane % 8, odd = lane / 8 % 2, high = lane / 16 % 2;
    POINTER(S) own = p + ((odd * 8 + near) * (N + GAP) + high * 8);
#pragma unroll
    for (int s = 0; s < DEPTH / 16; ++s) {
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t b[4];
            if constexpr (!NEAR) {
                load_squares<true>(b, own, s * 16 * (N + GAP) + j * 8);
            } else {
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int at = ((j + n / 2) * 8 + lane / 4) * (DEPTH + GAP) + dealt(2 * s + n % 2, lane % 4 * 2);
                    b[n] = two_of(p[at], p[at + 1]);
                }
            }
            const uint32_t two[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
            multiply(sums[j], a[s], two[0], S());
            multiply(sums[j + 1], a[s], two[1], S());
        }
    }
}

/* What the four lanes of a row have, put together. */
template <class F> DEVICE real row_reduce(real x, F f) {
    x = f(x, __shfl_xor_sync(0xffffffffu, x, 1, 32));
    return f(x, __shfl_xor_sync(0xffffffffu, x, 2, 32));
}

/* Of four squares side by side each lane has two neighbours of a row; afterwards it has the eight of one square. */
DEVICE void gather_row(real (&x)[8]) {
    /* Squares that differ in a bit change places with lanes that do. */
#pragma unroll
    for (int away = 1; away < 4; away *= 2) {
        const bool high = threadIdx.x & away;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n & away) continue;
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                real &low = x[2 * n + k], &other = x[2 * (n + away) + k];
                const real come = __shfl_xor_sync(0xffffffffu, high ? low : other, away, 32);
                if (high) low = come;
                else other = come;
            }
        }
    }
}
