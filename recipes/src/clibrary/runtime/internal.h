/* What the files of this library share. */
#ifndef CAPS_INTERNAL_H
#define CAPS_INTERNAL_H

#include "NAME.h"
#include <pthread.h>
#include <stdatomic.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* What decides about one dropout mask; an element is dropped if its lane, 16 random bits, is below the threshold. */
typedef struct {
    uint64_t step;
    double factor;
    uint32_t key[2];
    uint32_t threshold, unused;
} NAME_keep;

typedef const uint16_t *NAME_row(const NAME_keep *keep, int64_t first, int64_t stride, int64_t count, uint16_t *room, int64_t *held);
typedef void NAME_copy(void *to, const void *from, int64_t bytes);
typedef void NAME_function(void);

/* What a kernel gets besides its arguments, as the kernels' own text has it. */
typedef struct {
    const NAME_keep *keep;
    NAME_row *row;
    NAME_copy *stream;
    int64_t streams, late;
    NAME_copy *around;
    NAME_function *pack, *pack_lines, *gemm;
} NAME_host;

typedef void NAME_kernel_function(char *const *p, const int64_t *n, const NAME_host *host, char *scratch, int64_t from, int64_t to);
typedef void NAME_prepare_function(char *const *p, const int64_t *n, const NAME_host *host, int64_t from, int64_t to);
typedef void NAME_finish_function(char *const *p, const int64_t *n, const char *scratch, int64_t stride, int64_t workers, int64_t which,
    int64_t from, int64_t to);
typedef void NAME_scatter_function(char *const *p, int64_t copies, int64_t worker, int64_t workers);

/* A partial result of each worker: where it lies in its memory, and the totals of long sums, -1 if there are none. */
typedef struct {
    int64_t at, total, elements, steps;
    double identity;
} NAME_partial;

/* What happens between two barriers of a kernel: packing, points, adding up partial results `from` to `to` by one worker or that of number
   `from` by all, or a phase of a scatter. */
enum { PREPARE, POINTS, COMBINE, COMBINE_SHARED, SCATTER_COPY, SCATTER_ADD };
typedef struct {
    int32_t kind, from, to;
} NAME_stage;

typedef struct {
    NAME_prepare_function *prepare;
    NAME_kernel_function *kernel;
    NAME_finish_function *finish;
    NAME_scatter_function *scatter;
    NAME_function *pack, *pack_lines, *gemm;
    const int64_t *integers;
    const NAME_stage *stages;
    const NAME_partial *partials;
    int32_t arguments, stage_count, partial_count, first_mask, streams, is_double;
    int64_t points, preparations, step, points_of_step;
} NAME_kernel;

/* Bytes from a pointer of the caller, or from the workspace, which is number 0. */
typedef struct {
    int64_t base, offset;
} NAME_address;

/* A run of a kernel: its first argument's address, and where its working memory begins. */
typedef struct {
    int32_t kernel, address;
    int64_t own, shared;
} NAME_launch;

/* Part of a launch: one phase, or all of them if that is -1. Its work is done by one worker, by all in parts that follow from their
   numbers, or in items that workers take: `parts` pieces of each share. With a size, workers have ranges of an index, in steps. */
enum { ALONE, FIXED, ITEMS };
typedef struct {
    int32_t launch, phase, spread;
    int64_t count, parts, size, step;
} NAME_item;

/* Items between two barriers: what the caller does first, then what all workers do. */
typedef struct {
    int32_t before, before_count, work, work_count;
} NAME_group;

typedef struct {
    const NAME_item *items;
    const NAME_group *groups;
    int32_t group_count;
} NAME_schedule;

/* A dropout mask: the hash of its stream's name, and what is dropped in 65536. */
typedef struct {
    uint64_t stream;
    uint32_t threshold;
} NAME_mask;

/* Elements of one value in the workspace. */
typedef struct {
    int64_t at, elements;
    int32_t size;
    uint64_t bits;
} NAME_fill;

#include "plan.h"

extern const NAME_kernel NAME_kernels[] HIDDEN;
extern const NAME_launch NAME_launches[] HIDDEN;
extern const NAME_address NAME_addresses[] HIDDEN;
extern const NAME_mask NAME_masks[] HIDDEN;
extern const NAME_fill NAME_fills[] HIDDEN;
extern const NAME_schedule NAME_once HIDDEN;
/* By the number of threads, from 1. */
extern const NAME_schedule *const NAME_schedules[] HIDDEN;
extern const NAME_tensor NAME_tensors[] HIDDEN;
extern const NAME_memory NAME_memories[] HIDDEN;

/* random.c; the instructions that files with flags for the processor are compiled for. */
enum { CAPS_NEEDS_AVX2 = 1, CAPS_NEEDS_AVX512 = 2, CAPS_NEEDS_BF16 = 4 };
HIDDEN int NAME_instructions(void);
HIDDEN NAME_row NAME_draw_row;
HIDDEN NAME_keep NAME_keep_of(const NAME_mask *mask, uint64_t seed, uint64_t step, int drops);
/* stream.c */
HIDDEN NAME_copy NAME_stream;
HIDDEN void NAME_fence(void);

/* pool.c: threads that work together. */
typedef void NAME_work(void *of, int worker);
typedef struct {
    _Alignas(128) _Atomic uint32_t round;
} NAME_begun;
typedef struct {
    _Atomic uint32_t count;
    pthread_mutex_t lock;
    pthread_cond_t woken;
} NAME_sleepers;
typedef struct NAME_pool NAME_pool;
typedef struct {
    NAME_pool *pool;
    pthread_t thread;
    int worker;
} NAME_helper;
struct NAME_pool {
    int workers, started;
    NAME_work *work;
    void *of;
    _Alignas(128) _Atomic uint32_t round;
    _Alignas(128) _Atomic uint32_t left;
    _Alignas(128) _Atomic uint64_t crowded;
    NAME_sleepers helpers, leader;
    NAME_begun begun[CAPS_MOST_THREADS];
    NAME_helper helper[CAPS_MOST_THREADS];
    /* When it was asked last whether the workers' cores share a cache, in nanoseconds, and the answer. */
    uint64_t asked;
    int near;
    struct {
        _Alignas(128) _Atomic uint64_t turn;
    } turns[CAPS_MOST_THREADS];
};
HIDDEN int NAME_pool_start(NAME_pool *pool, int workers);
HIDDEN void NAME_pool_run(NAME_pool *pool, NAME_work *work, void *of);
HIDDEN int NAME_pool_is_near(NAME_pool *pool);
HIDDEN void NAME_pool_stop(NAME_pool *pool);

/* A worker's share of an item. */
typedef struct {
    _Alignas(128) _Atomic int64_t next;
    int64_t end;
} NAME_share;

struct NAME_context {
    NAME_pool pool;
    int threads, is_prepared, late, far;
    _Atomic int is_busy;
    char *workspace;
    void *allocated;
    const NAME_schedule *running;
    const NAME_group *group;
    NAME_share *shares;
    char *bases[CAPS_MEMORIES + 1];
    NAME_keep keeps[CAPS_MASKS + 1];
};

/* engine.c */
HIDDEN void NAME_run(NAME_context *context, const NAME_schedule *schedule);

#endif
