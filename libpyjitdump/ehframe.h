/* ehframe: the bytes of .eh_frame and .eh_frame_hdr (LSB Core 5.0, sections 10.6 and 10.7).
 *
 * For one function, as jitdump's UNWINDING_INFO record carries it and as `perf inject` lays it out in
 * the file it makes. The code is at C, its size rounded up to 8 is S, and all that follows is placed
 * directly behind it, in the file and in the process' address space alike:
 *
 *     C                      code
 *     C+S                    CIE          24 bytes on x86-64
 *     C+S+cie                FDE          32
 *     C+S+cie+fde            terminator   4
 *     C+S+eh_frame_size      .eh_frame_hdr, 20 bytes:
 *        +0   u8 version 1, u8 eh_frame_ptr_enc 0x1b, u8 fde_count_enc 0x03, u8 table_enc 0x3b
 *        +4   s32 from this field to .eh_frame         = -(eh_frame_size + 4)
 *        +8   u32 number of table entries              = 1
 *        +12  s32 code, from the header's start        = -(S + eh_frame_size)
 *        +16  s32 FDE, from the header's start         = -(eh_frame_size - cie)
 *
 * The FDE's pc_begin is pcrel|sdata4 (0x1b): the distance from the field itself back to C.
 */
#ifndef PYJD_EHFRAME_H
#define PYJD_EHFRAME_H

#include "bytes.h"

#include <stddef.h>
#include <stdint.h>

enum { EHFRAME_HDR_SIZE = 20, EHFRAME_FUNCTION_MAX = 128 };

/* Bytes that a slot takes in both sections of a table, at most. */
enum { EHFRAME_ENTRY_MOST = 48 + 8 };

/* Appends .eh_frame and .eh_frame_hdr of `count` slots that begin at position `code` of the same
 * coordinates as out->len: one CIE, one FDE a slot, terminator; header, sorted table. Returns the size of
 * the .eh_frame part. Overflow is left in `out`. */
size_t ehframe_table(struct bytes *out, size_t code, size_t count);

/* Appends .eh_frame and .eh_frame_hdr of one slot-shaped function of `code_size` bytes, in the order
 * and with the distances drawn above. Returns the size of the .eh_frame part; the header behind it
 * is EHFRAME_HDR_SIZE bytes. Overflow is left in `out`. */
size_t ehframe_function(struct bytes *out, uint32_t code_size);

#endif
