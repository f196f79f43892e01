/* Threads that work together: the caller is worker 0, and helpers stay awake from one group of kernels to the next, so that starting one
   takes a microsecond. A waiting thread spins for a bounded time and sleeps as soon as another process wants its core. Nobody waits for a
   helper that has not begun: the caller does its part when it has done its own. */
#define _GNU_SOURCE
#include "internal.h"
#include <sched.h>
#include <time.h>

/* Looks at a number that others change before the core is offered to others. */
#define LOOKS 4096
/* How long a waiting thread yields its core before it sleeps, in nanoseconds; a yield that takes as long as TAKEN was used by another
   thread, and then none follows for CROWDED. */
#define AWAKE UINT64_C(2000000)
#define TAKEN UINT64_C(50000)
#define CROWDED UINT64_C(50000000)

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb")
#else
#define RELAX() (void)0
#endif

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Whether a number is, or is no longer, a value. */
static int is_so(_Atomic uint32_t *number, uint32_t value, int equal)
{
    return (atomic_load_explicit(number, memory_order_acquire) == value) == equal;
}

static int looked(NAME_pool *pool, _Atomic uint32_t *number, uint32_t value, int equal)
{
    for (int n = 0; n < LOOKS; ++n) {
        if (is_so(number, value, equal)) return 1;
        RELAX();
    }
    const uint64_t began = now();
    if (began < atomic_load_explicit(&pool->crowded, memory_order_relaxed)) return 0;
    for (uint64_t before = began; before - began < AWAKE;) {
        sched_yield();
        const uint64_t then = now();
        if (then - before > TAKEN) atomic_store_explicit(&pool->crowded, then + CROWDED, memory_order_relaxed);
        if (is_so(number, value, equal)) return 1;
        if (then - before > TAKEN) return 0;
        before = then;
    }
    return 0;
}

static void wait_for(NAME_pool *pool, NAME_sleepers *sleepers, _Atomic uint32_t *number, uint32_t value, int equal)
{
    if (looked(pool, number, value, equal)) return;
    atomic_fetch_add(&sleepers->count, 1);
    /* Either this thread sees the change, or the thread that made it sees that this one sleeps. */
    atomic_thread_fence(memory_order_seq_cst);
    pthread_mutex_lock(&sleepers->lock);
    while (!is_so(number, value, equal)) pthread_cond_wait(&sleepers->woken, &sleepers->lock);
    pthread_mutex_unlock(&sleepers->lock);
    atomic_fetch_sub(&sleepers->count, 1);
}

static void wake(NAME_sleepers *sleepers)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&sleepers->count) == 0) return;
    pthread_mutex_lock(&sleepers->lock);
    pthread_mutex_unlock(&sleepers->lock);
    pthread_cond_broadcast(&sleepers->woken);
}

/* The right to do a worker's part in a round; one thread gets it. */
static int claim(NAME_pool *pool, int worker, uint32_t round)
{
    uint32_t last = round - 1;
    return atomic_compare_exchange_strong_explicit(&pool->begun[worker].round, &last, round, memory_order_acq_rel, memory_order_relaxed);
}

/* Does the part of a helper, which this thread has claimed; 0 if helpers are sent home. */
static int part(NAME_pool *pool, int worker)
{
    NAME_work *const work = pool->work;
    if (work) work(pool->of, worker);
    if (atomic_fetch_sub_explicit(&pool->left, 1, memory_order_acq_rel) == 1) wake(&pool->leader);
    return work != 0;
}

static void *serve(void *of)
{
    NAME_helper *const helper = of;
    NAME_pool *const pool = helper->pool;
    for (uint32_t seen = 0;;) {
        wait_for(pool, &pool->helpers, &pool->round, seen, 0);
        /* A late helper finds the newest round: its parts of earlier rounds are done. */
        seen = atomic_load_explicit(&pool->round, memory_order_acquire);
        if (claim(pool, helper->worker, seen) && !part(pool, helper->worker)) return 0;
    }
}

static void lead(NAME_pool *pool, NAME_work *work, void *of)
{
    pool->work = work;
    pool->of = of;
    atomic_store_explicit(&pool->left, (uint32_t)pool->started, memory_order_relaxed);
    const uint32_t round = atomic_fetch_add_explicit(&pool->round, 1, memory_order_release) + 1;
    wake(&pool->helpers);
    if (work) {
        work(of, 0);
        for (int worker = 1; worker < pool->workers; ++worker)
            if (claim(pool, worker, round)) part(pool, worker);
    }
    wait_for(pool, &pool->leader, &pool->left, 0, 1);
}

/* Has every worker's part done, and waits for all. */
void NAME_pool_run(NAME_pool *pool, NAME_work *work, void *of)
{
    if (pool->workers == 1) work(of, 0);
    else lead(pool, work, of);
}

static int sleepers_start(NAME_sleepers *sleepers)
{
    if (pthread_mutex_init(&sleepers->lock, 0) != 0) return 0;
    if (pthread_cond_init(&sleepers->woken, 0) == 0) return 1;
    pthread_mutex_destroy(&sleepers->lock);
    return 0;
}

static void sleepers_stop(NAME_sleepers *sleepers)
{
    pthread_cond_destroy(&sleepers->woken);
    pthread_mutex_destroy(&sleepers->lock);
}

/* Starts the helpers of a pool whose bytes are all 0; 0 if the system refuses. */
int NAME_pool_start(NAME_pool *pool, int workers)
{
    pool->workers = workers;
    if (!sleepers_start(&pool->helpers)) return 0;
    if (!sleepers_start(&pool->leader)) {
        sleepers_stop(&pool->helpers);
        return 0;
    }
    for (int worker = 1; worker < workers; ++worker) {
        NAME_helper *const helper = &pool->helper[worker];
        *helper = (NAME_helper){.pool = pool, .worker = worker};
        if (pthread_create(&helper->thread, 0, serve, helper) != 0) {
            NAME_pool_stop(pool);
            return 0;
        }
        ++pool->started;
    }
    return 1;
}

void NAME_pool_stop(NAME_pool *pool)
{
    if (pool->started > 0) lead(pool, 0, 0);
    for (int worker = 1; worker <= pool->started; ++worker) pthread_join(pool->helper[worker].thread, 0);
    sleepers_stop(&pool->leader);
    sleepers_stop(&pool->helpers);
}

/* Whether cores share a cache, by the round trip of a line from one to another. Processors of virtual machines move, so the answer holds
   for some time only. A trip within one cache takes 50 to 70 ns on a Zen 4, one beyond it 250 to 340. */
#define HOLDS UINT64_C(100000000)
#define NEAR UINT64_C(130)
#define PATIENCE UINT64_C(200000)
#define OVER UINT64_MAX
enum { TRIPS = 8, TIMES = 4 };

static int take_turn(_Atomic uint64_t *line, uint64_t turn, uint64_t till)
{
    for (uint64_t looks = 1;; ++looks) {
        const uint64_t at = atomic_load_explicit(line, memory_order_acquire);
        if (at == turn) {
            atomic_store_explicit(line, turn + 1, memory_order_release);
            return 1;
        }
        if (at == OVER || (looks % 256 == 0 && now() > till)) {
            atomic_store_explicit(line, OVER, memory_order_relaxed);
            return 0;
        }
        RELAX();
    }
}

static void exchange(void *of, int worker)
{
    NAME_pool *const pool = of;
    const uint64_t till = now() + PATIENCE;
    if (worker > 0) {
        for (uint64_t n = 0; n < 1 + TRIPS * TIMES; ++n)
            if (!take_turn(&pool->turns[worker].turn, 2 * n + 1, till)) return;
        return;
    }
    int near = 1;
    for (int other = 1; other < pool->workers && near; ++other) {
        _Atomic uint64_t *const line = &pool->turns[other].turn;
        uint64_t next = 0, fastest = UINT64_MAX;
        near = take_turn(line, next, till), next += 2;
        for (int n = 0; n < TIMES && near; ++n) {
            const uint64_t start = now();
            for (int trip = 0; trip < TRIPS && near; ++trip) near = take_turn(line, next, till), next += 2;
            const uint64_t took = now() - start;
            fastest = took < fastest ? took : fastest;
        }
        near = near && fastest / TRIPS < NEAR;
    }
    for (int other = 1; other < pool->workers; ++other) atomic_store_explicit(&pool->turns[other].turn, OVER, memory_order_relaxed);
    pool->near = near;
}

int NAME_pool_is_near(NAME_pool *pool)
{
    if (pool->workers < 2) return 1;
    const uint64_t then = now();
    if (pool->asked == 0 || then - pool->asked > HOLDS) {
        for (int worker = 1; worker < pool->workers; ++worker) atomic_store_explicit(&pool->turns[worker].turn, 0, memory_order_relaxed);
        NAME_pool_run(pool, exchange, pool);
        pool->asked = now();
    }
    return pool->near;
}
