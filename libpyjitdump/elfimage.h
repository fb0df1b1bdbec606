/* elfimage: a block of trampolines that is a shared object on disk, whose symbols come later.
 *
 * The file is written whole, with every trampoline and its unwind data, and then loaded into the process
 * like any library; profilers, debuggers and unwinders find it the way they find libraries. A function
 * that is published gets its name in the symbol table and its file and line in the line table. Virtual
 * address and file offset are the same everywhere. All sizes are fixed when the file is made.
 *
 *   offset      section         loaded  what
 *   0           (headers)       r-x     Ehdr; Phdrs: LOAD r-x, LOAD rw-, DYNAMIC, GNU_EH_FRAME, GNU_STACK
 *   page        .text           r-x     the slots, ARCH_SLOT_STRIDE apart
 *   ..          .eh_frame       r-x     one CIE, one FDE a slot, terminator
 *   ..          .eh_frame_hdr   r-x     sorted table of all FDEs
 *   ..          .hash           r-x     nbucket 1, nchain: the number of symbols; the chain is empty
 *   ..          .dynsym         r-x     the null symbol, one symbol a slot
 *   ..          .dynstr         r-x     names ...
 *   (same)      .debug_line     r-x     ... and the line number program, in the same bytes: see below
 *   page        .dynamic        rw-     relocated in place by older versions of glibc
 *   ..          .debug_abbrev   -
 *   ..          .debug_info     -       one compilation unit over all of .text
 *   ..          .shstrtab       -
 *   ..          section headers -
 *
 * One table. A symbol table outside the loaded part would serve other processes only: dladdr() and
 * backtrace_symbols() read .dynsym in memory, and everybody else reads it where there is no .symtab.
 * A symbol's address, size and section stand from the beginning; it has no name, which makes readers pass
 * it over, until publishing writes st_name: four aligned bytes, there or not there.
 *
 * One region. Publishing appends to the line program (DWARF 4, section 6.2.5)
 *
 *     DW_LNE_define_file  "py::f:/srv/app.py"      the symbol's name: st_name points to this string
 *     DW_LNE_define_file  "/srv/app.py"            unless this file was defined before
 *     DW_LNS_set_file, DW_LNE_set_address, DW_LNS_advance_line, DW_LNS_copy,
 *     DW_LNS_advance_pc, DW_LNE_end_sequence
 *
 * so that a name and its line are one write, and what is not used yet is filled with an instruction that
 * does nothing (DW_LNS_set_basic_block), which makes the program valid at every moment.
 *
 * The file has no build-id: tools that cache by build-id would keep a copy without later names.
 *
 * Here are the bytes only; elfblock.h has the file and the process.
 */
#ifndef PYJD_ELFIMAGE_H
#define PYJD_ELFIMAGE_H

#include "bytes.h"

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

enum elfimage_section {
    ELFIMAGE_NULL, ELFIMAGE_TEXT, ELFIMAGE_EH_FRAME, ELFIMAGE_EH_FRAME_HDR, ELFIMAGE_HASH,
    ELFIMAGE_DYNSYM, ELFIMAGE_DYNSTR, ELFIMAGE_DYNAMIC, ELFIMAGE_DEBUG_LINE, ELFIMAGE_DEBUG_ABBREV,
    ELFIMAGE_DEBUG_INFO, ELFIMAGE_SHSTRTAB, ELFIMAGE_SECTIONS
};

/* Where everything is in the file. */
struct elfimage_layout {
    size_t capacity;                 /* slots */
    size_t begin[ELFIMAGE_SECTIONS]; /* by section, its first byte ... */
    size_t end[ELFIMAGE_SECTIONS];   /* ... and the one behind its last */
    size_t names;                    /* where the first name goes */
    size_t loaded;                   /* end of the r-x part */
    size_t headers;                  /* the section headers */
};

/* An upper bound of the size of an image of so many slots. */
size_t elfimage_size_most(size_t capacity);

/* Writes a whole image without names into empty `out`, which has elfimage_size_most(capacity) bytes, and
 * tells in `layout` where everything is. `salt` is unique to the image. */
void elfimage_compose(struct bytes *out, struct elfimage_layout *layout, size_t capacity,
                      uint64_t salt);

/* What a symbol's name and line need in the region of names, at most. */
size_t elfimage_names_needed(size_t symbol_length, size_t path_length);

/* One function's part of the line program. */
struct elfimage_line {
    const char *symbol;
    size_t symbol_length;
    const char *path;        /* of the file; NULL: `file` is defined already */
    uint32_t file;           /* its number in the line program */
    int32_t line;
    uint64_t addr;           /* of the slot, as offset in the image */
};

/* Appends it. *symbol_at and *path_at are where these strings begin in `out`. */
void elfimage_put_line(struct bytes *out, const struct elfimage_line *line, size_t *symbol_at,
                       size_t *path_at);

/* Where the st_name of a slot's symbol is in the file. */
static inline size_t elfimage_name_field(const struct elfimage_layout *layout, size_t slot)
{
    return layout->begin[ELFIMAGE_DYNSYM] + (slot + 1) * sizeof(Elf64_Sym) +
           offsetof(Elf64_Sym, st_name);
}

#endif
