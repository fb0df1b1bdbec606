#include "qualname.h"

#include <stdlib.h>
#include <string.h>

/* Opcodes, the same in 3.8, 3.9 and 3.10 (Include/opcode.h); instructions are two bytes. */
enum { LOAD_BUILD_CLASS = 71, LOAD_CONST = 100, MAKE_FUNCTION = 132, EXTENDED_ARG = 144 };
enum { NAME_MOST = 4096 }; /* bytes noted; symbols are cut far below this */

static ptrdiff_t extra_index = -1;

static void *attribute(struct py_object *object, const char *name)
{
    struct py_object *value = cpython.PyObject_GetAttrString(object, name);
    if (!value)
        cpython.PyErr_Clear();
    return value;
}

static void release(struct py_object *object)
{
    if (object)
        cpython.Py_DecRef(object);
}

bool qualname_start(void)
{
    ptrdiff_t index = cpython.RequestCodeExtraIndex(free);
    if (index < 0 || (extra_index >= 0 && index != extra_index))
        return false;
    extra_index = index;
    return true;
}

const char *qualname_of(struct py_object *code)
{
    void *noted = NULL;
    if (extra_index < 0 || cpython.Code_GetExtra(code, extra_index, &noted)) {
        cpython.PyErr_Clear();
        return NULL;
    }
    return noted;
}

/* Notes a name for `code`, unless something is noted already. Returns what is noted. */
static const char *note(struct py_object *code, struct py_object *name)
{
    const char *known = qualname_of(code);
    if (known)
        return known;
    struct py_object *text = cpython.PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace");
    char *utf8;
    ptrdiff_t length;
    char *copy = NULL;
    if (text && cpython.PyBytes_AsStringAndSize(text, &utf8, &length) == 0) {
        size_t most = (size_t)length > NAME_MOST ? NAME_MOST : (size_t)length;
        copy = malloc(most + 1);
        if (copy) {
            memcpy(copy, utf8, most);
            copy[most] = '\0';
            if (cpython.Code_SetExtra(code, extra_index, copy)) {
                free(copy);
                copy = NULL;
            }
        }
    }
    release(text);
    cpython.PyErr_Clear();
    return copy;
}

/* A constant that is a code object, or NULL. Borrowed. */
static struct py_object *code_constant(struct py_object *consts, ptrdiff_t index)
{
    if (index < 0 || index >= cpython.PyTuple_Size(consts))
        return NULL;
    struct py_object *item = cpython.PyTuple_GetItem(consts, index);
    return item && cpython_type(item) == cpython.PyCode_Type ? item : NULL;
}

static bool has_code_constant(struct py_object *consts)
{
    ptrdiff_t count = cpython.PyTuple_Size(consts);
    for (ptrdiff_t i = 0; i < count; i++)
        if (code_constant(consts, i))
            return true;
    return false;
}

/* A class body begins by storing its qualified name, its first constant, as __qualname__. The constant that
 * MAKE_FUNCTION takes is the bare name. */
static void note_class(struct py_object *code)
{
    struct py_object *consts = attribute(code, "co_consts");
    if (consts && cpython.PyTuple_Size(consts) > 0)
        note(code, cpython.PyTuple_GetItem(consts, 0)); /* what is no str is not noted */
    release(consts);
}

/* Follows the instructions and notes a name at each MAKE_FUNCTION. */
static void scan(struct py_object *consts, const uint8_t *ops, size_t size)
{
    ptrdiff_t last = -1, last_but_one = -1; /* constants loaded just before */
    uint32_t argument = 0;
    bool is_class = false;

    for (size_t i = 0; i + 1 < size; i += 2) {
        argument = argument << 8 | ops[i + 1];
        if (ops[i] == EXTENDED_ARG)
            continue;
        if (ops[i] == LOAD_BUILD_CLASS)
            is_class = true;
        if (ops[i] == MAKE_FUNCTION) {
            struct py_object *code = code_constant(consts, last_but_one);
            if (code && is_class)
                note_class(code);
            if (code && last >= 0 && last < cpython.PyTuple_Size(consts))
                note(code, cpython.PyTuple_GetItem(consts, last));
            is_class = false;
        }
        last_but_one = last;
        last = ops[i] == LOAD_CONST ? (ptrdiff_t)argument : -1;
        argument = 0;
    }
    cpython.PyErr_Clear();
}

void qualname_note_children(struct py_object *code)
{
    if (extra_index < 0)
        return;
    struct py_object *consts = attribute(code, "co_consts");
    if (consts && has_code_constant(consts)) {
        struct py_object *bytecode = attribute(code, "co_code");
        char *ops;
        ptrdiff_t size;
        if (bytecode && cpython.PyBytes_AsStringAndSize(bytecode, &ops, &size) == 0)
            scan(consts, (const uint8_t *)ops, (size_t)size);
        release(bytecode);
    }
    release(consts);
    cpython.PyErr_Clear();
}

/* The functions that a function may yet define have names too: the calls that define them may be
 * running already, and will not be seen to begin. */
static void note_tree(struct py_object *code, int depth)
{
    enum { DEEPEST = 16 };
    struct py_object *consts = attribute(code, "co_consts");
    if (!consts || depth == DEEPEST) {
        release(consts);
        return;
    }
    qualname_note_children(code);
    ptrdiff_t count = cpython.PyTuple_Size(consts);
    for (ptrdiff_t i = 0; i < count; i++) {
        struct py_object *child = code_constant(consts, i);
        if (child)
            note_tree(child, depth + 1);
    }
    release(consts);
}

void qualname_note_existing(void)
{
    struct py_object *gc = extra_index < 0 ? NULL : cpython.PyImport_ImportModule("gc");
    struct py_object *get_objects = gc ? attribute(gc, "get_objects") : NULL;
    struct py_object *all = get_objects ? cpython.PyObject_CallObject(get_objects, NULL) : NULL;
    ptrdiff_t count = all ? cpython.PyList_Size(all) : 0;

    for (ptrdiff_t i = 0; i < count; i++) {
        struct py_object *function = cpython.PyList_GetItem(all, i);
        if (cpython_type(function) != cpython.PyFunction_Type)
            continue;
        struct py_object *code = attribute(function, "__code__");
        struct py_object *name = attribute(function, "__qualname__");
        if (code && name) {
            note(code, name);
            note_tree(code, 0);
        }
        release(code);
        release(name);
    }
    release(all);
    release(get_objects);
    release(gc);
    cpython.PyErr_Clear();
}
