#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum log_level most = LOG_WARN;
static int no_stderr;

void log_start(void)
{
    int saved = errno;
    no_stderr = fcntl(STDERR_FILENO, F_GETFD) < 0;
    errno = saved;
}

void log_set_level(enum log_level level)
{
    most = level;
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char prefix[] = "pyjitdump: ";
    enum { PREFIX = sizeof prefix - 1, LINE = 1024 };
    char line[LINE];

    if (level > most || no_stderr)
        return;
    int saved = errno;
    memcpy(line, prefix, PREFIX);
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(line + PREFIX, LINE - PREFIX - 1, format, args);
    va_end(args);
    if (wanted >= 0) {
        size_t length = strlen(line);
        for (size_t i = PREFIX; i < length; i++)
            if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
                line[i] = '?';
        line[length++] = '\n';
        /* A log that cannot be written has nowhere to be reported. */
        ssize_t ignored = write(STDERR_FILENO, line, length);
        (void)ignored;
    }
    errno = saved;
}
