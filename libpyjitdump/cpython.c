#include "cpython.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct cpython cpython;

static const struct cpython_layout layouts[] = {
#define ROW(minor, frame, tag, extra, file, name, qualname, line)                                      \
    {minor, frame, tag, extra, file, name, qualname, line},
    CPYTHON_LAYOUTS(ROW)
#undef ROW
};

static const struct cpython_layout free_threaded_layouts[] = {
#define ROW(minor, frame, tag, extra, file, name, qualname, line)                                      \
    {minor, frame, tag, extra, file, name, qualname, line},
    CPYTHON_FREE_THREADED_LAYOUTS(ROW)
#undef ROW
};

/* Where a symbol goes, and the names it has had, newest first. */
struct wanted {
    size_t offset;
    const char *names[2];
    int first, last; /* minor versions that must have it */
};

#define MEMBER(name) offsetof(struct cpython, name)
#define ALWAYS(name) {MEMBER(name), {#name, NULL}, 8, LAST}
enum { LAST = 99 }; /* of the versions to come */

static const struct wanted symbols[] = {
    ALWAYS(Py_GetVersion),
    ALWAYS(Py_IsInitialized),
    ALWAYS(Py_AtExit),
    ALWAYS(PySys_AddAuditHook),
    ALWAYS(PySys_GetObject),
    ALWAYS(PyMem_GetAllocator),
    ALWAYS(PyMem_SetAllocator),
    ALWAYS(PyGILState_Check),
    ALWAYS(PyInterpreterState_GetID),
    ALWAYS(PyCode_NewEmpty),
    ALWAYS(PyErr_Fetch),
    ALWAYS(PyErr_Restore),
    ALWAYS(PyErr_Clear),
    ALWAYS(Py_DecRef),
    ALWAYS(PyUnicode_AsUTF8AndSize),
    ALWAYS(PyUnicode_AsEncodedString),
    ALWAYS(PyBytes_AsStringAndSize),
    ALWAYS(PyObject_GetAttrString),
    ALWAYS(PyObject_CallObject),
    ALWAYS(PyObject_IsTrue),
    ALWAYS(PyImport_ImportModule),
    ALWAYS(PyTuple_Size),
    ALWAYS(PyTuple_GetItem),
    ALWAYS(PyList_Size),
    ALWAYS(PyList_GetItem),
    ALWAYS(PyLong_AsLong),
    ALWAYS(PyCode_Type),
    ALWAYS(PyFunction_Type),
    {MEMBER(default_evaluator), {"_PyEval_EvalFrameDefault", NULL}, 8, LAST},
    {MEMBER(PyThreadState_GetUnchecked),
     {"PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet"}, 8, LAST},
    {MEMBER(PyInterpreterState_Get), {"PyInterpreterState_Get", "_PyInterpreterState_Get"}, 8, LAST},
    {MEMBER(GetEvalFrameFunc), {"_PyInterpreterState_GetEvalFrameFunc", NULL}, 9, LAST},
    {MEMBER(SetEvalFrameFunc), {"_PyInterpreterState_SetEvalFrameFunc", NULL}, 9, LAST},
    {MEMBER(RequestCodeExtraIndex),
     {"PyUnstable_Eval_RequestCodeExtraIndex", "_PyEval_RequestCodeExtraIndex"}, 8, LAST},
    {MEMBER(Code_GetExtra), {"PyUnstable_Code_GetExtra", "_PyCode_GetExtra"}, 8, LAST},
    {MEMBER(Code_SetExtra), {"PyUnstable_Code_SetExtra", "_PyCode_SetExtra"}, 8, LAST},
    {MEMBER(Frame_GetCode), {"PyUnstable_InterpreterFrame_GetCode", NULL}, 12, LAST},
    {MEMBER(GetConfig), {"_Py_GetConfig", NULL}, 12, 13},
    {MEMBER(PyConfig_GetInt), {"PyConfig_GetInt", NULL}, 14, LAST},
};

/* 3.9 and 3.10 evaluate PyFrameObjects, later versions a struct that PyFrame_GetCode does not take. */
static const struct wanted frame_get_code = {MEMBER(Frame_GetCode), {"PyFrame_GetCode", NULL}, 9, 10};

/* A failed dlsym leaves a message that the program would find at its next dlerror. */
static void *look_up(void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    if (!found)
        dlerror();
    return found;
}

/* False when the version at hand must have the symbol and does not. */
static bool load_symbol(void *handle, const struct wanted *wanted)
{
    void *found = NULL;
    for (size_t i = 0; i < 2 && !found && wanted->names[i]; i++)
        found = look_up(handle, wanted->names[i]);
    memcpy((char *)&cpython + wanted->offset, &found, sizeof found);
    return found || cpython.minor < wanted->first || cpython.minor > wanted->last;
}

/* "3.11.7 (main, ...)" or "3.14.0 free-threading build (...)". Anything that does not begin with 3 and
 * a minor version is no version we know. */
static void read_version(const char *version)
{
    cpython.minor = -1;
    if (strncmp(version, "3.", 2) == 0)
        cpython.minor = atoi(version + 2);
    cpython.free_threaded = strstr(version, "free-threading") != NULL;
}

static const struct cpython_layout *find_layout(void)
{
    bool ft = cpython.free_threaded;
    const struct cpython_layout *rows = ft ? free_threaded_layouts : layouts;
    size_t count = ft ? sizeof free_threaded_layouts / sizeof *rows : sizeof layouts / sizeof *rows;
    for (size_t i = 0; i < count; i++)
        if (rows[i].minor == cpython.minor)
            return &rows[i];
    return NULL;
}

bool cpython_load(void *handle)
{
    /* Two look-ups decide for a process without Python. */
    if (!look_up(handle, "PySys_AddAuditHook"))
        return false;
    const char *(*get_version)(void) = (const char *(*)(void))look_up(handle, "Py_GetVersion");
    if (!get_version)
        return false;
    read_version(get_version());

    bool complete = true;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        complete &= load_symbol(handle, &symbols[i]);
    if (cpython.minor >= frame_get_code.first && cpython.minor <= frame_get_code.last)
        complete &= load_symbol(handle, &frame_get_code);
    cpython.is_complete = complete;
    cpython.layout = complete ? find_layout() : NULL;
    return true;
}

/* ------------------------------------------------------------------ the evaluator of an interpreter */

/* 3.8 has no function for it: the member is found by its value. 568 is where 3.8's headers put it. */
static size_t eval_frame_offset_38(struct py_interp *interp)
{
    enum { EXPECTED = 568, SEARCH_END = 1024 };
    static size_t offset;
    const char *base = (const char *)interp;
    if (offset)
        return offset;
    if (*(const py_evaluator *)(base + EXPECTED) == cpython.default_evaluator)
        return offset = EXPECTED;
    for (size_t at = 0; at < SEARCH_END; at += sizeof(void *))
        if (*(const py_evaluator *)(base + at) == cpython.default_evaluator)
            return offset = at;
    return 0;
}

bool cpython_get_evaluator(struct py_interp *interp, py_evaluator *evaluator)
{
    if (cpython.GetEvalFrameFunc) {
        *evaluator = cpython.GetEvalFrameFunc(interp);
        return true;
    }
    size_t offset = eval_frame_offset_38(interp);
    if (offset)
        *evaluator = *(py_evaluator *)((char *)interp + offset);
    return offset != 0;
}

void cpython_set_evaluator(struct py_interp *interp, py_evaluator evaluator)
{
    if (cpython.SetEvalFrameFunc)
        cpython.SetEvalFrameFunc(interp, evaluator);
    else
        *(py_evaluator *)((char *)interp + eval_frame_offset_38(interp)) = evaluator;
}

/* ---------------------------------------------------------------------------- CPython's own support */

static bool stack_trampoline_is_active(void)
{
    struct py_object *function = cpython.PySys_GetObject("is_stack_trampoline_active"); /* borrowed */
    if (!function)
        return false;
    struct py_object *result = cpython.PyObject_CallObject(function, NULL);
    bool active = result && cpython.PyObject_IsTrue(result) == 1;
    if (result)
        cpython.Py_DecRef(result);
    else
        cpython.PyErr_Clear();
    return active;
}

bool cpython_own_perf_is_on(void)
{
    /* Offset of PyConfig.perf_profiling in 3.12 and 3.13 (Include/cpython/initconfig.h). */
    enum { PERF_PROFILING = 40 };
    int value = 0;

    if (cpython.minor < 12)
        return false;
    if (cpython.PyConfig_GetInt) {
        if (cpython.PyConfig_GetInt("perf_profiling", &value))
            cpython.PyErr_Clear();
    } else {
        memcpy(&value, cpython.GetConfig() + PERF_PROFILING, sizeof value);
    }
    /* Before the sys module is complete there is nothing that could have activated it. */
    return value > 0 || (cpython.Py_IsInitialized() && stack_trampoline_is_active());
}

/* ------------------------------------------------------------------------------------- C recursion */

void cpython_credit_recursion(int units)
{
    /* Offset of PyThreadState.c_recursion_remaining (3.12, Include/cpython/pystate.h), and the most that it
     * can be (C_RECURSION_LIMIT): anything else there is not what we take it for. */
    enum { REMAINING = 36, MOST = 10000 };
    if (cpython.minor != 12 || cpython.free_threaded)
        return;
    char *tstate = cpython.PyThreadState_GetUnchecked();
    int *remaining = (int *)(tstate + REMAINING);
    if (tstate && *remaining >= -MOST && *remaining <= MOST)
        *remaining += units;
}

/* --------------------------------------------------------------------------------- the self-checks */

static bool text_is(struct py_object *text, const char *expected)
{
    const char *utf8 = cpython.PyUnicode_AsUTF8AndSize(text, NULL);
    return utf8 && strcmp(utf8, expected) == 0;
}

/* An offset that is wrong may hold anything: only a pointer that an attribute of the object also gives
 * is followed. */
static bool member_is(struct py_object *code, size_t offset, const char *attribute,
                      const char *expected)
{
    struct py_object *value = cpython.PyObject_GetAttrString(code, attribute);
    bool same = value && value == cpython_code_object(code, offset) && text_is(value, expected);
    if (value)
        cpython.Py_DecRef(value);
    return same;
}

bool cpython_check_code_layout(ptrdiff_t index)
{
    static const char file[] = "<pyjitdump: file of the self-check>";
    static const char name[] = "<pyjitdump: name of the self-check>";
    enum { LINE = 424242 };
    static char mark;
    const struct cpython_layout *layout = cpython.layout;

    struct py_object *code = cpython.PyCode_NewEmpty(file, name, LINE);
    bool good = code && cpython_type(code) == cpython.PyCode_Type &&
                member_is(code, layout->co_filename, "co_filename", file) &&
                member_is(code, layout->co_name, "co_name", name) &&
                (!layout->co_qualname ||
                 member_is(code, layout->co_qualname, "co_qualname", name)) &&
                cpython_code_line(code) == LINE;
    /* Free-threaded builds go through the API for co_extra and do not need its place. */
    if (good && !cpython.free_threaded) {
        struct py_code_extra **extra =
            (struct py_code_extra **)((char *)code + layout->co_extra);
        good = *extra == NULL && cpython.Code_SetExtra(code, index, &mark) == 0 && *extra &&
               (*extra)->size > index && (*extra)->size <= 255 && (*extra)->values[index] == &mark;
        cpython.Code_SetExtra(code, index, NULL);
    }
    if (code)
        cpython.Py_DecRef(code);
    cpython.PyErr_Clear();
    return good;
}

bool cpython_check_frame_layout(void *frame)
{
    struct py_object *code = cpython_frame_code(frame);
    if (!code || (uintptr_t)code % sizeof(void *))
        return false;
    /* The versions without an API for it have had their last release but security fixes. */
    if (!cpython.Frame_GetCode)
        return cpython_type(code) == cpython.PyCode_Type;
    struct py_object *expected = cpython.Frame_GetCode(frame);
    bool good = expected == code;
    if (expected)
        cpython.Py_DecRef(expected);
    else
        cpython.PyErr_Clear();
    return good;
}
