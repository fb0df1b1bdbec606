/* lock: the one lock around publication, in order across forks.
 *
 * A fork waits until no other thread is in the middle of a publication, so that the child finds everything
 * whole. The lock is an error-checking one, because a crash handler may fork while its own thread holds it:
 * then locking fails instead of waiting for ever. Such a lock knows its owner by thread id, which is another
 * in the child, so there it is made anew rather than released.
 */
#ifndef PYJD_LOCK_H
#define PYJD_LOCK_H

#include <stdbool.h>

/* Makes the lock and registers the fork handlers. Called once, before the others. */
void lock_start(void);

void lock_take(void);
void lock_release(void);

/* Releases the lock until lock_wake is called, takes it again. False after a tenth of a second of nothing. */
bool lock_wait(void);
void lock_wake(void);

#endif
