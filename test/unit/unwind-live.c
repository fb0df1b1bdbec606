/* unwind-live PID [DUMP]: the stack of a live process' main thread, by call frame information alone.
 *
 * libdwfl attaches to the process, which stops it, and unwinds. Trampolines are in anonymous memory,
 * where libdwfl has no module, so each function of the jitdump becomes a module of its own, made of the
 * record's code and unwind data (elf_slot.h). Without DUMP, trampolines must be in files: ELF images.
 *
 * Where libdw finds no CFI for an address it falls back to following frame pointers, which would hide
 * wrong tables. So the CFI of each frame is looked up here too, and a frame without it is a failure.
 *
 * Prints a line for each frame, the innermost first: ADDRESS SYMBOL MODULE. Exit status 0 if the
 * unwinding came to the end of the stack, 1 if not.
 */
#include "elf_slot.h"

#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the dump (tools/perf/Documentation/jitdump-specification.txt) ---- */

enum { LOAD = 0, UNWINDING_INFO = 4 };

struct record {
    uint32_t id, size;
    uint64_t time;
};

static uint64_t u64_at(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint8_t *read_dump(const char *path, size_t *size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        return NULL;
    uint8_t *data = malloc((size_t)st.st_size + 1);
    if (data && read(fd, data, (size_t)st.st_size) != st.st_size)
        return NULL;
    close(fd);
    *size = (size_t)st.st_size;
    return data;
}

static struct elf_slot *slots;
static size_t slot_count;

/* The slot of a LOAD record, with the unwind data of the record before it. */
static void take_load(const uint8_t *load, const uint8_t *info)
{
    slots = realloc(slots, (slot_count + 1) * sizeof *slots);
    if (!slots)
        abort();
    const char *name = (const char *)load + 56;
    struct elf_slot slot = {.addr = u64_at(load + 32), .code_size = u64_at(load + 40), .name = name,
                            .code = load + 56 + strlen(name) + 1};
    if (info) {
        slot.unwind = info + 40;
        slot.unwind_size = u64_at(info + 16);
        slot.unwind_hdr_size = u64_at(info + 24);
    }
    slots[slot_count++] = slot;
}

static bool parse_dump(const uint8_t *data, size_t size)
{
    const uint8_t *info = NULL;
    if (size < 40 || memcmp(data, "DTiJ", 4) != 0)
        return false;
    for (size_t at = 40; at < size;) {
        struct record record;
        if (size - at < sizeof record)
            return false;
        memcpy(&record, data + at, sizeof record);
        if (record.size < sizeof record || record.size > size - at)
            return false;
        if (record.id == UNWINDING_INFO)
            info = data + at;
        if (record.id == LOAD) {
            take_load(data + at, info);
            info = NULL;
        }
        at += record.size;
    }
    return true;
}

/* ---- modules ---- */

static int find_elf(Dwfl_Module *mod, void **userdata, const char *name, Dwarf_Addr base,
                    char **file_name, Elf **elf)
{
    if (!*userdata)
        return dwfl_linux_proc_find_elf(mod, userdata, name, base, file_name, elf);
    *file_name = strdup(name);
    return elf_slot_make(*userdata);
}

/* What is in the files themselves must do: no look-up elsewhere, on the network least of all. */
static int find_debuginfo(Dwfl_Module *mod, void **userdata, const char *name, Dwarf_Addr base,
                          const char *file, const char *link, GElf_Word crc, char **found)
{
    (void)mod, (void)userdata, (void)name, (void)base, (void)file, (void)link, (void)crc;
    (void)found;
    return -1;
}

static const Dwfl_Callbacks callbacks = {.find_elf = find_elf, .find_debuginfo = find_debuginfo};

static bool report_slots(Dwfl *dwfl)
{
    for (size_t i = 0; i < slot_count; i++) {
        void **userdata = NULL;
        uint64_t addr = slots[i].addr;
        Dwfl_Module *mod =
            dwfl_report_module(dwfl, slots[i].name, addr, addr + elf_slot_span(&slots[i]));
        if (!mod)
            return false;
        dwfl_module_info(mod, &userdata, NULL, NULL, NULL, NULL, NULL, NULL);
        *userdata = &slots[i];
    }
    return true;
}

/* ---- the stack ---- */

static bool lookup(Dwarf_CFI *cfi, Dwarf_Addr addr)
{
    Dwarf_Frame *frame = NULL;
    bool found = cfi && dwarf_cfi_addrframe(cfi, addr, &frame) == 0;
    free(frame);
    return found;
}

static bool has_cfi(Dwfl_Module *mod, Dwarf_Addr pc)
{
    Dwarf_Addr bias = 0;
    Dwarf_CFI *cfi = dwfl_module_eh_cfi(mod, &bias);
    if (lookup(cfi, pc - bias))
        return true;
    cfi = dwfl_module_dwarf_cfi(mod, &bias);
    return lookup(cfi, pc - bias);
}

static int see_frame(Dwfl_Frame *frame, void *data)
{
    Dwfl *dwfl = dwfl_thread_dwfl(dwfl_frame_thread(frame));
    bool activation = false;
    Dwarf_Addr pc = 0;
    bool *trouble = data;
    if (!dwfl_frame_pc(frame, &pc, &activation)) {
        fprintf(stderr, "no address: %s\n", dwfl_errmsg(-1));
        *trouble = true;
        return DWARF_CB_ABORT;
    }
    Dwarf_Addr at = activation ? pc : pc - 1; /* a return address may belong to the next function */
    Dwfl_Module *mod = dwfl_addrmodule(dwfl, at);
    const char *symbol = mod ? dwfl_module_addrname(mod, at) : NULL;
    const char *name =
        mod ? dwfl_module_info(mod, NULL, NULL, NULL, NULL, NULL, NULL, NULL) : "[nothing]";
    printf("%#llx %s %s\n", (unsigned long long)pc, symbol ? symbol : "??", name);
    if (!mod || !has_cfi(mod, at)) {
        fprintf(stderr, "no CFI at %#llx, in %s\n", (unsigned long long)at, name);
        *trouble = true;
        return DWARF_CB_ABORT;
    }
    return DWARF_CB_OK;
}

/* Not dwfl_linux_proc_report, which makes libdwfl find modules by page: slots are closer than that. It is
 * for the vdso's sake, and nobody here is in there. */
static int report_mappings(Dwfl *dwfl, pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "r");
    int err = maps ? dwfl_linux_proc_maps_report(dwfl, maps) : -1;
    if (maps)
        fclose(maps);
    return err;
}

static int unwind(Dwfl *dwfl, pid_t pid)
{
    bool trouble = false;
    if (report_mappings(dwfl, pid) != 0 || !report_slots(dwfl) ||
        dwfl_report_end(dwfl, NULL, NULL) != 0 || dwfl_linux_proc_attach(dwfl, pid, false) != 0) {
        fprintf(stderr, "cannot attach to %d: %s\n", (int)pid, dwfl_errmsg(-1));
        return 1;
    }
    if (dwfl_getthread_frames(dwfl, pid, see_frame, &trouble) != 0 && !trouble) {
        fprintf(stderr, "the unwinding stopped short: %s\n", dwfl_errmsg(-1));
        return 1;
    }
    return trouble;
}

/* Each module that libdw opens keeps a descriptor. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    size_t size = 0;
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: %s PID [DUMP]\n", argv[0]);
        return 2;
    }
    raise_descriptor_limit();
    uint8_t *data = argc == 3 ? read_dump(argv[2], &size) : NULL;
    if (argc == 3 && (!data || !parse_dump(data, size))) {
        fprintf(stderr, "%s: not a whole jitdump\n", argv[2]);
        return 2;
    }
    Dwfl *dwfl = dwfl_begin(&callbacks);
    int err = dwfl ? unwind(dwfl, atoi(argv[1])) : 1;
    dwfl_end(dwfl);
    free(slots);
    free(data);
    return err;
}
