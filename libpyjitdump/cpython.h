/* cpython: every CPython symbol and every per-version fact that this library relies on.
 *
 * The library is built without Python's headers and links no libpython: one binary serves every
 * version, and a process without Python pays for a symbol look-up. This pair of files is what a new
 * CPython version changes: a row in CPYTHON_LAYOUTS, and a symbol's new name in cpython.c.
 *
 * The offsets come from CPython's headers (Include/cpython/code.h, Include/internal/pycore_frame.h and
 * their predecessors) and are believed only after cpython_check_code_layout and
 * cpython_check_frame_layout have seen them hold in the running interpreter.
 */
#ifndef PYJD_CPYTHON_H
#define PYJD_CPYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct py_object; /* PyObject */
struct py_interp; /* PyInterpreterState */

/* A frame evaluation function (PEP 523). It has arguments (tstate, frame, throwflag) from 3.9 on, and
 * (frame, throwflag) on 3.8. Both fit this type: three words in registers, passed on as they came. */
typedef struct py_object *(*py_evaluator)(void *a, void *b, void *c);

/* minor version, frame: offset of the code object, bits of it that are a tag,
 * code object: offsets of co_extra, co_filename, co_name, co_qualname (0: there is none) and
 * co_firstlineno */
#define CPYTHON_LAYOUTS(X)                                                                             \
    X(8, 32, 0, 144, 104, 112, 0, 40)                                                                  \
    X(9, 32, 0, 144, 104, 112, 0, 40)                                                                  \
    X(10, 32, 0, 144, 104, 112, 0, 40)                                                                 \
    X(11, 32, 0, 176, 112, 120, 128, 72)                                                               \
    X(12, 0, 0, 184, 112, 120, 128, 68)                                                                \
    X(13, 0, 0, 192, 112, 120, 128, 68)                                                                \
    X(14, 0, 7, 200, 112, 120, 128, 68)                                                                \
    X(15, 0, 7, 200, 112, 120, 128, 68)

/* The same for free-threaded builds, whose object header is 16 bytes longer. */
#define CPYTHON_FREE_THREADED_LAYOUTS(X)                                                               \
    X(13, 0, 7, 208, 128, 136, 144, 84)                                                                \
    X(14, 0, 7, 216, 128, 136, 144, 84)                                                                \
    X(15, 0, 7, 216, 128, 136, 144, 84)

struct cpython_layout {
    int minor;
    uint16_t frame_code;
    uintptr_t frame_code_tag;
    uint16_t co_extra;
    uint16_t co_filename;
    uint16_t co_name;
    uint16_t co_qualname;
    uint16_t co_firstlineno;
};

/* What co_extra points to (Objects/codeobject.c, _PyCodeObjectExtra). */
struct py_code_extra {
    ptrdiff_t size;
    void *values[];
};

/* PyMemAllocatorEx (Include/cpython/pymem.h). */
struct py_allocator {
    void *ctx;
    void *(*malloc)(void *ctx, size_t size);
    void *(*calloc)(void *ctx, size_t count, size_t size);
    void *(*realloc)(void *ctx, void *memory, size_t size);
    void (*free)(void *ctx, void *memory);
};
enum { PY_ALLOCATOR_RAW = 0 }; /* PYMEM_DOMAIN_RAW */

typedef int (*py_audit_hook)(const char *event, struct py_object *args, void *data);

/* The functions and objects used, under CPython's names without underscores and prefixes that changed
 * between versions. Filled in by cpython_load; NULL only where a comment says so. */
struct cpython {
    int minor;                            /* 11 for 3.11; 0 until loaded */
    bool free_threaded;
    bool is_complete;                     /* every symbol that should be there was found */
    const struct cpython_layout *layout;  /* NULL: this version is not known, or not complete */
    py_evaluator default_evaluator;       /* _PyEval_EvalFrameDefault */

    const char *(*Py_GetVersion)(void);
    int (*Py_IsInitialized)(void);
    int (*Py_AtExit)(void (*function)(void));
    int (*PySys_AddAuditHook)(py_audit_hook hook, void *data);
    struct py_object *(*PySys_GetObject)(const char *name);
    void (*PyMem_GetAllocator)(int domain, struct py_allocator *allocator);
    void (*PyMem_SetAllocator)(int domain, struct py_allocator *allocator);
    int (*PyGILState_Check)(void);
    void *(*PyThreadState_GetUnchecked)(void);
    struct py_interp *(*PyInterpreterState_Get)(void);
    int64_t (*PyInterpreterState_GetID)(struct py_interp *interp);
    py_evaluator (*GetEvalFrameFunc)(struct py_interp *interp);             /* NULL on 3.8 */
    void (*SetEvalFrameFunc)(struct py_interp *interp, py_evaluator eval);  /* NULL on 3.8 */
    ptrdiff_t (*RequestCodeExtraIndex)(void (*free)(void *));
    int (*Code_GetExtra)(struct py_object *code, ptrdiff_t index, void **extra);
    int (*Code_SetExtra)(struct py_object *code, ptrdiff_t index, void *extra);
    struct py_object *(*PyCode_NewEmpty)(const char *file, const char *name, int line);
    struct py_object *(*Frame_GetCode)(void *frame);                        /* NULL on 3.8, 3.11 */
    void (*PyErr_Fetch)(struct py_object **, struct py_object **, struct py_object **);
    void (*PyErr_Restore)(struct py_object *, struct py_object *, struct py_object *);
    void (*PyErr_Clear)(void);
    void (*Py_DecRef)(struct py_object *);
    const char *(*PyUnicode_AsUTF8AndSize)(struct py_object *, ptrdiff_t *size);
    struct py_object *(*PyUnicode_AsEncodedString)(struct py_object *, const char *encoding,
                                                   const char *errors);
    int (*PyBytes_AsStringAndSize)(struct py_object *, char **text, ptrdiff_t *size);
    struct py_object *(*PyObject_GetAttrString)(struct py_object *, const char *name);
    struct py_object *(*PyObject_CallObject)(struct py_object *callable, struct py_object *args);
    int (*PyObject_IsTrue)(struct py_object *);
    struct py_object *(*PyImport_ImportModule)(const char *name);
    ptrdiff_t (*PyTuple_Size)(struct py_object *);
    struct py_object *(*PyTuple_GetItem)(struct py_object *, ptrdiff_t);
    ptrdiff_t (*PyList_Size)(struct py_object *);
    struct py_object *(*PyList_GetItem)(struct py_object *, ptrdiff_t);
    long (*PyLong_AsLong)(struct py_object *);
    struct py_object *PyCode_Type;
    struct py_object *PyFunction_Type;
    const uint8_t *(*GetConfig)(void);                                      /* 3.12 and 3.13 only */
    int (*PyConfig_GetInt)(const char *name, int *value);                   /* 3.14 and later only */
};

extern struct cpython cpython;

/* Finds CPython in what `handle` (of dlopen, or RTLD_DEFAULT) leads to. False: there is none. Only
 * looks; runs no Python. Which version it is, and whether it is known, is in `cpython` afterwards. */
bool cpython_load(void *handle);

/* The evaluator that an interpreter uses. False where it cannot be told. */
bool cpython_get_evaluator(struct py_interp *interp, py_evaluator *evaluator);
void cpython_set_evaluator(struct py_interp *interp, py_evaluator evaluator);

/* True when CPython's own perf trampoline is, or is about to be, on in the calling thread's
 * interpreter: -X perf, -X perf_jit, their environment variables, or sys.activate_stack_trampoline. */
bool cpython_own_perf_is_on(void);

/* 3.12 allows 1500 units of C recursion, and takes two for each call that goes through an evaluator. Gives
 * `units` back to the calling thread, or takes them again where negative. Nothing on other versions. */
void cpython_credit_recursion(int units);

/* The self-checks. The first makes a code object and compares what the layout says with what CPython's
 * API says, co_extra included; `index` is a code-extra index that is in use for nothing yet. The second
 * is for the first frame that an evaluator gets. Both need the GIL and leave no exception. */
bool cpython_check_code_layout(ptrdiff_t index);
bool cpython_check_frame_layout(void *frame);

/* Type of an object, compared by identity. */
static inline struct py_object *cpython_type(struct py_object *object)
{
    size_t ob_type = cpython.free_threaded ? 24 : 8;
    return *(struct py_object **)((char *)object + ob_type);
}

static inline struct py_object *cpython_frame_code(void *frame)
{
    uintptr_t word = *(uintptr_t *)((char *)frame + cpython.layout->frame_code);
    return (struct py_object *)(word & ~cpython.layout->frame_code_tag);
}

static inline struct py_object *cpython_code_object(struct py_object *code, size_t offset)
{
    return *(struct py_object **)((char *)code + offset);
}

static inline int cpython_code_line(struct py_object *code)
{
    return *(int *)((char *)code + cpython.layout->co_firstlineno);
}

#endif
