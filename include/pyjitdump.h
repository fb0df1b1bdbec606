/* pyjitdump: makes Python functions visible to native profilers.
 *
 * With LD_PRELOAD=libpyjitdump.so nothing of this header is needed. It is for programs that embed
 * CPython and want to switch profiling on and off, and for other JIT compilers that want to tell
 * profilers of their code through the same files.
 *
 *     pyjd_enable();           each Python function called from now on has a native frame of its own
 *     ...
 *     pyjd_disable();          calls cost again what they cost without the library
 *
 * The library takes the settings of the environment variables PYJD_* (see pyjitdump(7)), and like a
 * preloaded one it switches itself on when the first interpreter starts, unless PYJD_ENABLE=0 is set or
 * pyjd_disable() was called before.
 *
 * Errors. Functions that return int return 0 or a negative errno value; pyjd_strerror() words it:
 *     -ESRCH     no CPython in this process, or none initialised where one is needed
 *     -EPERM     the calling thread does not hold the GIL, or has no Python thread state
 *     -ENOTSUP   a CPython version or build that this library does not know
 *     -EBUSY     CPython's own perf support (-X perf) is on in this interpreter
 *     -EINVAL    an argument is out of range
 *     -EIO       all outputs have failed; stderr has one line about each
 *     -ENOMEM    out of memory
 * No function sets errno, raises a Python exception, or writes to stdout.
 */
#ifndef PYJITDUMP_H
#define PYJITDUMP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PYJD_API __attribute__((visibility("default")))
#else
#define PYJD_API
#endif

/* Gives every Python function that is called from now on a native frame with its name. At once in the
 * calling thread's interpreter; in every other interpreter of the process from its next audit event on
 * (an import, an open, a compile...). Idempotent. Frames that already run keep running as they are.
 *
 * Before Py_Initialize it notes the wish and returns 0: interpreters start enabled.
 * Thread rule: hold the GIL (an attached thread state), if Python is initialised.
 * Errors: -ESRCH, -EPERM, -ENOTSUP, -EBUSY, -EIO, -ENOMEM. */
PYJD_API int pyjd_enable(void);

/* Takes the evaluator out again, with the same reach as pyjd_enable(). Names and trampolines stay, so
 * that profiles already taken stay right, and enabling again costs nothing. Idempotent.
 *
 * Before Py_Initialize: interpreters start disabled. Thread rule and errors as above. */
PYJD_API int pyjd_disable(void);

/* 1 if enabled, else 0. Any thread, no GIL needed. */
PYJD_API int pyjd_is_enabled(void);

/* The version of the library that is loaded, "MAJOR.MINOR.PATCH". Static storage. */
PYJD_API const char *pyjd_version(void);

/* One sentence for a value that a function here returned. Static storage; never NULL. */
PYJD_API const char *pyjd_strerror(int error);

/* What the library is doing. */
struct pyjd_status {
    int32_t enabled;            /* as pyjd_is_enabled() */
    int32_t python_minor;       /* 11 for CPython 3.11; 0: no CPython seen yet */
    uint64_t functions;         /* distinct functions with a slot */
    uint64_t overflowed;        /* first calls beyond PYJD_MAX_FUNCTIONS, which share one slot */
    uint64_t foreign;           /* ranges that pyjd_add_code() added */
    uint64_t arena_bytes;       /* address space that trampolines take */
    uint32_t outputs_wanted;    /* set of PYJD_OUTPUT_* that the environment asks for */
    uint32_t outputs_failed;    /* of these, switched off by an error */
    char jitdump_path[256];     /* "" if not open, or too long */
    char map_path[256];         /* likewise */
    char image_path[256];       /* the newest ELF image; likewise */
};

#define PYJD_OUTPUT_ELF     1u
#define PYJD_OUTPUT_JITDUMP 2u
#define PYJD_OUTPUT_MAP     4u

/* Fills in the first `size` bytes of *status: pass sizeof *status, so that a program built with an
 * older header goes on working. Any thread, no GIL needed. Errors: -EINVAL (NULL, or size 0). */
PYJD_API int pyjd_get_status(struct pyjd_status *status, size_t size);

/* The writer interface: one range of machine code that another JIT has made. */
struct pyjd_line {
    uint64_t addr;              /* from this address on ... */
    const char *file;           /* ... the code is of this file, NUL-terminated ... */
    int32_t line;               /* ... and this line, from 1 */
};

struct pyjd_code {
    const void *addr;           /* first byte; `size` bytes must be readable during the call */
    uint32_t size;              /* bytes, from 1 to PYJD_CODE_SIZE_MAX */
    const char *name;           /* symbol name, UTF-8, NUL-terminated, not empty */
    const struct pyjd_line *lines; /* in order of address, or NULL */
    size_t line_count;
    const void *unwind;         /* .eh_frame, directly followed by .eh_frame_hdr; or NULL */
    uint32_t unwind_size;       /* bytes of both together, a multiple of 4 */
    uint32_t unwind_hdr_size;   /* bytes of .eh_frame_hdr */
};

#define PYJD_CODE_SIZE_MAX (64u << 20)

/* Tells every output of a range of code, once it is complete and before it first runs. Addresses in
 * `unwind` are relative, laid out as if .eh_frame began at `addr` + `size` rounded up to 8
 * (jitdump-specification.txt of the Linux perf tool, JIT_CODE_UNWINDING_INFO). Control characters in
 * `name` are escaped. perf maps `unwind` behind the code, so the next range must be no nearer than
 * `size` rounded up to 8 plus `unwind_size` rounded up to 16. The range must never hold other code afterwards: a perf map has no time.
 *
 * Works with and without Python, enabled or not. Copies what it needs.
 * Thread rule: any thread, no GIL needed; not from a signal handler.
 * Errors: -EINVAL, -EIO, -ENOMEM. `size` is sizeof *code. */
PYJD_API int pyjd_add_code(const struct pyjd_code *code, size_t size);

#ifdef __cplusplus
}
#endif

#endif
