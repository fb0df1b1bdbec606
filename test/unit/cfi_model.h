/* cfi_model: does call frame information say what the instructions do?
 *
 * One side is a small model of an x86-64: it decodes the bytes of a function, runs them on a stack of
 * its own, and so knows at each instruction where the caller's frame, its return address and its
 * registers are. The other side is libdw, which reads the CFI. The two know nothing of each other.
 */
#ifndef CFI_MODEL_H
#define CFI_MODEL_H

#include <elfutils/libdw.h>
#include <stddef.h>
#include <stdint.h>

enum { CFI_TROUBLE = 256 };

/* Compares both sides at every byte of a function that is at `addr` and has these bytes. A byte within
 * an instruction is in the state the instruction starts in: that is where an unwinder looks up a call,
 * one byte before the return address. What follows the last `ret`, and so never runs, is in the state of
 * that. Returns 0, or -1 with a sentence in `trouble`. */
int cfi_check_function(Dwarf_CFI *cfi, uint64_t addr, const uint8_t *code, size_t size,
                       char trouble[CFI_TROUBLE]);

/* The same for each FDE of an ELF file; also that .eh_frame_hdr, if it is there, has exactly these FDEs
 * in its table, and that each function of the symbol table has an FDE of exactly its bytes. Returns the number of functions checked, or -1 with a sentence in `trouble`. */
int cfi_check_elf(Elf *elf, char trouble[CFI_TROUBLE]);

#endif
