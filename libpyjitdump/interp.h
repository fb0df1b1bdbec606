/* interp: what is known of each interpreter of the process.
 *
 * Records are found by address, quickly and without a lock, and told from those of dead interpreters, whose
 * addresses come round again, by id. Only threads of an interpreter look for its record, and all of them
 * hold its GIL; in free-threaded builds the fields that change later are atomic.
 */
#ifndef PYJD_INTERP_H
#define PYJD_INTERP_H

#include "cpython.h"

#include <stdatomic.h>

struct interp {
    _Atomic(struct py_interp *) address; /* NULL: the end of the records in use */
    int64_t id;
    bool in_use;                         /* false: what follows is not filled in */
    ptrdiff_t index;                     /* code-extra index of slots; -1: none reserved */
    py_evaluator ours;                   /* the evaluator we install there */
    py_evaluator beneath;                /* what was there before; NULL: never installed */
    _Atomic bool wanted;                 /* installed, and not removed since */
    _Atomic bool buried;                 /* removed while another evaluator was over ours */
};

/* The record of the calling thread's interpreter, or NULL. */
struct interp *interp_current(void);

/* The same, made if there is none. NULL: no more interpreters can be remembered. */
struct interp *interp_make(void);

/* Every interpreter is gone, or about to go: forget them. */
void interp_forget_all(void);

#endif
