#include "platform.h"
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t monotonic(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

START_TEST(now_is_the_monotonic_clock)
{
    uint64_t last = monotonic();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = platform_now();
        ck_assert_uint_ne(now, 0);
        ck_assert_uint_ge(now, last);
        last = now;
    }
    ck_assert_uint_le(last, monotonic());
}
END_TEST

static void *tid_of_thread(void *data)
{
    (void)data;
    return (void *)(intptr_t)(platform_tid() == (pid_t)syscall(SYS_gettid) ? platform_tid() : -1);
}

START_TEST(tid)
{
    pthread_t thread;
    void *other = NULL;
    ck_assert_int_eq(platform_tid(), getpid());
    ck_assert_int_eq(pthread_create(&thread, NULL, tid_of_thread, NULL), 0);
    pthread_join(thread, &other);
    ck_assert_int_gt((intptr_t)other, 0);
    ck_assert_int_ne((intptr_t)other, getpid());
}
END_TEST

START_TEST(page_size)
{
    ck_assert_uint_eq(platform_page_size(), (size_t)sysconf(_SC_PAGESIZE));
}
END_TEST

START_TEST(not_secure)
{
    ck_assert(!platform_is_secure());
}
END_TEST

START_TEST(map_then_execute)
{
    size_t size = 3 * platform_page_size();
    char permissions[5];
    void *memory = NULL;
    ck_assert_int_eq(platform_map(size, &memory), 0);
    uint8_t *bytes = memory;
    for (size_t i = 0; i < size; i++)
        ck_assert_uint_eq(bytes[i], 0);
    unit_mapping(memory, permissions, NULL, 0);
    ck_assert_str_eq(permissions, "rw-p");
#if defined(__x86_64__)
    static const uint8_t answer[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov $42,%eax; ret */
    memcpy(bytes, answer, sizeof answer);
#endif
    ck_assert_int_eq(platform_make_executable(memory, size), 0);
    for (size_t at = 0; at < size; at += platform_page_size()) {
        unit_mapping(bytes + at, permissions, NULL, 0);
        ck_assert_str_eq(permissions, "r-xp");
    }
#if defined(__x86_64__)
    int (*function)(void) = (int (*)(void))(uintptr_t)memory;
    ck_assert_int_eq(function(), 42);
#endif
    platform_unmap(memory, size);
    unit_mapping(memory, permissions, NULL, 0);
    ck_assert_str_eq(permissions, "");
}
END_TEST

START_TEST(map_too_much)
{
    void *memory = &memory;
    ck_assert_int_eq(platform_map(SIZE_MAX / 2 / 4096 * 4096, &memory), -ENOMEM);
    ck_assert_ptr_eq(memory, &memory);
}
END_TEST

START_TEST(execute_what_is_not_mapped)
{
    size_t page = platform_page_size();
    void *memory = NULL;
    ck_assert_int_eq(platform_map(page, &memory), 0);
    platform_unmap(memory, page);
    ck_assert_int_eq(platform_make_executable(memory, page), -ENOMEM);
}
END_TEST

/* The stack that platform_stack tells of holds a local variable of the caller. */
static void expect_stack_here(size_t size_at_least)
{
    uintptr_t lowest = 0, here = (uintptr_t)&lowest;
    size_t size = 0;
    ck_assert_int_eq(platform_stack(&lowest, &size), 0);
    ck_assert_uint_gt(here, lowest);
    ck_assert_uint_lt(here, lowest + size);
    ck_assert_uint_ge(size, size_at_least);
}

START_TEST(stack_of_the_main_thread)
{
    struct rlimit limit;
    uintptr_t lowest = 0;
    size_t size = 0;
    ck_assert_int_eq(getrlimit(RLIMIT_STACK, &limit), 0);
    expect_stack_here(0);

    limit.rlim_cur = 4 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_STACK, &limit), 0);
    expect_stack_here(4 << 20);
    ck_assert_int_eq(platform_stack(&lowest, &size), 0);
    ck_assert_uint_eq(size, 4 << 20);

    if (limit.rlim_max == RLIM_INFINITY) {
        limit.rlim_cur = RLIM_INFINITY;
        ck_assert_int_eq(setrlimit(RLIMIT_STACK, &limit), 0);
        expect_stack_here(64 << 20);
        ck_assert_int_eq(platform_stack(&lowest, &size), 0);
        ck_assert_uint_eq(size, 64 << 20);
    }
}
END_TEST

enum { THREAD_STACK = 256 << 10 };

static void *look_at_the_stack(void *data)
{
    uintptr_t lowest = 0;
    size_t size = 0;
    (void)data;
    expect_stack_here(THREAD_STACK);
    ck_assert_int_eq(platform_stack(&lowest, &size), 0);
    ck_assert_uint_le(size, THREAD_STACK + (64 << 10));
    return NULL;
}

START_TEST(stack_of_a_thread)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, THREAD_STACK), 0);
    ck_assert_int_eq(pthread_create(&thread, &attr, look_at_the_stack, NULL), 0);
    pthread_join(thread, NULL);
}
END_TEST

static void *fork_and_look(void *data)
{
    pid_t child = fork();
    if (child == 0) {
        uintptr_t lowest = 0, here = (uintptr_t)&lowest;
        size_t size = 0;
        int err = platform_stack(&lowest, &size);
        _exit(err || here <= lowest || here >= lowest + size);
    }
    waitpid(child, data, 0);
    return NULL;
}

/* There the forking thread has become the process' first one, on the stack it always had. */
START_TEST(stack_in_a_child_of_a_thread)
{
    pthread_t thread;
    int status = -1;
    ck_assert_int_eq(pthread_create(&thread, NULL, fork_and_look, &status), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(status, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("platform");
    TCase *tcase = unit_case(suite, "platform");
    tcase_add_test(tcase, now_is_the_monotonic_clock);
    tcase_add_test(tcase, tid);
    tcase_add_test(tcase, page_size);
    tcase_add_test(tcase, not_secure);
    tcase_add_test(tcase, map_then_execute);
    tcase_add_test(tcase, map_too_much);
    tcase_add_test(tcase, execute_what_is_not_mapped);
    tcase_add_test(tcase, stack_of_the_main_thread);
    tcase_add_test(tcase, stack_of_a_thread);
    tcase_add_test(tcase, stack_in_a_child_of_a_thread);
    return unit_run(suite);
}
