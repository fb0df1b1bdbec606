/* elf_slot: one function with its unwind data as an ELF file in memory, at the address where it is in
 * the process: what libdw needs to be told about a slot, since an anonymous arena is no module to it. */
#ifndef ELF_SLOT_H
#define ELF_SLOT_H

#include <stddef.h>
#include <stdint.h>

struct elf_slot {
    uint64_t addr;
    const uint8_t *code;
    size_t code_size;
    const uint8_t *unwind;    /* .eh_frame, then .eh_frame_hdr; NULL: leave both out */
    size_t unwind_size;       /* of both */
    size_t unwind_hdr_size;   /* of the latter; 0: leave out the header */
    const char *name;
};

/* Addresses that the file covers, from `addr` on. */
size_t elf_slot_span(const struct elf_slot *slot);

/* A descriptor of a new memory file, or -1 with a line on stderr. */
int elf_slot_make(const struct elf_slot *slot);

#endif
