/* The audit hook, what finalisation does to it, and the switch.
 *
 * The list of audit hooks is the runtime's. A hook that is added before initialisation has its node
 * allocated by the raw allocator of that moment, and the node is freed at finalisation by the raw
 * allocator of that one. With PYTHONMALLOC=debug or -X dev these are two, and the debug one aborts the
 * process over memory that is not its own. So the node's address is learnt while it is made, and just
 * before hooks are freed (there is an audit event for it), if the allocators differ, a raw allocator goes
 * in that sends this one block to where it came from, and then leaves.
 *
 * Finalisation frees all hooks. An exit function of the runtime, which runs after that, adds ours again
 * for the Py_Initialize that may follow.
 */
#include "arming.h"

#include "cpython.h"
#include "evalhook.h"
#include "interp.h"
#include "log.h"
#include "session.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum { NOT_SAID, ON, OFF };
enum { NOBODY = -1 };

static _Atomic int wish = NOT_SAID;   /* NOT_SAID: what PYJD_ENABLE says */
static _Atomic bool started;          /* there is a CPython, and the hook is in it */
static _Atomic int64_t settled = NOBODY; /* id of the interpreter last found to be as wished */
static atomic_flag busy = ATOMIC_FLAG_INIT;

/* ------------------------------------------------------------------- the hook's node, its allocation */

static struct py_allocator at_birth;  /* the raw allocator that made the node */
static struct py_allocator current;   /* the one that stands in for it later */
static void *_Atomic node;

static void *birth_malloc(void *ctx, size_t size)
{
    void *memory = at_birth.malloc(ctx, size);
    node = memory;
    return memory;
}

static void *forward_malloc(void *ctx, size_t size)
{
    return current.malloc(ctx, size);
}

static void *forward_calloc(void *ctx, size_t count, size_t size)
{
    return current.calloc(ctx, count, size);
}

static void *forward_realloc(void *ctx, void *memory, size_t size)
{
    return current.realloc(ctx, memory, size);
}

static void forward_free(void *ctx, void *memory)
{
    if (memory && memory == node) {
        node = NULL;
        at_birth.free(at_birth.ctx, memory);
        cpython.PyMem_SetAllocator(PY_ALLOCATOR_RAW, &current);
        return;
    }
    current.free(ctx, memory);
}

static void hooks_are_about_to_be_freed(void)
{
    cpython.PyMem_GetAllocator(PY_ALLOCATOR_RAW, &current);
    if (!node || (current.free == at_birth.free && current.ctx == at_birth.ctx))
        return;
    struct py_allocator forwarding = {current.ctx, forward_malloc, forward_calloc, forward_realloc,
                                      forward_free};
    cpython.PyMem_SetAllocator(PY_ALLOCATOR_RAW, &forwarding);
}

/* -------------------------------------------------------------------------------------- the switch */

static bool is_wished(void)
{
    int said = wish;
    return said == NOT_SAID ? session_config()->enable : said == ON;
}

/* Interpreters are told apart by their ids: addresses come round again. */
static int64_t current_interpreter(void)
{
    return cpython.PyInterpreterState_GetID(cpython.PyInterpreterState_Get());
}

/* Makes the calling thread's interpreter as wished. */
static int settle(int64_t interpreter)
{
    /* Making it so may raise audit events of its own, and another thread may be at it. */
    if (atomic_flag_test_and_set(&busy))
        return 0;
    int err = 0;
    if (!is_wished())
        evalhook_remove();
    else if (!cpython.layout)
        err = -ENOTSUP;
    else
        err = session_is_alive() ? evalhook_install() : -EIO;
    settled = interpreter;
    atomic_flag_clear(&busy);
    return err;
}

static void say_unknown(void)
{
    log_line(LOG_WARN, "%.12s is a CPython that this version of libpyjitdump (%s) does not know; doing "
             "nothing", cpython.Py_GetVersion(), PYJD_VERSION);
}

/* ---------------------------------------------------------------------------------------- the hook */

static void add_hook(void);

/* Runs at the very end of Py_Finalize, when the hooks are gone. */
static void finalized(void)
{
    interp_forget_all();
    settled = NOBODY;
    add_hook();
}

static void main_interpreter_starts(void)
{
    cpython.Py_AtExit(finalized); /* if there is no room for it, a second Py_Initialize goes unseen */
    if (!cpython.layout && is_wished())
        say_unknown();
}

static int on_audit(const char *event, struct py_object *args, void *data)
{
    static _Atomic bool in_main;
    (void)args;
    (void)data;
    if (event[0] == 'c' && strcmp(event, "cpython._PySys_ClearAuditHooks") == 0) {
        in_main = false;
        hooks_are_about_to_be_freed();
        return 0;
    }
    if (!cpython.PyThreadState_GetUnchecked())
        return 0;
    if (!in_main) {
        in_main = true;
        main_interpreter_starts();
    }
    int64_t interpreter = current_interpreter();
    if (interpreter != settled && cpython.layout)
        settle(interpreter);
    return 0;
}

static void add_hook(void)
{
    /* Once Python runs, its raw allocator is the one it will end with, and other threads use it. */
    if (cpython.Py_IsInitialized()) {
        if (!cpython.PyGILState_Check()) {
            log_line(LOG_WARN, "loaded by a thread without the GIL; call pyjd_enable() to begin");
            return;
        }
        if (cpython.PySys_AddAuditHook(on_audit, NULL))
            cpython.PyErr_Clear();
        return;
    }
    cpython.PyMem_GetAllocator(PY_ALLOCATOR_RAW, &at_birth);
    struct py_allocator watching = at_birth;
    watching.malloc = birth_malloc;
    cpython.PyMem_SetAllocator(PY_ALLOCATOR_RAW, &watching);
    int err = cpython.PySys_AddAuditHook(on_audit, NULL);
    cpython.PyMem_SetAllocator(PY_ALLOCATOR_RAW, &at_birth);
    if (err)
        log_line(LOG_WARN, "CPython takes no audit hook; call pyjd_enable() to begin");
}

void arming_start(void)
{
    started = true;
    if (!cpython.is_complete) {
        say_unknown(); /* what the hook needs may be missing */
        return;
    }
    evalhook_start(session_publish);
    add_hook();
}

int arming_set_enabled(bool enabled)
{
    if (!started)
        return -ESRCH;
    if (!cpython.layout)
        return -ENOTSUP;
    bool runs = cpython.Py_IsInitialized();
    if (runs && (!cpython.PyGILState_Check() || !cpython.PyThreadState_GetUnchecked()))
        return -EPERM;
    wish = enabled ? ON : OFF;
    settled = NOBODY;
    if (!runs)
        return 0;
    return settle(current_interpreter());
}

bool arming_is_enabled(void)
{
    return started && cpython.layout && is_wished();
}
