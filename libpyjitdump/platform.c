#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Set by the dynamic linker: where the main thread's stack began. */
extern void *__libc_stack_end __attribute__((weak));

enum { UNLIMITED_STACK = 64 << 20 };

uint64_t platform_now(void)
{
    struct timespec ts = {0};
    clock_gettime(CLOCK_MONOTONIC, &ts);
    uint64_t now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
    return now ? now : 1;
}

static double seconds(clockid_t clock)
{
    struct timespec ts = {0};
    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

double platform_process_start(void)
{
    enum { FIELDS_BEFORE = 19 }; /* between the name and starttime, field 22 of proc_pid_stat(5) */
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *at = strrchr(text, ')'); /* the name may hold anything, and ends here */
    for (int i = 0; at && i <= FIELDS_BEFORE; i++)
        at = strchr(at + 1, ' ');
    long ticks = sysconf(_SC_CLK_TCK);
    if (!at || ticks <= 0)
        return 0;
    double started = (double)strtoull(at, NULL, 10) / (double)ticks;
    return seconds(CLOCK_REALTIME) - seconds(CLOCK_BOOTTIME) + started;
}

pid_t platform_tid(void)
{
    return (pid_t)syscall(SYS_gettid); /* glibc has a wrapper only since 2.30 */
}

size_t platform_page_size(void)
{
    long size = sysconf(_SC_PAGESIZE);
    return size > 0 ? (size_t)size : 4096;
}

bool platform_is_secure(void)
{
    return getauxval(AT_SECURE) != 0;
}

int platform_map(size_t size, void **out)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    *out = memory;
    return 0;
}

int platform_make_executable(void *memory, size_t size)
{
    return mprotect(memory, size, PROT_READ | PROT_EXEC) ? -errno : 0;
}

void platform_unmap(void *memory, size_t size)
{
    munmap(memory, size);
}

/* glibc's pthread_getattr_np reads /proc/self/maps for the main thread; this needs no file. */
static int main_stack(uintptr_t *lowest, size_t *size)
{
    struct rlimit limit;
    if (!&__libc_stack_end || !__libc_stack_end || getrlimit(RLIMIT_STACK, &limit))
        return -ENOTSUP;
    uintptr_t end = (uintptr_t)__libc_stack_end;
    size_t most = limit.rlim_cur == RLIM_INFINITY ? UNLIMITED_STACK : (size_t)limit.rlim_cur;
    if (most > end)
        most = end;
    *lowest = end - most;
    *size = most;
    return 0;
}

int platform_stack(uintptr_t *lowest, size_t *size)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);

    /* In the child of a fork from another thread, that thread is the process' first one, but lives on
     * the stack it always had: trust the main stack only when we stand on it. */
    if (platform_tid() == getpid() && main_stack(lowest, size) == 0 && here >= *lowest &&
        here < *lowest + *size)
        return 0;

    pthread_attr_t attr;
    int err = pthread_getattr_np(pthread_self(), &attr);
    if (err)
        return -err;
    void *base = NULL;
    err = pthread_attr_getstack(&attr, &base, size);
    pthread_attr_destroy(&attr);
    *lowest = (uintptr_t)base;
    return -err;
}
