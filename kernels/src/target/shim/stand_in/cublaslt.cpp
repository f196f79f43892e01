/* A matrix library on the cores of this machine, for tests: what libcublasLt.so does for Memlet, as NVIDIA's manual says it.
 *
 * It has three algorithms for every product; the last one needs memory besides its operands, and is offered only where there is some.
 */
#include "stand_in.h"
#include <cmath>
#include <cstring>
#include <vector>

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { DEFAULT = 1, RELU = 2, BIAS = 4, GELU = 32, AUX = 128, GRADIENT_RELU = 136, GRADIENT_GELU = 192, BGRAD = 16, BGRADA = 256, BGRADB = 512 };

struct Layout { int type = 0, order = 0, count = 1, mode = 0; uint64_t rows = 0, columns = 0; int64_t leading = 0, stride = 0; };
struct Operation {
    int scale = R_32F, transposed[2] = {0, 0};
    uint32_t epilogue = DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_leading = 0;
};
struct Preference { uint64_t workspace = 0, units = ~0ull; };
/* As much of an algorithm as is known here, in the 64 bytes that it has. */
struct Algorithm { int32_t id = 0, tile = 0, stages = 0, split = 1, scheme = 0, swizzled = 0, option = 0, rest[9] = {}; };
static_assert(sizeof(Algorithm) == 64, "");
struct Result { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };

enum { ALGORITHMS = 3, WORKSPACE = 1 << 20 };

float half(uint16_t u) { _Float16 x; memcpy(&x, &u, 2); return (float)x; }
double read(const void *at, int type, int64_t n) {
    switch (type) {
    case R_64F: return ((const double *)at)[n];
    case R_32F: return ((const float *)at)[n];
    case R_16F: return half(((const uint16_t *)at)[n]);
    default: {
        const uint32_t u = (uint32_t)((const uint16_t *)at)[n] << 16;
        float x;
        memcpy(&x, &u, 4);
        return x;
    }
    }
}
void write(void *at, int type, int64_t n, double value) {
    const float x = (float)value;
    switch (type) {
    case R_64F: ((double *)at)[n] = value; return;
    case R_32F: ((float *)at)[n] = x; return;
    case R_16F: {
        const _Float16 h = (_Float16)x;
        memcpy((uint16_t *)at + n, &h, 2);
        return;
    }
    default: {
        uint32_t u;
        memcpy(&u, &x, 4);
        ((uint16_t *)at)[n] = (uint16_t)(x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    }
}
int64_t bytes(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }
int64_t place(const Layout &layout, int64_t row, int64_t column) {
    return layout.order == 1 ? row * layout.leading + column : column * layout.leading + row;
}
const void *matrix(const Layout &layout, const void *base, int item) {
    if (layout.mode == 1) return ((const void *const *)base)[item];
    return (const char *)base + item * layout.stride * bytes(layout.type);
}
double slope_of_gelu(double x) {
    const double c = 0.7978845608028654, u = c * (x + 0.044715 * x * x * x), t = std::tanh(u);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}
double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

struct Product {
    Operation operation;
    Layout a, b, c, d;
    const void *at_a, *at_b, *at_c;
    void *at_d;
    double alpha, beta;

    double left(const void *base, int64_t row, int64_t step) const {
        return read(base, a.type, operation.transposed[0] ? place(a, step, row) : place(a, row, step));
    }
    double right(const void *base, int64_t step, int64_t column) const {
        return read(base, b.type, operation.transposed[1] ? place(b, column, step) : place(b, step, column));
    }
    /* Whether all that is read and written is memory of the GPU. */
    bool is_there() const {
        bool there = true;
        const auto whole = [&](const Layout &layout, const void *base) {
            if (layout.mode == 1) there = there && memlet_stand_in_holds(base, 8 * (int64_t)layout.count);
            const int64_t last = place(layout, layout.rows - 1, layout.columns - 1) + 1;
            for (int item = 0; item < layout.count && there; ++item) there = memlet_stand_in_holds(matrix(layout, base, item), last * bytes(layout.type));
        };
        whole(a, at_a);
        whole(b, at_b);
        whole(d, at_d);
        if (beta != 0) whole(c, at_c);
        const uint32_t e = operation.epilogue;
        const bool bits = e & RELU || (e & ~BGRAD) == GRADIENT_RELU;
        if (e & AUX) {
            const int64_t elements = operation.aux_leading * (d.columns - 1) + d.rows;
            there = there && memlet_stand_in_holds(operation.aux, bits ? (elements + 7) / 8 : elements * bytes(d.type));
        }
        if (operation.bias) there = there && memlet_stand_in_holds(operation.bias, (int64_t)(e == BGRADB ? d.columns : d.rows) * bytes(d.type));
        return there;
    }
    void carry_out() const {
        if (!is_there()) return;
        const int64_t m = d.rows, n = d.columns, k = operation.transposed[0] ? a.rows : a.columns;
        const uint32_t e = operation.epilogue;
        const bool adds = e == BIAS || e == (RELU | BIAS) || e == (GELU | BIAS) || e == (AUX | RELU | BIAS) || e == (AUX | GELU | BIAS);
        const bool gradient_relu = (e & ~BGRAD) == GRADIENT_RELU, gradient_gelu = (e & ~BGRAD) == GRADIENT_GELU;
        for (int item = 0; item < d.count; ++item) {
            const void *x = matrix(a, at_a, item), *y = matrix(b, at_b, item), *z = matrix(c, at_c, item);
            void *out = (void *)matrix(d, at_d, item);
            std::vector<double> sums(m, 0);
            for (int64_t row = 0; row < m; ++row)
                for (int64_t column = 0; column < n; ++column) {
                    double sum = 0;
                    for (int64_t step = 0; step < k; ++step) sum += left(x, row, step) * right(y, step, column);
                    double value = alpha * sum;
                    if (beta != 0) value += beta * read(z, c.type, place(c, row, column));
                    if (adds) value += read(operation.bias, d.type, row);
                    const int64_t beside = column * operation.aux_leading + row;
                    uint8_t *bits = (uint8_t *)operation.aux + beside / 8;
                    if (gradient_relu) value = *bits >> beside % 8 & 1 ? value : 0;
                    else if (gradient_gelu) value *= slope_of_gelu(read(operation.aux, d.type, beside));
                    else if (e & RELU) {
                        if (e & AUX) *bits = (uint8_t)((*bits & ~(1 << beside % 8)) | (value > 0) << beside % 8);
                        value = value > 0 ? value : 0;
                    } else if (e & GELU) {
                        if (e & AUX) write(operation.aux, d.type, beside, value);
                        value = gelu(value);
                    }
                    sums[row] += value;
                    write(out, d.type, place(d, row, column), value);
                }
            if ((gradient_relu || gradient_gelu) && e & BGRAD)
                for (int64_t row = 0; row < m; ++row) write(operation.bias, d.type, row, sums[row]);
            /* Sums along the depth of a factor. */
            if (e == BGRADA || e == BGRADB)
                for (int64_t side = 0; side < (e == BGRADA ? m : n); ++side) {
                    double sum = 0;
                    for (int64_t step = 0; step < k; ++step) sum += e == BGRADA ? left(x, side, step) : right(y, step, side);
                    write(operation.bias, d.type, side, sum);
                }
        }
    }
};

bool fits(const Operation &operation, const Layout &a, const Layout &b, const Layout &d) {
    const uint64_t m = operation.transposed[0] ? a.columns : a.rows, depth = operation.transposed[0] ? a.rows : a.columns;
    const uint64_t n = operation.transposed[1] ? b.rows : b.columns, other = operation.transposed[1] ? b.columns : b.rows;
    const auto sound = [](const Layout &l) { return l.leading >= (int64_t)(l.order == 1 ? l.columns : l.rows); };
    const bool bits = operation.epilogue & RELU || (operation.epilogue & ~BGRAD) == GRADIENT_RELU;
    const int64_t leading = operation.aux_leading;
    /* An auxiliary matrix lies in columns that begin at multiples of 16 bytes, and so does the result beside it. */
    const bool beside = !(operation.epilogue & AUX) || (leading % (bits ? 128 : 8) == 0 && leading >= (int64_t)d.rows && d.order == 0);
    return m == d.rows && n == d.columns && depth == other && a.count == d.count && b.count == d.count && sound(a) && sound(b) && sound(d) && beside;
}
template <class T> int give(const T &value, void *to, size_t size, size_t *written) {
    if (written) *written = sizeof(T);
    if (size < sizeof(T)) return INVALID_VALUE;
    memcpy(to, &value, sizeof(T));
    return SUCCESS;
}
template <class T> int take(T &value, const void *from, size_t size) {
    if (size != sizeof(T)) return INVALID_VALUE;
    memcpy(&value, from, sizeof(T));
    return SUCCESS;
}

} // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
int cublasLtCreate(void **handle) { *handle = new int; return SUCCESS; }
int cublasLtDestroy(void *handle) { delete (int *)handle; return SUCCESS; }
int cublasLtMatmulDescCreate(void **operation, int, int scale) {
    Operation *made = new Operation;
    made->scale = scale;
    *operation = made;
    return SUCCESS;
}
int cublasLtMatmulDescDestroy(void *operation) { delete (Operation *)operation; return SUCCESS; }
int cublasLtMatmulDescSetAttribute(void *operation, int key, const void *from, size_t size) {
    Operation &of = *(Operation *)operation;
    int32_t unused;
    switch (key) {
    case 3: return take(of.transposed[0], from, size);
    case 4: return take(of.transposed[1], from, size);
    case 7: return take(of.epilogue, from, size);
    case 8: return take(of.bias, from, size);
    case 11: return take(of.aux, from, size);
    case 12: return take(of.aux_leading, from, size);
    /* Types of vector and auxiliary matrix: those of the result. */
    case 22: case 26: return take(unused, from, size);
    default: return INVALID_VALUE;
    }
}
int cublasLtMatmulDescGetAttribute(void *operation, int key, void *to, size_t size, size_t *written) {
    const Operation &of = *(const Operation *)operation;
    switch (key) {
    case 7: return give(of.epilogue, to, size, written);
    case 12: return give(of.aux_leading, to, size, written);
    default: return INVALID_VALUE;
    }
}
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    Layout *made = new Layout;
    made->type = type;
    made->rows = rows;
    made->columns = columns;
    made->leading = leading;
    *layout = made;
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(void *layout) { delete (Layout *)layout; return SUCCESS; }
int cublasLtMatrixLayoutSetAttribute(void *layout, int key, const void *from, size_t size) {
    Layout &of = *(Layout *)layout;
    switch (key) {
    case 1: return take(of.order, from, size);
    case 5: return take(of.count, from, size);
    case 6: return take(of.stride, from, size);
    case 8: return take(of.mode, from, size);
    default: return INVALID_VALUE;
    }
}
int cublasLtMatrixLayoutGetAttribute(void *layout, int key, void *to, size_t size, size_t *written) {
    const Layout &of = *(const Layout *)layout;
    switch (key) {
    case 1: return give(of.order, to, size, written);
    case 2: return give(of.rows, to, size, written);
    case 3: return give(of.columns, to, size, written);
    case 4: return give(of.leading, to, size, written);
    case 5: return give(of.count, to, size, written);
    case 6: return give(of.stride, to, size, written);
    default: return INVALID_VALUE;
    }
}
int cublasLtMatmulPreferenceCreate(void **preference) { *preference = new Preference; return SUCCESS; }
int cublasLtMatmulPreferenceDestroy(void *preference) { delete (Preference *)preference; return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(void *preference, int key, const void *from, size_t size) {
    Preference &of = *(Preference *)preference;
    switch (key) {
    case 1: return take(of.workspace, from, size);
    case 12: return take(of.units, from, size);
    default: return SUCCESS;
    }
}

int cublasLtMatmulAlgoGetHeuristic(void *, void *operation, void *a, void *b, void *, void *d, void *preference, int wanted, Result *results, int *count) {
    *count = 0;
    if (!fits(*(Operation *)operation, *(Layout *)a, *(Layout *)b, *(Layout *)d)) return INVALID_VALUE;
    for (int id = 0; id < ALGORITHMS && *count < wanted; ++id) {
        const size_t needs = id == ALGORITHMS - 1 ? WORKSPACE : 0;
        /* The first one multiplies by plain units, the others by tensor cores. */
        if (needs > ((Preference *)preference)->workspace || !(((Preference *)preference)->units & (id == 0 ? 1 : 2))) continue;
        Result &result = results[(*count)++];
        result = Result{};
        result.algorithm.id = id;
        result.workspace = needs;
    }
    return *count > 0 ? SUCCESS : NOT_SUPPORTED;
}
int cublasLtMatmulAlgoGetIds(void *, int, int, int, int, int, int, int wanted, int *ids, int *count) {
    for (*count = 0; *count < ALGORITHMS && *count < wanted; ++*count) ids[*count] = *count;
    return SUCCESS;
}
int cublasLtMatmulAlgoInit(void *, int, int, int, int, int, int, int id, Algorithm *algorithm) {
    *algorithm = Algorithm();
    algorithm->id = id;
    return SUCCESS;
}
int cublasLtMatmulAlgoCapGetAttribute(const Algorithm *algorithm, int key, void *to, size_t size, size_t *written) {
    const uint32_t tiles[2] = {15, 18};
    switch (key) {
    case 0: return give((int32_t)(algorithm->id == 1), to, size, written); /* Whether it splits the depth. */
    case 1: return give((uint32_t)1, to, size, written);                   /* How it sums parts. */
    case 2: return give((uint32_t)0, to, size, written);
    case 6:
        *written = sizeof tiles;
        if (size < sizeof tiles) return size == 0 ? SUCCESS : INVALID_VALUE;
        memcpy(to, tiles, sizeof tiles);
        return SUCCESS;
    case 7: return give((int32_t)0, to, size, written);
    case 13: *written = 0; return SUCCESS;
    case 15: return give((uint64_t)(algorithm->id == 0 ? 1 : 2), to, size, written); /* Plain units, or tensor cores. */
    default: return INVALID_VALUE;
    }
}
int cublasLtMatmulAlgoConfigSetAttribute(Algorithm *algorithm, int key, const void *from, size_t size) {
    int32_t *const fields[] = {&algorithm->id, &algorithm->tile, &algorithm->split, &algorithm->scheme, &algorithm->swizzled, &algorithm->option, &algorithm->stages};
    return key >= 0 && key < 7 ? take(*fields[key], from, size) : INVALID_VALUE;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *algorithm, int key, void *to, size_t size, size_t *written) {
    const int32_t fields[] = {algorithm->id, algorithm->tile, algorithm->split, algorithm->scheme, algorithm->swizzled, algorithm->option, algorithm->stages};
    return key >= 0 && key < 7 ? give(fields[key], to, size, written) : INVALID_VALUE;
}
int cublasLtMatmulAlgoCheck(void *, void *operation, void *a, void *b, void *, void *d, const Algorithm *algorithm, Result *result) {
    if (!fits(*(Operation *)operation, *(Layout *)a, *(Layout *)b, *(Layout *)d)) return INVALID_VALUE;
    /* One of them has no large tiles. */
    if (algorithm->id == 0 && algorithm->tile == 18) return NOT_SUPPORTED;
    *result = Result{};
    result->algorithm = *algorithm;
    result->workspace = algorithm->id == ALGORITHMS - 1 ? WORKSPACE : 0;
    return SUCCESS;
}
int cublasLtMatmul(void *, void *operation, const void *alpha, const void *a, void *of_a, const void *b, void *of_b, const void *beta, const void *c,
                   void *of_c, void *d, void *of_d, const Algorithm *algorithm, void *, size_t room, void *stream) {
    if (memlet_stand_in_broken()) return EXECUTION_FAILED;
    if (algorithm->id == ALGORITHMS - 1 && room < WORKSPACE) return INVALID_VALUE;
    Product product{*(Operation *)operation, *(Layout *)of_a, *(Layout *)of_b, *(Layout *)of_c, *(Layout *)of_d, a, b, c, d, 0, 0};
    if (!fits(product.operation, product.a, product.b, product.d)) return INVALID_VALUE;
    product.alpha = read(alpha, product.operation.scale, 0);
    product.beta = read(beta, product.operation.scale, 0);
    memlet_stand_in_put(stream, [product] { product.carry_out(); });
    return SUCCESS;
}

} // extern "C"
