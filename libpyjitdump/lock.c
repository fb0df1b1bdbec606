#include "lock.h"

#include <pthread.h>
#include <time.h>

static pthread_mutex_t mutex;
static pthread_cond_t wake;
static bool taken_for_fork;

static void make(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&mutex, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_cond_init(&wake, NULL);
}

static void before_fork(void)
{
    taken_for_fork = pthread_mutex_lock(&mutex) == 0;
}

static void after_fork_in_parent(void)
{
    if (taken_for_fork)
        pthread_mutex_unlock(&mutex);
}

void lock_start(void)
{
    make();
    pthread_atfork(before_fork, after_fork_in_parent, make);
}

void lock_take(void)
{
    pthread_mutex_lock(&mutex);
}

void lock_release(void)
{
    pthread_mutex_unlock(&mutex);
}

bool lock_wait(void)
{
    enum { MOST_NS = 100000000, SECOND_NS = 1000000000 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += MOST_NS;
    until.tv_sec += until.tv_nsec / SECOND_NS;
    until.tv_nsec %= SECOND_NS;
    return pthread_cond_timedwait(&wake, &mutex, &until) == 0;
}

void lock_wake(void)
{
    pthread_cond_broadcast(&wake);
}
