/* config: the PYJD_* environment variables, read once.
 *
 * docs/pyjitdump.7 describes them for users. An invalid value is one warning line that names the
 * variable, the value, and what is accepted, and the default is used.
 */
#ifndef PYJD_CONFIG_H
#define PYJD_CONFIG_H

#include "log.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum config_output { OUTPUT_ELF = 1, OUTPUT_JITDUMP = 2, OUTPUT_MAP = 4 };

struct config {
    unsigned outputs;        /* a set of enum config_output */
    bool enable;             /* begin as soon as an interpreter starts */
    uint32_t max_functions;  /* distinct functions that get a slot of their own */
    char dir[PATH_MAX];      /* absolute, without symbolic links; no slash at the end,
                              * so the root directory is "" */
};

enum { CONFIG_MAX_FUNCTIONS_DEFAULT = 1 << 18, CONFIG_MAX_FUNCTIONS_LIMIT = 1 << 24 };

/* Reads the environment and sets the log level. Does not fail. */
void config_read(struct config *config);

#endif
