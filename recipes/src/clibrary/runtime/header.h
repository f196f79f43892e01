/* NAME.h: one step of PROGRAM as a C library, made by `memlet build` from PLAN.
 *
 * Every memory is the caller's: NAME_step takes one pointer for each, in this order. Tensors lie in them in the layouts of the plan:
 *
TABLE
 *
 * An element lies at the sum over its dims of index / block * across + index % block * within, in elements (see NAME_tensor). NAME_pack and
 * NAME_unpack copy between that and the order of the dims (row-major, the last one innermost).
 *
 * A pointer is a multiple of its memory's alignment; multiples of 64 are faster. Up to 63 bytes behind a memory may be read and must be
 * readable, of results, too: a step may use their memory before they are there. Memories overlap with no other.
 */
#ifndef CAPS_H
#define CAPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPS_ABI 1

enum {
    CAPS_OK = 0,
    CAPS_ERROR_NULL = 1,
    CAPS_ERROR_THREADS = 2,
    CAPS_ERROR_MEMORY = 3,
    CAPS_ERROR_WORKSPACE = 4,
    CAPS_ERROR_ALIGNMENT = 5,
    CAPS_ERROR_PROCESSOR = 6,
    CAPS_ERROR_SYSTEM = 7,
    CAPS_ERROR_BUSY = 8,
    CAPS_ERROR_INDEX = 9
};

/* Numbers of the memories. */
enum {
MEMORIES
};

/* Numbers of the tensors. */
enum {
TENSORS
};

/* Flags of NAME_step: every element is kept. */
#define CAPS_NO_DROPOUT 1u

/* Memory that the caller gives. */
typedef struct NAME_memory {
    const char *name;
    int64_t bytes;
    int32_t alignment;
    /* Whether the step writes it. */
    int32_t is_written;
} NAME_memory;

/* A tensor that is given or returned. */
typedef struct NAME_tensor {
    const char *name;
    /* "input", "parameter", "output" or "gradient". */
    const char *role;
    /* "f32", "f64", "bf16", "f16", "i64", "i32", "i16" or "u8". */
    const char *dtype;
    const char *layout;
    /* Of an output that is the next value of a parameter: that one's name. It is where the parameter was, after the step. Else null. */
    const char *replaces;
    /* The value that a state begins with; null where the caller decides. */
    const double *initial;
    int32_t element_bytes;
    int32_t memory;
    /* Bytes from the memory's beginning. */
    int64_t offset;
    int32_t rank;
    int32_t is_plain;
    const char *const *dims;
    const int64_t *shape;
    /* For each dim: block, across, within. In a plain layout blocks are 1 and `across` is the stride in elements. */
    const int64_t (*steps)[3];
} NAME_tensor;

typedef struct NAME_context NAME_context;

const char *NAME_strerror(int error);
/* The version of this interface. */
int32_t NAME_abi(void);
int32_t NAME_tensor_count(void);
/* Null for numbers that are none. */
const NAME_tensor *NAME_tensor_at(int32_t tensor);
int32_t NAME_memory_count(void);
const NAME_memory *NAME_memory_at(int32_t memory);
int32_t NAME_most_threads(void);
/* Bytes of the workspace of a context; 0 for a number of threads that is none. */
size_t NAME_workspace_bytes(int32_t threads);
/* Makes a context with so many threads, the caller's included. The workspace is the caller's, at a multiple of 64, or null: then the context
 * allocates it. It is the context's until that is destroyed, and its content must not change between steps. */
int NAME_create(NAME_context **context, int32_t threads, void *workspace, size_t bytes);
void NAME_destroy(NAME_context *context);
/* Runs a step. Dropout's masks follow from seed and step. Contexts are independent: several threads may run a step each in one of its own. */
int NAME_step(NAME_context *context, void *const *memories, uint64_t seed, uint64_t step, uint32_t flags);
/* Says that parameters have changed: a context keeps what it has computed of them alone in its first step (in programs that do not train). */
int NAME_refresh(NAME_context *context);
/* Copies a tensor in the order of its dims into its memory, or out of it. */
int NAME_pack(int32_t tensor, const void *from, void *memory);
int NAME_unpack(int32_t tensor, const void *memory, void *to);

#ifdef __cplusplus
}
#endif

#endif
