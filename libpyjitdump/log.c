#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
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

/* Where nobody reads stderr any more, a write raises SIGPIPE; what the program does about that signal is
 * not meant for us. A write that fails has nowhere to be reported. */
static void write_quietly(const char *line, size_t length)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    bool was_pending = sigismember(&pending, SIGPIPE);
    if (pthread_sigmask(SIG_BLOCK, &pipe_signal, &before))
        return;
    ssize_t wrote = write(STDERR_FILENO, line, length);
    if (wrote < 0 && errno == EPIPE && !was_pending)
        sigtimedwait(&pipe_signal, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
        write_quietly(line, length);
    }
    errno = saved;
}
