/* The way in: find CPython in this process and arm it. Nothing else happens here.
 *
 * A process without CPython pays for one failed symbol look-up. Where a library with CPython in it is
 * loaded later (a plug-in that links libpython, a launcher that opens it by name), nobody would call us
 * at the right moment, but for __gmon_start__: the start code that glibc links into every library calls
 * the function of that name, if there is one, as the library is initialised. It is a leftover of gprof,
 * which defines it in programs built with -pg; nothing else does. Defining it here replaces no function
 * of anybody's, where an interposed dlopen would change which directories the program's own calls
 * search.
 */
#include "arming.h"
#include "cpython.h"
#include "log.h"
#include "platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

void __gmon_start__(void);

static atomic_bool found;

static void look_in(void *handle)
{
    bool expected = false;
    if (cpython_load(handle) && atomic_compare_exchange_strong(&found, &expected, true))
        arming_start();
}

__attribute__((constructor)) static void loaded(void)
{
    int saved = errno;
    log_start();
    if (!platform_is_secure())
        look_in(RTLD_DEFAULT);
    errno = saved;
}

/* Looks in the library that calls, which is being loaded and may be local to its loader. */
__attribute__((visibility("default"))) void __gmon_start__(void)
{
    Dl_info caller;
    int saved = errno;
    if (found || platform_is_secure() || !dladdr(__builtin_return_address(0), &caller))
        return;
    void *handle = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle) {
        look_in(handle);
        dlclose(handle);
    } else {
        dlerror(); /* the program's own name, as it was started, is not always one to open */
    }
    errno = saved;
}
