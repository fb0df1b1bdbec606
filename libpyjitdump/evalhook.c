/* The evaluator.
 *
 * The C stack of a Python function g called by f, on CPython 3.11 and later, without and with us:
 *
 *     _PyEval_EvalFrameDefault   runs f and g        _PyEval_EvalFrameDefault   runs g
 *     ...                                            py::g:/srv/app.py          trampoline
 *     main                                           _PyFunction_Vectorcall, or the like
 *                                                    _PyEval_EvalFrameDefault   runs f
 *                                                    py::f:/srv/app.py          trampoline
 *                                                    ...
 *                                                    main
 *
 * The evaluator itself is not there: it finds the trampoline in the code object's co_extra and leaves by
 * a jump, so that the trampoline returns to the evaluator's caller. (The build makes sure of the jump by
 * its flags, and a test looks at the machine code.)
 *
 * Two ways through:
 *   fast_VERSION   reads the slot with constants for offsets, for code-extra index 0, which we have when
 *                  we are first to ask, and the default evaluator beneath
 *   general        the same for any index and any evaluator beneath, through CPython's API; and the first
 *                  call of a function: name, publish, store the slot, run
 *
 * Deep recursion. An evaluator stops CPython from running Python-to-Python calls in one C frame, so what
 * took no C stack takes about 600 bytes a call, and what ran without us would overflow the stack, or hit
 * CPython's guard against that. So past a threshold of used C stack the evaluator beneath is put back
 * until the frame at hand returns; calls below it are CPython's own again, and have no names.
 */
#include "evalhook.h"

#include "arch/arch.h"
#include "interp.h"
#include "log.h"
#include "platform.h"
#include "qualname.h"

#include <errno.h>
#include <stdatomic.h>

typedef struct py_object *(*trampoline)(void *a, void *b, void *c, py_evaluator target);

static evalhook_publisher publish;
static py_evaluator default_evaluator; /* a copy close to the hot path */
static py_evaluator fast;              /* of this version; NULL: general only */

enum { UNPROVEN, PROVEN, REFUTED };
static _Atomic int code_layout, frame_layout;

/* The stack pointer below which recursion is deep. All ones in a new thread: the first call in it goes
 * the deep way, which sets it. Initial-exec, so that reading it is one instruction; the library is there
 * from the start of the process, or its few bytes fit what glibc keeps for late comers. */
static __thread uintptr_t stack_floor __attribute__((tls_model("initial-exec"))) = UINTPTR_MAX;
static __thread uintptr_t stack_top; /* where the stack pointer was when that was set */

/* ------------------------------------------------------------------------------------ the evaluator */

static void *frame_of(void *a, void *b)
{
    return cpython.minor == 8 ? a : b;
}

/* Stands in the place of a slot where none could be had, so that the function is not tried again. */
static struct py_object *pass_through(void *a, void *b, void *c, py_evaluator target)
{
    return target(a, b, c);
}

/* The slot stored with a code object, or NULL. */
static trampoline stored_slot(struct py_object *code, ptrdiff_t index)
{
    void *slot = NULL;
    if (cpython.Code_GetExtra(code, index, &slot))
        cpython.PyErr_Clear();
    return (trampoline)slot;
}

/* First call: names, publishes, stores. An exception may be set (throwflag): it is kept out of the way. */
static trampoline make_slot(struct py_object *code, struct interp *interp)
{
    struct py_object *type, *value, *traceback;
    struct codename name;
    int saved = errno;

    cpython.PyErr_Fetch(&type, &value, &traceback);
    codename_read(code, &name);
    void *made = NULL;
    int err = publish(&name, &made);
    trampoline slot = err ? pass_through : (trampoline)made;
    if (err != -EAGAIN && cpython.Code_SetExtra(code, interp->index, (void *)slot))
        cpython.PyErr_Clear(); /* out of memory: the next call tries again */
    cpython.PyErr_Restore(type, value, traceback);
    errno = saved;
    return slot;
}

/* Half-way between naming every frame of deep recursion and leaving C code the stack that it has without
 * us: 1 MiB below the first Python call in the thread, or a quarter of what is left there. On 3.12, which
 * counts C recursion in calls, 96 KiB of them are a fifth of what it allows. (perf copies 64 KiB.) */
static void set_stack_floor(void)
{
    enum { USUAL = 1 << 20, ON_3_12 = 96 << 10 };
    uintptr_t lowest = 0;
    size_t size = 0;
    int saved = errno;
    size_t threshold = cpython.minor == 12 ? ON_3_12 : USUAL;
    uintptr_t here = arch_stack_pointer();

    /* A stack of the program's own making, of which nothing is known, gets little. */
    size_t left = 4 * (64 << 10);
    if (platform_stack(&lowest, &size) == 0 && here >= lowest && here < lowest + size)
        left = here - lowest;
    if (threshold > left / 4)
        threshold = left / 4;
    stack_floor = here - threshold;
    stack_top = here;
    errno = saved;
}

/* The only place where we are on the stack ourselves. */
static __attribute__((noinline)) struct py_object *run_deep(void *a, void *b, void *c,
                                                            struct interp *interp)
{
    struct py_interp *address = interp->address;
    py_evaluator beneath = interp->beneath, now = NULL;

    /* Another evaluator over ours is not ours to replace. */
    if (!cpython_get_evaluator(address, &now) || now != interp->ours)
        return beneath(a, b, c);
    /* Two units for each frame above, which takes 384 bytes of stack or more. */
    int credit = (int)((stack_top - arch_stack_pointer()) / 192);
    cpython_set_evaluator(address, beneath);
    cpython_credit_recursion(credit);
    struct py_object *result = beneath(a, b, c);
    cpython_credit_recursion(-credit);
    if (interp->wanted && cpython_get_evaluator(address, &now) && now == beneath)
        cpython_set_evaluator(address, interp->ours);
    return result;
}

/* Everything that the fast way does not do: first calls, deep recursion, a code-extra index other than 0,
 * an evaluator beneath that is not the default one, free-threaded builds. */
static __attribute__((noinline)) struct py_object *general(void *a, void *b, void *c)
{
    struct interp *interp = interp_current();
    if (!interp || !interp->beneath)
        return default_evaluator(a, b, c);
    if (stack_floor == UINTPTR_MAX)
        set_stack_floor();
    if (arch_stack_pointer() < stack_floor)
        return run_deep(a, b, c, interp);

    struct py_object *code = cpython_frame_code(frame_of(a, b));
    trampoline slot = stored_slot(code, interp->index);
    if (!slot && interp->wanted)
        slot = make_slot(code, interp);
    if (!slot)
        slot = pass_through;
    return slot(a, b, c, interp->beneath);
}

static inline __attribute__((always_inline)) struct py_object *
fast_way(void *a, void *b, void *c, void *frame, size_t frame_code, uintptr_t tag, size_t co_extra)
{
    char *code = (char *)(*(uintptr_t *)((char *)frame + frame_code) & ~tag);
    struct py_code_extra *extra = *(struct py_code_extra **)(code + co_extra);
    /* Where there is an extra at all, it has room for index 0. */
    trampoline slot = __builtin_expect(extra != NULL, 1) ? (trampoline)extra->values[0] : NULL;
    if (__builtin_expect(!slot, 0))
        return general(a, b, c);
    if (__builtin_expect(arch_stack_pointer() < stack_floor, 0))
        return general(a, b, c);
    return slot(a, b, c, default_evaluator);
}

#define FAST(minor, frame_code, tag, co_extra, file, name, qualname, line)                             \
    static struct py_object *fast_##minor(void *a, void *b, void *c)                                   \
    {                                                                                                  \
        return fast_way(a, b, c, minor == 8 ? a : b, frame_code, tag, co_extra);                       \
    }
CPYTHON_LAYOUTS(FAST)
#undef FAST

static py_evaluator find_fast(void)
{
#define ROW(minor, frame_code, tag, co_extra, file, name, qualname, line) [minor] = fast_##minor,
    static const py_evaluator by_minor[] = {CPYTHON_LAYOUTS(ROW)};
#undef ROW
    size_t count = sizeof by_minor / sizeof *by_minor;
    bool known = cpython.minor > 0 && (size_t)cpython.minor < count && !cpython.free_threaded;
    return known ? by_minor[cpython.minor] : NULL;
}

/* ------------------------------------------------------------------------ installation and removal */

static int refute(_Atomic int *layout, const char *what)
{
    if (atomic_exchange(layout, REFUTED) != REFUTED)
        log_line(LOG_WARN, "this build of CPython 3.%d lays out its %s unlike any known to %s; doing "
                 "nothing", cpython.minor, what, "libpyjitdump " PYJD_VERSION);
    return -ENOTSUP;
}

/* Stands in until the first frame has shown that the layout is right, then makes way. */
static struct py_object *probe(void *a, void *b, void *c)
{
    struct interp *interp = interp_current();
    struct py_object *type, *value, *traceback;
    if (!interp || !interp->beneath)
        return default_evaluator(a, b, c);

    cpython.PyErr_Fetch(&type, &value, &traceback);
    bool good = cpython_check_frame_layout(frame_of(a, b));
    cpython.PyErr_Restore(type, value, traceback);

    py_evaluator now = NULL, ours = interp->beneath;
    if (good) {
        frame_layout = PROVEN;
        ours = interp->beneath == default_evaluator && interp->index == 0 && fast ? fast : general;
    } else {
        refute(&frame_layout, "frames");
    }
    if (cpython_get_evaluator(interp->address, &now) && now == probe)
        cpython_set_evaluator(interp->address, ours);
    interp->ours = ours;
    return ours(a, b, c);
}

/* Code-extra indexes are few and never come back: one per interpreter, kept in its record. */
static int reserve_index(struct interp *interp, bool late)
{
    if (interp->index >= 0)
        return 0;
    interp->index = cpython.RequestCodeExtraIndex(NULL);
    if (interp->index < 0) {
        cpython.PyErr_Clear();
        log_line(LOG_WARN, "other extensions have taken all code-extra slots of this interpreter; "
                 "doing nothing");
        return -ENOMEM;
    }
    if (cpython.layout->co_qualname || !qualname_start())
        return 0;
    if (late)
        qualname_note_existing();
    return 0;
}

static int check_layout(const struct interp *interp)
{
    if (code_layout == UNPROVEN && cpython_check_code_layout(interp->index))
        code_layout = PROVEN;
    if (code_layout != PROVEN)
        return refute(&code_layout, "code objects");
    return frame_layout == REFUTED ? -ENOTSUP : 0;
}

static int install(struct interp *interp)
{
    py_evaluator now = NULL;
    struct py_interp *address = interp->address;

    if (!cpython_get_evaluator(address, &now))
        return refute(&code_layout, "interpreters");
    /* Whoever installed an evaluator over ours has kept ours to call, and putting it on top as well
     * would close a circle: waking up is enough. */
    if (interp->buried && now != interp->beneath) {
        interp->wanted = true;
        return 0;
    }
    interp->buried = false;
    if (cpython_own_perf_is_on()) {
        log_line(LOG_WARN, "CPython's own perf support is on (-X perf, PYTHONPERFSUPPORT or "
                 "PYTHON_PERF_JIT_SUPPORT); standing aside");
        return -EBUSY;
    }
    int err = reserve_index(interp, cpython.Py_IsInitialized());
    if (!err)
        err = check_layout(interp);
    if (err)
        return err;
    interp->beneath = now;
    bool is_fast = now == default_evaluator && interp->index == 0 && fast;
    interp->ours = frame_layout != PROVEN ? probe : is_fast ? fast : general;
    interp->wanted = true;
    cpython_set_evaluator(address, interp->ours);
    return 0;
}

void evalhook_start(evalhook_publisher publisher)
{
    publish = publisher;
    default_evaluator = cpython.default_evaluator;
    fast = find_fast();
}

int evalhook_install(void)
{
    struct py_object *type, *value, *traceback;
    int saved = errno;
    struct interp *interp = interp_make();
    if (!interp)
        return -ENOMEM;
    if (interp->wanted)
        return 0;
    cpython.PyErr_Fetch(&type, &value, &traceback);
    int err = install(interp);
    cpython.PyErr_Restore(type, value, traceback);
    errno = saved;
    return err;
}

void evalhook_remove(void)
{
    struct interp *interp = interp_current();
    py_evaluator now = NULL;
    if (!interp || !interp->wanted)
        return;
    interp->wanted = false;
    if (!cpython_get_evaluator(interp->address, &now))
        return;
    if (now == interp->ours)
        cpython_set_evaluator(interp->address, interp->beneath);
    else
        interp->buried = now != interp->beneath; /* as it is during deep recursion */
}
