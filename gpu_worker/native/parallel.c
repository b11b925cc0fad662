/* A thread pool in which nobody waits for a thread that has not begun.
 *
 * An OpenMP team joins when all of its threads have come by, also those that the system has not
 * let run yet; where gateway, scheduler and server share the cores with us, that costs a time slice
 * at every join. Here whoever runs takes the next task, and the caller waits for tasks in progress
 * only. Each thread has a range of the tasks and takes them in order, since neighbours lie one
 * behind the other in memory: read as one stream they come nearly twice as fast. Who has done with
 * its own helps others from the end of theirs. Workers look for work for a while, then sleep: an
 * idle engine takes no processor time. */
#include <pthread.h>
#include <sched.h>

#include "kernels.h"

enum { SPINS = 2000, YIELD_AFTER = 2000, MAX_THREADS = 256 };

/* Who has taken a task knows that the other fields are its job's: they change only when all tasks
 * are done. */
static struct {
    int64_t number, done; /* number: of jobs that were posted */
    int32_t ranges;
    task_body body;
    void *argument;
} job;

/* Of each thread the tasks that nobody has taken yet: the first, above the one behind the last. The
 * caller's range is the first. */
static struct {
    uint64_t tasks;
} __attribute__((aligned(64))) ranges[MAX_THREADS];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static int sleepers, num_workers, max_workers, is_busy;

INLINE void pause_a_moment(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes the first task of a thread's own range, or the last of another's; -1 if it has none left. */
static int64_t take(int32_t range, int is_own) {
    uint64_t tasks = __atomic_load_n(&ranges[range].tasks, __ATOMIC_ACQUIRE), fewer;
    do {
        if (tasks >> 32 == (uint32_t)tasks) return -1;
        fewer = is_own ? tasks + (1ULL << 32) : tasks - 1;
    } while (!__atomic_compare_exchange_n(&ranges[range].tasks, &tasks, fewer, 1, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return (int64_t)(is_own ? tasks >> 32 : (uint32_t)fewer);
}

/* Runs one task of the current job, or returns 0 if none is left to take. */
static int run_one(int32_t own) {
    int32_t count = __atomic_load_n(&job.ranges, __ATOMIC_ACQUIRE);
    int64_t task = take(own, 1);
    for (int32_t i = 1; task < 0 && i < count; i++) task = take((own + i) % count, 0);
    if (task < 0) return 0;
    job.body(task, job.argument);
    __atomic_fetch_add(&job.done, 1, __ATOMIC_ACQ_REL);
    return 1;
}

static int has_news(int32_t worker, int64_t seen) {
    return worker < __atomic_load_n(&max_workers, __ATOMIC_RELAXED) &&
           __atomic_load_n(&job.number, __ATOMIC_SEQ_CST) != seen;
}

static void sleep_until_posted(int32_t worker, int64_t seen) {
    pthread_mutex_lock(&mutex);
    __atomic_fetch_add(&sleepers, 1, __ATOMIC_SEQ_CST);
    while (!has_news(worker, seen)) pthread_cond_wait(&posted, &mutex);
    __atomic_fetch_sub(&sleepers, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&mutex);
}

static void *work(void *pointer) {
    int32_t worker = (int32_t)(intptr_t)pointer;
    int64_t seen = 0;
    for (int spins = 0;;) {
        if (has_news(worker, seen)) {
            seen = __atomic_load_n(&job.number, __ATOMIC_ACQUIRE);
            while (run_one(worker + 1)) {
            }
            spins = 0;
        } else if (++spins < SPINS) {
            pause_a_moment();
        } else {
            sleep_until_posted(worker, seen);
            spins = 0;
        }
    }
    return NULL;
}

/* Lets `threads` threads work, the caller's included; at most MAX_THREADS. */
EXPORT void set_threads(int threads) {
    threads = MIN(threads, MAX_THREADS);
    __atomic_store_n(&max_workers, threads - 1, __ATOMIC_RELAXED);
    for (; num_workers < threads - 1; num_workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)num_workers)) break;
        pthread_detach(thread);
    }
}

static void run_parallel(int64_t count, task_body body, void *argument) {
    int32_t threads = max_workers + 1;
    job.body = body;
    job.argument = argument;
    __atomic_store_n(&job.done, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&job.ranges, threads, __ATOMIC_RELEASE);
    for (int64_t i = 0; i < threads; i++) {
        uint64_t first = (uint64_t)(count * i / threads), last = (uint64_t)(count * (i + 1) / threads);
        __atomic_store_n(&ranges[i].tasks, first << 32 | last, __ATOMIC_RELEASE);
    }
    __atomic_fetch_add(&job.number, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&posted);
        pthread_mutex_unlock(&mutex);
    }
    while (run_one(0)) {
    }
    for (int spins = 0; __atomic_load_n(&job.done, __ATOMIC_ACQUIRE) < count; spins++)
        if (spins < YIELD_AFTER)
            pause_a_moment();
        else
            sched_yield(); /* the worker may need this core to finish */
}

/* A second caller at the same time works alone. */
void run_tasks(int64_t count, task_body body, void *argument) {
    int is_alone = max_workers < 1 || count < 2;
    if (!is_alone && !__atomic_exchange_n(&is_busy, 1, __ATOMIC_ACQUIRE)) {
        run_parallel(count, body, argument);
        __atomic_store_n(&is_busy, 0, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t task = 0; task < count; task++) body(task, argument);
}
