/* log: one line on stderr, written whole by one write(2), errno as it was.
 *
 * Nothing is logged above the level set, which starts at LOG_WARN, and nothing ever where the process
 * began without a stderr: descriptor 2 may be some file of the program's own by now.
 */
#ifndef PYJD_LOG_H
#define PYJD_LOG_H

#include <stdarg.h>

enum log_level { LOG_OFF, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Called once at load: notes whether there is a stderr. */
void log_start(void);

void log_set_level(enum log_level level);

/* printf-like; "pyjitdump: " goes before and a newline behind. Control characters are replaced by '?',
 * so that a file name cannot forge a line; what exceeds 1 KiB is cut. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
