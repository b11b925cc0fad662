/* A thread pool in which nobody waits for a thread that has not begun.
 *
 * An OpenMP team joins when all of its threads have come by, also those that the system has not
 * let run yet; where gateway, scheduler and server share the cores with us, that costs a time slice
 * at every join. Here whoever runs takes the next task, and the caller waits for tasks in progress
 * only. Workers look for work for a while, then sleep: an idle engine takes no processor time. */
#include <pthread.h>
#include <sched.h>

#include "kernels.h"

enum { SPINS = 2000, YIELD_AFTER = 2000 };

/* `ticket` is the number of the job above the count of its tasks that nobody has taken yet. Who has
 * taken one knows that the other fields are its job's: they change only when all tasks are done. */
static struct {
    uint64_t ticket;
    int64_t count, done;
    task_body body;
    void *argument;
} job;

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

static int may_work(intptr_t worker) {
    return worker < __atomic_load_n(&max_workers, __ATOMIC_RELAXED) &&
           (uint32_t)__atomic_load_n(&job.ticket, __ATOMIC_SEQ_CST) > 0;
}

/* Runs one task of the current job, or returns 0 if none is left to take. */
static int run_one(void) {
    uint64_t ticket = __atomic_load_n(&job.ticket, __ATOMIC_ACQUIRE);
    do {
        if ((uint32_t)ticket == 0) return 0;
    } while (!__atomic_compare_exchange_n(&job.ticket, &ticket, ticket - 1, 1, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    job.body(job.count - (int64_t)(uint32_t)ticket, job.argument);
    __atomic_fetch_add(&job.done, 1, __ATOMIC_ACQ_REL);
    return 1;
}

static void sleep_until_posted(intptr_t worker) {
    pthread_mutex_lock(&mutex);
    __atomic_fetch_add(&sleepers, 1, __ATOMIC_SEQ_CST);
    while (!may_work(worker)) pthread_cond_wait(&posted, &mutex);
    __atomic_fetch_sub(&sleepers, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&mutex);
}

static void *work(void *pointer) {
    intptr_t worker = (intptr_t)pointer;
    for (int spins = 0;;) {
        if (may_work(worker) && run_one()) {
            spins = 0;
        } else if (++spins < SPINS) {
            pause_a_moment();
        } else {
            sleep_until_posted(worker);
            spins = 0;
        }
    }
    return NULL;
}

/* Lets `threads` threads work, the caller's included. */
EXPORT void set_threads(int threads) {
    __atomic_store_n(&max_workers, threads - 1, __ATOMIC_RELAXED);
    for (; num_workers < threads - 1; num_workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)num_workers)) break;
        pthread_detach(thread);
    }
}

static void run_parallel(int64_t count, task_body body, void *argument) {
    job.count = count;
    job.body = body;
    job.argument = argument;
    __atomic_store_n(&job.done, 0, __ATOMIC_RELAXED);
    uint64_t number = (job.ticket >> 32) + 1;
    __atomic_store_n(&job.ticket, number << 32 | (uint64_t)count, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&posted);
        pthread_mutex_unlock(&mutex);
    }
    while (run_one()) {
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
