/* The functions that NAME.h declares. */
#define _GNU_SOURCE
#include "internal.h"
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define HUGE_PAGE ((size_t)2 << 20)

EXPORT const char *NAME_strerror(int error)
{
    switch (error) {
    case CAPS_OK: return "no error";
    case CAPS_ERROR_NULL: return "a pointer is null: the context, the list of memories or one of them";
    case CAPS_ERROR_THREADS: return "the number of threads is below 1 or above NAME_most_threads()";
    case CAPS_ERROR_MEMORY: return "there is not enough memory";
    case CAPS_ERROR_WORKSPACE: return "the workspace is smaller than NAME_workspace_bytes() says";
    case CAPS_ERROR_ALIGNMENT: return "an address is no multiple of the element's size, or the workspace's no multiple of 64";
    case CAPS_ERROR_PROCESSOR: return "the library was made for a processor with other vector instructions";
    case CAPS_ERROR_SYSTEM: return "the system refuses to start threads";
    case CAPS_ERROR_BUSY: return "the context runs a step in another thread";
    case CAPS_ERROR_INDEX: return "there is no tensor of this number";
    default: return "unknown error";
    }
}

EXPORT int32_t NAME_abi(void) { return CAPS_ABI; }
EXPORT int32_t NAME_tensor_count(void) { return CAPS_TENSORS; }
EXPORT int32_t NAME_memory_count(void) { return CAPS_MEMORIES; }
EXPORT int32_t NAME_most_threads(void) { return CAPS_MOST_THREADS; }

EXPORT const NAME_tensor *NAME_tensor_at(int32_t tensor)
{
    return tensor >= 0 && tensor < CAPS_TENSORS ? &NAME_tensors[tensor] : 0;
}

EXPORT const NAME_memory *NAME_memory_at(int32_t memory)
{
    return memory >= 0 && memory < CAPS_MEMORIES ? &NAME_memories[memory] : 0;
}

EXPORT size_t NAME_workspace_bytes(int32_t threads)
{
    return threads < 1 || threads > CAPS_MOST_THREADS ? 0 : (size_t)CAPS_OWN_AT + (size_t)threads * CAPS_OWN_STRIDE + 64;
}

static void *room(size_t bytes)
{
    void *found = 0;
    const size_t all = bytes >= HUGE_PAGE ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : bytes;
    if (posix_memalign(&found, bytes >= HUGE_PAGE ? HUGE_PAGE : 64, all) != 0) return 0;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) madvise(found, all, MADV_HUGEPAGE);
#endif
    memset(found, 0, bytes);
    return found;
}

static int has_instructions(void)
{
#if defined(__x86_64__)
    const int needs = NAME_instructions();
    return (!(needs & CAPS_NEEDS_AVX512) || (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")))
        && (!(needs & CAPS_NEEDS_AVX2) || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")))
        && (!(needs & CAPS_NEEDS_BF16) || __builtin_cpu_supports("avx512bf16"));
#else
    return 1;
#endif
}

static int is_intel(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel") != 0;
#else
    return 0;
#endif
}

EXPORT int NAME_create(NAME_context **made, int32_t threads, void *workspace, size_t bytes)
{
    if (!made) return CAPS_ERROR_NULL;
    *made = 0;
    if (threads < 1 || threads > CAPS_MOST_THREADS) return CAPS_ERROR_THREADS;
    if (workspace && bytes < NAME_workspace_bytes(threads)) return CAPS_ERROR_WORKSPACE;
    if ((uintptr_t)workspace % 64 != 0) return CAPS_ERROR_ALIGNMENT;
    if (!has_instructions()) return CAPS_ERROR_PROCESSOR;
    void *place = 0;
    if (posix_memalign(&place, 128, sizeof(NAME_context)) != 0) return CAPS_ERROR_MEMORY;
    NAME_context *const context = memset(place, 0, sizeof(NAME_context));
    context->threads = threads;
    context->allocated = workspace ? 0 : room(NAME_workspace_bytes(threads));
    context->workspace = workspace ? workspace : context->allocated;
    void *shares = 0;
    if (!context->workspace || posix_memalign(&shares, 128, sizeof(NAME_share) * CAPS_MOST_WORK * (size_t)threads) != 0) {
        free(context->allocated);
        free(context);
        return CAPS_ERROR_MEMORY;
    }
    context->shares = memset(shares, 0, sizeof(NAME_share) * CAPS_MOST_WORK * (size_t)threads);
    context->bases[0] = context->workspace;
    if (!NAME_pool_start(&context->pool, threads)) {
        free(context->shares);
        free(context->allocated);
        free(context);
        return CAPS_ERROR_SYSTEM;
    }
    /* What lies outside of a loop's times. */
    for (const NAME_fill *fill = NAME_fills; fill->size > 0; ++fill)
        for (int64_t n = 0; n < fill->elements; ++n) memcpy(context->workspace + fill->at + n * fill->size, &fill->bits, (size_t)fill->size);
    *made = context;
    return CAPS_OK;
}

EXPORT void NAME_destroy(NAME_context *context)
{
    if (!context) return;
    NAME_pool_stop(&context->pool);
    free(context->shares);
    free(context->allocated);
    free(context);
}

EXPORT int NAME_refresh(NAME_context *context)
{
    if (!context) return CAPS_ERROR_NULL;
    if (atomic_exchange(&context->is_busy, 1)) return CAPS_ERROR_BUSY;
    context->is_prepared = 0;
    atomic_store(&context->is_busy, 0);
    return CAPS_OK;
}

EXPORT int NAME_step(NAME_context *context, void *const *memories, uint64_t seed, uint64_t step, uint32_t flags)
{
    if (!context || !memories) return CAPS_ERROR_NULL;
    for (int32_t n = 0; n < CAPS_MEMORIES; ++n) {
        if (!memories[n]) return CAPS_ERROR_NULL;
        if ((uintptr_t)memories[n] % NAME_memories[n].alignment != 0) return CAPS_ERROR_ALIGNMENT;
    }
    if (atomic_exchange(&context->is_busy, 1)) return CAPS_ERROR_BUSY;
    for (int32_t n = 0; n < CAPS_MEMORIES; ++n) context->bases[n + 1] = memories[n];
    for (int32_t n = 0; n < CAPS_MASKS; ++n) context->keeps[n] = NAME_keep_of(&NAME_masks[n], seed, step, !(flags & CAPS_NO_DROPOUT));
    /* On Zen 4, what another core has read since is written around the caches ten times as fast. */
    context->late = CAPS_STREAMS && context->threads > 1 && !is_intel();
    context->far = context->late && !NAME_pool_is_near(&context->pool);
    if (!context->is_prepared) {
        NAME_run(context, &NAME_once);
        context->is_prepared = 1;
    }
    NAME_run(context, NAME_schedules[context->threads - 1]);
    atomic_store(&context->is_busy, 0);
    return CAPS_OK;
}

/* Copies a tensor between the order of its dims and its layout. */
static int copy(int32_t number, void *plain, void *laid_out, int packs)
{
    if (number < 0 || number >= CAPS_TENSORS) return CAPS_ERROR_INDEX;
    if (!plain || !laid_out) return CAPS_ERROR_NULL;
    const NAME_tensor *const tensor = &NAME_tensors[number];
    const int32_t last = tensor->rank - 1;
    int64_t at[16] = {0}, elements = 1;
    for (int32_t d = 0; d < tensor->rank; ++d) elements *= tensor->shape[d];
    const int64_t line = tensor->rank > 0 ? tensor->shape[last] : 1;
    char *from = plain, *const base = (char *)laid_out + tensor->offset;
    const size_t size = (size_t)tensor->element_bytes;
    for (int64_t done = 0; done < elements; done += line) {
        char *to = base;
        for (int32_t d = 0; d < last; ++d) {
            const int64_t *const steps = tensor->steps[d];
            to += (at[d] / steps[0] * steps[1] + at[d] % steps[0] * steps[2]) * tensor->element_bytes;
        }
        for (int64_t i = 0; i < line; ++i, from += size) {
            const int64_t *const steps = tensor->rank > 0 ? tensor->steps[last] : 0;
            char *const place = to + (steps ? (i / steps[0] * steps[1] + i % steps[0] * steps[2]) * tensor->element_bytes : 0);
            if (packs) memcpy(place, from, size);
            else memcpy(from, place, size);
        }
        for (int32_t d = last - 1; d >= 0; --d) {
            if (++at[d] < tensor->shape[d]) break;
            at[d] = 0;
        }
    }
    return CAPS_OK;
}

EXPORT int NAME_pack(int32_t tensor, const void *from, void *memory)
{
    return copy(tensor, (void *)(uintptr_t)from, memory, 1);
}

EXPORT int NAME_unpack(int32_t tensor, const void *memory, void *to)
{
    return copy(tensor, to, (void *)(uintptr_t)memory, 0);
}
