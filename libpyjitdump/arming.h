/* arming: from "there is a CPython in this process" to an evaluator in each of its interpreters.
 *
 * An audit hook (PEP 578) is the one thing that can be registered before Py_Initialize and is called
 * soon after it begins: the first audited event of an interpreter comes before `site` is imported, and
 * there ours is installed. It is called for each interpreter, so later ones are armed as well.
 */
#ifndef PYJD_ARMING_H
#define PYJD_ARMING_H

#include <stdbool.h>

/* Registers the hook in the CPython that cpython_load has found. Called once, from an ELF constructor. */
void arming_start(void);

/* What every interpreter is to be, and the calling thread's at once, if it has one. 0, or a negative
 * errno value as pyjd_enable() documents. */
int arming_set_enabled(bool enabled);

bool arming_is_enabled(void);

#endif
