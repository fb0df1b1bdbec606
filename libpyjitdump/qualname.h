/* qualname: qualified names on CPython 3.8 to 3.10, whose code objects do not know theirs.
 *
 * The code that defines a function does: it holds the code object and the qualified name as constants
 * and loads them one after the other,
 *
 *     LOAD_CONST  <code object g>
 *     LOAD_CONST  'A.f.<locals>.g'
 *     MAKE_FUNCTION
 *
 * and it runs before the function can. So when a code object is first called, the names of those it
 * defines are noted with them, in a code-extra slot of their own that CPython frees with the code object.
 * A class body's constant is the bare class name, but the class body holds the rest itself.
 *
 * The GIL covers everything here. No function leaves a Python exception.
 */
#ifndef PYJD_QUALNAME_H
#define PYJD_QUALNAME_H

#include "cpython.h"

/* Reserves the code-extra slot in the calling thread's interpreter, which must have the same index in
 * every interpreter. False: names will do without qualification there. */
bool qualname_start(void);

/* Notes the names of what `code` defines. */
void qualname_note_children(struct py_object *code);

/* Notes the names of all functions that exist: for switching on in a program that runs already. */
void qualname_note_existing(void);

/* The name noted for `code`, or NULL. Good as long as the code object. */
const char *qualname_of(struct py_object *code);

#endif
