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
 *   (same)      .debug_line     r-x     ... which are a part of this section too, and go on to
 *   ..          (same)          r-x     the line number program, a record of 32 bytes a slot: see below
 *   page        .dynamic        rw-     relocated in place by older versions of glibc
 *   ..          .debug_abbrev   -
 *   ..          .debug_info     -       one compilation unit over all of .text
 *   ..          .debug_aranges  -       that the unit is there
 *   ..          .shstrtab       -
 *   ..          section headers -
 *
 * One table. A symbol table outside the loaded part would serve other processes only: dladdr() and
 * backtrace_symbols() read .dynsym in memory, and everybody else reads it where there is no .symtab.
 * A symbol's address, size and section stand from the beginning; it has no name, which makes readers pass
 * it over, until publishing writes st_name: four aligned bytes, there or not there.
 *
 * One list of names. A line number unit's header (DWARF 4, section 6.2.4) ends with a list of files, each
 * "NAME\0" and three bytes, and an empty name. Here its last file has a name of as many dots as there is room
 * left. A function's symbol, and its file unless that is listed already, are written over the first of the
 * dots, and st_name points to the symbol in there: names and files are one write, and the list is valid at
 * every moment. (DW_LNE_define_file would need no such list, but libdw takes the length of an extended
 * instruction for one byte, and names of 123 bytes and more go wrong.)
 *
 * One record a slot in the line number program, all of the same size and there from the beginning:
 *
 *     0    00 09 02 ADDRESS             DW_LNE_set_address
 *     11   07 07 07 07                  DW_LNS_set_basic_block: does nothing, and aligns what follows
 *     15   04 FILE                      DW_LNS_set_file, 3 bytes of ULEB128
 *     19   03 LINE                      DW_LNS_advance_line, 4 bytes of SLEB128; a sequence begins at 1
 *     24   01                           DW_LNS_copy
 *     25   02 SIZE                      DW_LNS_advance_pc, to the end of the function
 *     27   00 01 01                     DW_LNE_end_sequence
 *     30   07 07
 *
 * Publishing writes the eight aligned bytes from 16 on. Before that they say line 0, which is "none".
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
    ELFIMAGE_DEBUG_INFO, ELFIMAGE_DEBUG_ARANGES, ELFIMAGE_SHSTRTAB, ELFIMAGE_SECTIONS
};

enum { ELFIMAGE_LINE_RECORD = 32, ELFIMAGE_LINE_WORD = 16 };

/* The list of names begins with one that stands for no file, and begins counting at 1. */
enum { ELFIMAGE_NO_FILE = 1, ELFIMAGE_FIRST_FILE = 2 };

/* Where everything is in the file. */
struct elfimage_layout {
    size_t capacity;                 /* slots */
    size_t begin[ELFIMAGE_SECTIONS]; /* by section, its first byte ... */
    size_t end[ELFIMAGE_SECTIONS];   /* ... and the one behind its last */
    size_t names;                    /* where the first name to come goes */
    size_t names_end;                /* names leave one dot of the last file's name */
    size_t lines;                    /* the first slot's line record */
    size_t loaded;                   /* end of the r-x part */
    size_t headers;                  /* the section headers */
};

/* An upper bound of the size of an image of so many slots. */
size_t elfimage_size_most(size_t capacity);

/* Writes a whole image without names into empty `out`, which has elfimage_size_most(capacity) bytes, and
 * tells in `layout` where everything is. `salt` is unique to the image. */
void elfimage_compose(struct bytes *out, struct elfimage_layout *layout, size_t capacity,
                      uint64_t salt);

/* What a function's names need in the list, at most. */
size_t elfimage_names_needed(size_t symbol_length, size_t path_length);

/* Appends one name to the list. */
void elfimage_put_name(struct bytes *out, const char *name, size_t length);

/* The eight bytes of a slot's line record. `file` is the number of a name in the list, counted from 1; a
 * number or a line that does not fit (2^21 and 2^27) gives "none". */
uint64_t elfimage_line_word(uint32_t file, int32_t line);

/* Where a slot's eight bytes are in the file, */
static inline size_t elfimage_line_field(const struct elfimage_layout *layout, size_t slot)
{
    return layout->lines + slot * ELFIMAGE_LINE_RECORD + ELFIMAGE_LINE_WORD;
}

/* and the st_name of its symbol. */
static inline size_t elfimage_name_field(const struct elfimage_layout *layout, size_t slot)
{
    return layout->begin[ELFIMAGE_DYNSYM] + (slot + 1) * sizeof(Elf64_Sym) +
           offsetof(Elf64_Sym, st_name);
}

#endif
