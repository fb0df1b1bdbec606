/* foreign: the code ranges that other JITs have added, kept so that a forked child can say them again. */
#ifndef PYJD_FOREIGN_H
#define PYJD_FOREIGN_H

#include "sink.h"

struct foreign {
    struct foreign *next; /* added before this one */
    struct sink_code code;
};

/* A copy, with everything that `code` points to, in one piece of memory. NULL: out of memory. */
struct foreign *foreign_copy(const struct sink_code *code);

#endif
