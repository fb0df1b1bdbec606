#include "interp.h"

enum { INTERPS_MOST = 1024 };

static struct interp interps[INTERPS_MOST];

struct interp *interp_current(void)
{
    struct py_interp *address = cpython.PyInterpreterState_Get();
    for (struct interp *i = interps; i < interps + INTERPS_MOST; i++) {
        struct py_interp *known = atomic_load_explicit(&i->address, memory_order_acquire);
        if (known == address)
            return i;
        if (!known)
            return NULL;
    }
    return NULL;
}

struct interp *interp_make(void)
{
    struct py_interp *address = cpython.PyInterpreterState_Get(), *none = NULL;
    int64_t id = cpython.PyInterpreterState_GetID(address);
    struct interp *i = interps;

    while (i < interps + INTERPS_MOST && i->address != address &&
           !atomic_compare_exchange_strong(&i->address, &none, address)) {
        none = NULL;
        i++;
    }
    if (i == interps + INTERPS_MOST)
        return NULL;
    if (!i->in_use || i->id != id) {
        i->id = id;
        i->index = -1;
        i->beneath = i->ours = NULL;
        i->wanted = false;
        i->buried = false;
        i->in_use = true;
    }
    return i;
}

void interp_forget_all(void)
{
    for (struct interp *i = interps; i < interps + INTERPS_MOST && i->address; i++) {
        i->in_use = false;
        i->wanted = false;
    }
}
