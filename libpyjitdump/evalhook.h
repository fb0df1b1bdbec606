/* evalhook: the frame evaluator (PEP 523) that puts a trampoline under each Python function.
 *
 * All functions need the GIL (an attached thread state) of the interpreter they speak of.
 */
#ifndef PYJD_EVALHOOK_H
#define PYJD_EVALHOOK_H

#include "codename.h"
#include "cpython.h"

/* Gives the slot for a function. 0; -EAGAIN: not this time, the next call may ask again; or another
 * negative errno value: there will be none. Called with the GIL, on the first call of each code object, and
 * must not run Python. */
typedef int (*evalhook_publisher)(const struct codename *name, void **slot);

/* Called once, before the first install. */
void evalhook_start(evalhook_publisher publisher);

/* Puts our evaluator into the calling thread's interpreter. Idempotent. 0, or -EBUSY: CPython's own perf
 * support is on; -ENOTSUP: the self-check failed, here or earlier; -ENOMEM. The first failure of a kind
 * has been logged. */
int evalhook_install(void);

/* Puts back what was there. If another evaluator was installed over ours, ours stays beneath it and
 * steps aside. Idempotent. */
void evalhook_remove(void);

#endif
