/* The jitdump file, as `perf inject --jit` reads it (Linux, tools/perf/Documentation/
 * jitdump-specification.txt, and where that is silent or differs, tools/perf/util/jitdump.c).
 *
 * Everything is in the byte order of the machine. A header, then records to the end of the file:
 *
 *   Header, 40 bytes                         Record prefix, 16 bytes
 *   0   u32 magic 0x4A695444                 0   u32 id
 *   4   u32 version 1                        4   u32 total_size, this prefix included
 *   8   u32 total_size 40                    8   u64 timestamp
 *   12  u32 elf_mach
 *   16  u32 pad 0                            Timestamps are nanoseconds of CLOCK_MONOTONIC, as in
 *   20  u32 pid                              `perf record -k 1`, and not later than the first
 *   24  u64 timestamp                        sample in the code they speak of.
 *   32  u64 flags 0
 *
 * For each function three records, in this order; the first two speak of the LOAD that comes next:
 *
 *   DEBUG_INFO (2)                 UNWINDING_INFO (4)               LOAD (0)
 *   16  u64 code_addr              16  u64 unwind_size              16  u32 pid
 *   24  u64 nr_entry               24  u64 eh_frame_hdr_size        20  u32 tid
 *   32  entries, unaligned:        32  u64 mapped_size              24  u64 vma
 *       u64 addr                   40  .eh_frame, then              32  u64 code_addr
 *       i32 line                       .eh_frame_hdr                40  u64 code_size
 *       i32 discriminator          ..  zeros to a multiple of 8     48  u64 code_index
 *       char file[], NUL                                            56  char name[], NUL
 *   ..  zeros to 8                                                  ..  code, nothing behind it
 *
 * unwind_size counts .eh_frame and .eh_frame_hdr without the padding; mapped_size is how much perf
 * maps behind the code, unwind_size rounded up to 16. (The specification names the header first; perf
 * takes it from the end.) A DEBUG_INFO's last entry stands at the end of the code: perf turns the
 * entries into a line table, and a return address needs the row after its own to have a line.
 * code_index names the file perf makes of the record, so two equal ones overwrite each other.
 *
 * Not used: CODE_MOVE (code does not move) and CODE_CLOSE (samply stops reading at it; and a process
 * that is killed cannot write it, so a reader can do without).
 */
#ifndef PYJD_JITDUMP_FORMAT_H
#define PYJD_JITDUMP_FORMAT_H

enum {
    JITDUMP_MAGIC = 0x4A695444,
    JITDUMP_VERSION = 1,
    JITDUMP_HEADER_SIZE = 40,
    JITDUMP_TIME_AT = 24, /* of the header's timestamp */

    JITDUMP_LOAD = 0,
    JITDUMP_DEBUG_INFO = 2,
    JITDUMP_UNWINDING_INFO = 4,

    JITDUMP_UNWIND_ALIGN = 16, /* of mapped_size */
};

#endif
