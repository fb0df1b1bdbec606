/* platform: what is asked of the operating system, apart from files (outfile.h).
 *
 * No function here allocates from the heap, takes a lock or writes anything. Those that can fail
 * return 0 or a negative errno value and leave no side effect behind when they fail.
 */
#ifndef PYJD_PLATFORM_H
#define PYJD_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Nanoseconds of CLOCK_MONOTONIC, the clock of `perf record -k 1`. Never 0. */
uint64_t platform_now(void);

/* When this process was forked, in seconds of CLOCK_REALTIME; exec does not change it. 0: not known. Keep
 * in mind that the kernel counts in clock ticks of 10 ms. */
double platform_process_start(void);

/* The kernel's id of the calling thread. */
pid_t platform_tid(void);

size_t platform_page_size(void);

/* True in a set-user-id or otherwise privileged start (AT_SECURE), where this library does nothing. */
bool platform_is_secure(void);

/* Fresh zeroed private memory, readable and writable. `size` is a multiple of the page size. */
int platform_map(size_t size, void **out);

/* Turns memory of platform_map into readable and executable; it is writable no more. */
int platform_make_executable(void *memory, size_t size);

void platform_unmap(void *memory, size_t size);

/* The lowest address and the size of the stack that the calling thread was started with. The main
 * thread's is its present limit (RLIMIT_STACK), or 64 MiB where that is unlimited. */
int platform_stack(uintptr_t *lowest, size_t *size);

#endif
