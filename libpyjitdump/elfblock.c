#include "elfblock.h"

#include "arch/arch.h"
#include "elfimage.h"
#include "log.h"
#include "outfile.h"
#include "platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KNOWN_FILES = 64 };

struct elfblock {
    struct outfile file;
    struct elfimage_layout layout;
    const char *memory;   /* where offset 0 is in this process */
    uint8_t *window;      /* the symbols and names, mapped to be written to; or NULL: by pwrite */
    size_t window_begin, window_end; /* offsets in the file */
    size_t next;          /* offset at which the next name goes */
    uint32_t next_file;   /* the number that this name gets in the list */
    struct {
        size_t offset;    /* of its name; 0: none */
        uint32_t number;
    } known[KNOWN_FILES]; /* files listed before, by hash of the name; a newcomer replaces */
};

static const char *directory;

void elfblock_start(const char *dir)
{
    directory = dir;
}

/* ----------------------------------------------------------------------------------- making a block */

static int write_image(struct elfblock *block, size_t capacity, const char *name)
{
    size_t page = platform_page_size();
    size_t most = (elfimage_size_most(capacity) + page - 1) & ~(page - 1);
    void *memory;
    int err = platform_map(most, &memory);
    if (err)
        return err;

    /* Two images have the same slots, but never the same name at the same time. */
    uint64_t salt = platform_now() ^ (uint64_t)getpid() << 44;
    struct bytes out = bytes_over(memory, most);
    elfimage_compose(&out, &block->layout, capacity, salt);
    block->next = block->layout.names;
    block->next_file = ELFIMAGE_FIRST_FILE;
    err = out.overflow ? -EOVERFLOW : outfile_create_fixed(&block->file, directory, name);
    if (!err) {
        err = outfile_append(&block->file, out.base, out.len);
        if (err)
            unlink(block->file.path);
    }
    platform_unmap(memory, most);
    return err;
}

/* As a library: gdb, dl_iterate_phdr, dladdr and libgcc's unwinder then know it. */
static const char *load(const struct outfile *file)
{
    struct link_map *map = dlopen(file->path, RTLD_NOW | RTLD_LOCAL);
    if (!map) {
        const char *reason = dlerror();
        log_line(LOG_INFO, "cannot load %s: %s", file->path, reason ? reason : "no reason given");
        return NULL;
    }
    return (const char *)map->l_addr;
}

/* As a plain mapping of the part that is read and executed. */
static const char *map_only(const struct outfile *file, const struct elfimage_layout *layout)
{
    void *memory = mmap(NULL, layout->loaded, PROT_READ | PROT_EXEC, MAP_PRIVATE, file->fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* A second mapping of what changes, since a pwrite into a file that is in large pages of the page cache
 * takes the kernel several microseconds. perf, eu-stack and gdb take the lowest mapping of a file for the
 * place where it is loaded, so this one must lie above; it is made first, because Linux goes downwards. */
static void open_window(struct elfblock *block)
{
    size_t page = platform_page_size();
    void *memory;
    block->window_begin = block->layout.begin[ELFIMAGE_DYNSYM] & ~(page - 1);
    block->window_end = (block->layout.loaded + page - 1) & ~(page - 1);
    if (outfile_map(&block->file, block->window_begin, block->window_end - block->window_begin,
                    &memory) == 0)
        block->window = memory;
}

static void close_window(struct elfblock *block)
{
    if (block->window)
        munmap(block->window, block->window_end - block->window_begin);
    block->window = NULL;
}

static void log_mapped_only(const struct elfblock *block)
{
    static bool said;
    if (block->memory && !said)
        log_line(LOG_WARN, "the dynamic loader refuses %s, which is mapped instead: perf reads it, gdb and "
                 "dladdr do not (PYJD_LOG=info says why)", block->file.path);
    said = said || block->memory;
}

static int bring_in(struct elfblock *block)
{
    open_window(block);
    block->memory = load(&block->file);
    if (!block->memory) {
        block->memory = map_only(&block->file, &block->layout);
        log_mapped_only(block);
    }
    int err = block->memory ? 0 : errno == EPERM ? -ENOEXEC : -errno;
    if (err || (const char *)block->window < block->memory)
        close_window(block);
    if (err)
        unlink(block->file.path);
    return err; /* the descriptor stays open: its lock says that the image is in use */
}

/* The first name that is not one of an image which this process made before it called exec, and which its
 * samples of that time need. */
static int write_under_new_name(struct elfblock *own, size_t capacity)
{
    static unsigned count;
    static pid_t counted_for;
    char name[64];
    int err;

    if (counted_for != getpid()) {
        counted_for = getpid();
        count = 0;
    }
    do {
        snprintf(name, sizeof name, "pyjd-%d-%u.so", (int)getpid(), ++count);
        err = write_image(own, capacity, name);
    } while (err == -EEXIST);
    return err;
}

static int make_block(struct arena_block *block, size_t capacity)
{
    struct elfblock *own = calloc(1, sizeof *own);
    if (!own)
        return -ENOMEM;
    own->file = OUTFILE_CLOSED;
    int err = write_under_new_name(own, capacity);
    if (!err)
        err = bring_in(own);
    if (err) {
        outfile_close(&own->file);
        free(own);
        return err;
    }
    block->slots = (uint8_t *)own->memory + own->layout.begin[ELFIMAGE_TEXT];
    block->capacity = capacity;
    block->names_left = own->layout.names_end - own->layout.names;
    block->backing_data = own;
    log_line(LOG_INFO, "writing %s", own->file.path);
    return 0;
}

/* The file is the parent's after a fork; and after an error there is nothing to be said in it. */
static void retire_block(struct arena_block *block)
{
    struct elfblock *own = block->backing_data;
    own->window = NULL; /* a child has not inherited it; otherwise it stays, to no harm */
    outfile_close(&own->file);
}

const struct arena_backing elfblock_backing = {
    .name = "ELF images", .map = make_block, .retire = retire_block};

/* -------------------------------------------------------------------------------------- publishing */

static int put_names(struct elfblock *block, const struct bytes *names)
{
    if (!block->window)
        return outfile_write_at(&block->file, names->base, names->len, block->next);
    memcpy(block->window + (block->next - block->window_begin), names->base, names->len);
    return 0;
}

static int put_line(struct elfblock *block, size_t slot, uint64_t word)
{
    size_t offset = elfimage_line_field(&block->layout, slot);
    if (!block->window)
        return outfile_write_at(&block->file, &word, sizeof word, offset);
    _Atomic uint64_t *field = (_Atomic uint64_t *)(block->window + (offset - block->window_begin));
    atomic_store_explicit(field, word, memory_order_release);
    return 0;
}

/* Readers see all four bytes or none. */
static int put_symbol(struct elfblock *block, size_t slot, uint32_t st_name)
{
    size_t offset = elfimage_name_field(&block->layout, slot);
    if (!block->window)
        return outfile_write_at(&block->file, &st_name, sizeof st_name, offset);
    _Atomic uint32_t *field = (_Atomic uint32_t *)(block->window + (offset - block->window_begin));
    atomic_store_explicit(field, st_name, memory_order_release);
    return 0;
}

/* The number that a file has in the list, or 0 with the place to note it. */
static uint32_t find_file(const struct elfblock *block, const char *path, size_t *place)
{
    *place = bytes_hash(BYTES_HASH_START, path, strlen(path)) % KNOWN_FILES;
    size_t offset = block->known[*place].offset;
    bool known = offset && strcmp(block->memory + offset, path) == 0;
    return known ? block->known[*place].number : 0;
}

int elfblock_add(const struct arena_slot *slot, const char *symbol, size_t symbol_length,
                 const char *path, int32_t line)
{
    enum { NAMES_MOST = 4096 };
    struct elfblock *block = slot->block->backing_data;
    uint8_t names[NAMES_MOST];
    struct bytes out = bytes_over(names, sizeof names);
    size_t place;

    uint32_t file = path ? find_file(block, path, &place) : ELFIMAGE_NO_FILE;
    elfimage_put_name(&out, symbol, symbol_length);
    size_t path_at = block->next + out.len;
    if (!file)
        elfimage_put_name(&out, path, strlen(path));
    if (out.overflow || out.len > block->layout.names_end - block->next)
        return -ENOSPC;
    uint32_t first = block->next_file; /* the symbol's number; a new path has the one behind it */

    /* What is referred to is in the file before anything refers to it. */
    size_t st_name = block->next - block->layout.begin[ELFIMAGE_DYNSTR];
    int err = put_names(block, &out);
    if (!err)
        err = put_line(block, slot->index, elfimage_line_word(file ? file : first + 1, line));
    if (!err)
        err = put_symbol(block, slot->index, (uint32_t)st_name);
    if (err)
        return err;
    if (!file) {
        block->known[place].offset = path_at;
        block->known[place].number = first + 1;
    }
    block->next_file += file ? 1 : 2;
    block->next += out.len;
    return 0;
}

const char *elfblock_path(const struct arena_block *block)
{
    const struct elfblock *own = block->backing_data;
    return own->file.path;
}
