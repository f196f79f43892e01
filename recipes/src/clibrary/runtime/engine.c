/* Runs a schedule: group by group what the caller does first, then what all workers do, and a barrier. */
#include "internal.h"

typedef struct {
    enum { ALL, TAKEN, ALONG } how;
    NAME_share *shares;
    int64_t piece, from, to;
} Share;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int take(NAME_share *share, int64_t piece, int64_t *from, int64_t *to)
{
    /* Shares that are used up are only looked at. */
    if (atomic_load_explicit(&share->next, memory_order_relaxed) >= share->end) return 0;
    *from = atomic_fetch_add_explicit(&share->next, piece, memory_order_relaxed);
    *to = least(share->end, *from + piece);
    return *from < share->end;
}

/* The next piece of a worker: of its own share, then of what others have left unless all keep to their own. */
static int next(const NAME_context *context, const Share *share, int worker, int own, int64_t *from, int64_t *to)
{
    for (int n = 0; n < (own ? 1 : context->threads); ++n)
        if (take(&share->shares[(worker + n) % context->threads], share->piece, from, to)) return 1;
    return 0;
}

/* Sets one worker's partial results to the identities. */
static void reset(const NAME_kernel *kernel, char *scratch)
{
    for (int32_t n = 0; n < kernel->partial_count; ++n) {
        const NAME_partial *const partial = &kernel->partials[n];
        for (int64_t i = 0; i < partial->elements; ++i) {
            if (partial->total >= 0) ((double *)(scratch + partial->total))[i] = 0;
            if (kernel->is_double) ((double *)(scratch + partial->at))[i] = partial->identity;
            else ((float *)(scratch + partial->at))[i] = (float)partial->identity;
        }
    }
}

static void run_stage(NAME_context *context, const NAME_launch *launch, const NAME_stage *stage, int worker, Share share)
{
    const NAME_kernel *const kernel = &NAME_kernels[launch->kernel];
    char *p[CAPS_MOST_ARGUMENTS + 1];
    for (int32_t n = 0; n < kernel->arguments; ++n) {
        const NAME_address address = NAME_addresses[launch->address + n];
        p[n] = context->bases[address.base] + address.offset;
    }
    p[kernel->arguments] = context->workspace + CAPS_SHARED_AT + launch->shared;
    char *const own = context->workspace + CAPS_OWN_AT + launch->own, *const mine = own + worker * (int64_t)CAPS_OWN_STRIDE;
    const NAME_host host = {
        .keep = context->keeps + kernel->first_mask,
        .row = NAME_draw_row,
        .stream = NAME_stream,
        .streams = kernel->streams || context->far,
        .late = context->late,
        .around = context->far ? NAME_stream : 0,
        .pack = kernel->pack,
        .pack_lines = kernel->pack_lines,
        .gemm = kernel->gemm,
    };
    int64_t from, to;
    switch (stage->kind) {
    case PREPARE:
        if (share.how == TAKEN)
            while (next(context, &share, worker, 0, &from, &to)) kernel->prepare(p, kernel->integers, &host, from, to);
        else kernel->prepare(p, kernel->integers, &host, 0, kernel->preparations);
        NAME_fence();
        break;
    case POINTS:
        if (share.how == TAKEN) {
            reset(kernel, mine);
            /* Where partial results are added up, which worker does what must not depend on chance. */
            while (next(context, &share, worker, kernel->partial_count > 0, &from, &to))
                kernel->kernel(p, kernel->integers, &host, mine, from, to);
        } else if (share.how == ALL) {
            for (int w = 0; w < context->threads; ++w) reset(kernel, own + w * (int64_t)CAPS_OWN_STRIDE);
            kernel->kernel(p, kernel->integers, &host, mine, 0, kernel->points);
        } else {
            reset(kernel, mine);
            from = share.from / kernel->step * kernel->points_of_step;
            to = (share.to + kernel->step - 1) / kernel->step * kernel->points_of_step;
            if (from < to) kernel->kernel(p, kernel->integers, &host, mine, from, to);
        }
        if (kernel->streams || context->late) NAME_fence();
        break;
    case COMBINE:
        for (int32_t which = stage->from; which < stage->to; ++which)
            kernel->finish(p, kernel->integers, own, CAPS_OWN_STRIDE, context->threads, which, 0, kernel->partials[which].steps);
        break;
    case COMBINE_SHARED: {
        const int64_t steps = kernel->partials[stage->from].steps, workers = context->threads;
        from = share.how == ALL ? 0 : steps * worker / workers;
        to = share.how == ALL ? steps : steps * (worker + 1) / workers;
        kernel->finish(p, kernel->integers, own, CAPS_OWN_STRIDE, workers, stage->from, from, to);
        break;
    }
    default:
        kernel->scatter(p, stage->kind == SCATTER_COPY, share.how == ALL ? 0 : worker, share.how == ALL ? 1 : context->threads);
    }
}

static void run_item(NAME_context *context, const NAME_item *item, int worker, Share share)
{
    const NAME_launch *const launch = &NAME_launches[item->launch];
    const NAME_kernel *const kernel = &NAME_kernels[launch->kernel];
    if (item->phase >= 0) {
        run_stage(context, launch, &kernel->stages[item->phase], worker, share);
        return;
    }
    for (int32_t n = 0; n < kernel->stage_count; ++n) run_stage(context, launch, &kernel->stages[n], worker, share);
}

/* Where a worker's range of an index begins: a multiple of the step, as equal as can be. */
static int64_t bound(const NAME_item *item, int worker, int workers)
{
    if (worker == workers) return item->size;
    const double equal = (double)item->size * worker / workers;
    return least((int64_t)(equal / (double)item->step + 0.5) * item->step, item->size);
}

static void run_group(void *of, int worker)
{
    NAME_context *const context = of;
    for (int32_t n = 0; n < context->group->work_count; ++n) {
        const NAME_item *const item = &context->running->items[context->group->work + n];
        Share share = {.how = TAKEN, .shares = context->shares + (int64_t)n * context->threads};
        if (item->size > 0) {
            share = (Share){.how = ALONG, .from = bound(item, worker, context->threads), .to = bound(item, worker + 1, context->threads)};
        } else if (item->spread == ALONE) {
            if (worker > 0) continue;
            share = (Share){.how = ALL};
        } else if (item->spread == ITEMS) {
            const int64_t each = item->count / context->threads;
            share.piece = item->parts > each ? 1 : item->count / (context->threads * item->parts);
        }
        run_item(context, item, worker, share);
    }
}

/* Gives each worker its share of every item; whether any other than the first has something to do. */
static int give_out(NAME_context *context)
{
    int shared = 0;
    for (int32_t n = 0; n < context->group->work_count; ++n) {
        const NAME_item *const item = &context->running->items[context->group->work + n];
        shared |= item->size > 0 || item->spread != ALONE;
        NAME_share *const shares = context->shares + (int64_t)n * context->threads;
        const int64_t count = item->spread == ITEMS && item->size == 0 ? item->count : 0;
        for (int64_t worker = 0; worker < context->threads; ++worker) {
            atomic_store_explicit(&shares[worker].next, count * worker / context->threads, memory_order_relaxed);
            shares[worker].end = count * (worker + 1) / context->threads;
        }
    }
    return shared;
}

void NAME_run(NAME_context *context, const NAME_schedule *schedule)
{
    context->running = schedule;
    for (int32_t g = 0; g < schedule->group_count; ++g) {
        context->group = &schedule->groups[g];
        for (int32_t n = 0; n < context->group->before_count; ++n)
            run_item(context, &schedule->items[context->group->before + n], 0, (Share){.how = ALL});
        if (context->group->work_count == 0) continue;
        if (give_out(context)) NAME_pool_run(&context->pool, run_group, context);
        else run_group(context, 0);
    }
}
