/* elfblock: blocks of the arena that are ELF images (elfimage.h): the file, and its place in the process.
 *
 * Not thread-safe, except that elfblock_backing may make one block while functions are published in
 * others. Functions return 0 or a negative errno value.
 */
#ifndef PYJD_ELFBLOCK_H
#define PYJD_ELFBLOCK_H

#include "arena.h"

#include <stddef.h>
#include <stdint.h>

/* Makes images DIR/pyjd-PID-N.so, N counting from 1. They are loaded by dlopen or, where that is refused,
 * mapped, which is enough for profilers but not for gdb and dladdr. Not to be called with a lock held
 * that another thread may wait for inside the dynamic loader. */
extern const struct arena_backing elfblock_backing;

/* The directory for images; `dir` must stay. */
void elfblock_start(const char *dir);

/* Publishes the function of a slot; `path` and `line` are NULL and 0 where it is in no file. elfimage_names_needed() bytes of the block must have been taken for
 * it. Three stores into a mapping of the image, or, on a file system where that is not safe, three
 * pwrites. */
int elfblock_add(const struct arena_slot *slot, const char *symbol, size_t symbol_length,
                 const char *path, int32_t line);

/* Absolute path of the block's image. */
const char *elfblock_path(const struct arena_block *block);

#endif
