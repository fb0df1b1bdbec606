/* own_jit: a JIT compiler of one function, which tells profilers of it through pyjitdump.
 *
 *     own_jit [SECONDS]
 *
 * The machine code of `own_jit::spin` is written into fresh memory, added with pyjd_add_code(), and called
 * for SECONDS (default 1). There is no Python in this process, and none is needed.
 *
 * x86-64 only. README.md next to this file says how to look at it.
 */
#include <pyjitdump.h>

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* uint64_t spin(uint64_t state, uint64_t rounds), in the System V calling convention. */
typedef uint64_t (*spin_function)(uint64_t state, uint64_t rounds);

static const uint8_t code[] = {
    0x55,                                     /*  0 push %rbp */
    0x48, 0x89, 0xe5,                         /*  1 mov  %rsp,%rbp */
    0x48, 0x89, 0xf8,                         /*  4 mov  %rdi,%rax */
    0x48, 0x69, 0xc0, 0x6d, 0x4e, 0xc6, 0x41, /*  7 imul $0x41c64e6d,%rax,%rax */
    0x48, 0x83, 0xc0, 0x39,                   /* 14 add  $57,%rax */
    0x48, 0xff, 0xce,                         /* 18 dec  %rsi */
    0x75, 0xf0,                               /* 21 jne  7 */
    0x5d,                                     /* 23 pop  %rbp */
    0xc3,                                     /* 24 ret */
};
enum { AFTER_PUSH = 1, AFTER_MOV = 4, LOOP = 7, AFTER_POP = 24 };

/* What a DWARF unwinder needs to find the caller: .eh_frame (a CIE, an FDE, a terminator), directly followed
 * by .eh_frame_hdr (LSB Core 5.0, sections 10.6 and 10.7). Distances are counted as if .eh_frame began
 * CODE_SPACE bytes behind the start of the code, where `perf inject` puts it. */
#define CODE_SPACE ((sizeof code + 7) & ~(size_t)7)

struct __attribute__((packed)) unwind {
    struct __attribute__((packed)) {
        uint32_t length;          /* bytes behind this field */
        uint32_t id;              /* 0: a CIE */
        uint8_t version;
        char augmentation[3];     /* "zR": FDEs say their pointer encoding, */
        uint8_t code_alignment;
        uint8_t data_alignment;   /* -8 as SLEB128 */
        uint8_t return_register;
        uint8_t augmentation_size;
        uint8_t fde_encoding;     /* which is this: pcrel, sdata4 */
        uint8_t program[7];
    } cie;
    struct __attribute__((packed)) {
        uint32_t length;
        uint32_t cie_distance;    /* from this field back to the CIE */
        int32_t code;             /* from this field to the code */
        uint32_t code_size;
        uint8_t augmentation_size;
        uint8_t program[15];
    } fde;
    uint32_t terminator;
    struct __attribute__((packed)) {
        uint8_t version;
        uint8_t encodings[3];     /* of eh_frame, count, table */
        int32_t eh_frame;         /* from this field */
        uint32_t count;           /* of table entries, of which there is one: */
        int32_t code;             /* from the start of hdr */
        int32_t fde;              /* likewise */
    } hdr;
};

/* Call frame instructions (DWARF 5, section 6.4.2) and DWARF numbers of registers. */
enum { ADVANCE = 0x40, OFFSET = 0x80, RESTORE = 0xc0 };
enum { DEF_CFA = 0x0c, DEF_CFA_REGISTER = 0x0d, DEF_CFA_OFFSET = 0x0e };
enum { RBP = 6, RSP = 7, RA = 16 };

#define AT(member) offsetof(struct unwind, member)
/* From a place in the unwind data to the start of the code. */
#define TO_CODE(member) (-(int32_t)(CODE_SPACE + AT(member)))

static const struct unwind unwind = {
    .cie =
        {
            .length = sizeof unwind.cie - 4,
            .version = 1,
            .augmentation = "zR",
            .code_alignment = 1,
            .data_alignment = -8 & 0x7f,
            .return_register = RA,
            .augmentation_size = 1,
            .fde_encoding = 0x1b,
            /* On entry: CFA = rsp + 8, the return address is at CFA - 8. */
            .program = {DEF_CFA, RSP, 8, OFFSET | RA, 1},
        },
    .fde =
        {
            .length = sizeof unwind.fde - 4,
            .cie_distance = AT(fde.cie_distance),
            .code = TO_CODE(fde.code),
            .code_size = sizeof code,
            .program =
                {
                    ADVANCE | AFTER_PUSH, DEF_CFA_OFFSET, 16, OFFSET | RBP, 2,
                    ADVANCE | (AFTER_MOV - AFTER_PUSH), DEF_CFA_REGISTER, RBP,
                    ADVANCE | (AFTER_POP - AFTER_MOV), DEF_CFA, RSP, 8, RESTORE | RBP,
                },
        },
    .hdr =
        {
            .version = 1,
            .encodings = {0x1b, 0x03, 0x3b},
            .eh_frame = -(int32_t)AT(hdr.eh_frame),
            .count = 1,
            .code = TO_CODE(hdr),
            .fde = (int32_t)AT(fde) - (int32_t)AT(hdr),
        },
};

/* Where the source of this code is: a language of our own, and two of its lines. */
static int announce(const void *memory)
{
    uint64_t start = (uintptr_t)memory;
    struct pyjd_line lines[] = {{start, "spin.own", 1}, {start + LOOP, "spin.own", 2}};
    struct pyjd_code added = {
        .addr = memory,
        .size = sizeof code,
        .name = "own_jit::spin",
        .lines = lines,
        .line_count = sizeof lines / sizeof *lines,
        .unwind = &unwind,
        .unwind_size = sizeof unwind,
        .unwind_hdr_size = sizeof unwind.hdr,
    };
    return pyjd_add_code(&added, sizeof added);
}

/* Memory is never writable and executable at once. Each function has pages to itself here; a JIT that packs
 * its code must leave CODE_SPACE + sizeof unwind, rounded up to 16, from one function to the next: `perf
 * inject` maps the unwind data there, and ranges that overlap are cut. */
static void *compile(void)
{
    size_t size = 4096;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    memcpy(memory, code, sizeof code);
    if (mprotect(memory, size, PROT_READ | PROT_EXEC)) {
        munmap(memory, size);
        return NULL;
    }
    return memory;
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static __attribute__((noinline)) uint64_t run(spin_function spin, double seconds)
{
    uint64_t state = 1;
    for (double end = now() + seconds; now() < end;)
        state = spin(state, 1000000);
    return state;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1.0;
    struct pyjd_status status;

    void *memory = compile();
    if (!memory) {
        perror("own_jit: memory for code");
        return EXIT_FAILURE;
    }
    /* Complete, and before it first runs. */
    int result = announce(memory);
    if (result < 0)
        fprintf(stderr, "own_jit: pyjd_add_code: %s\n", pyjd_strerror(result));

    spin_function spin;
    memcpy(&spin, &memory, sizeof spin); /* ISO C has no cast from data to code */
    printf("result:   %016" PRIx64 "\n", run(spin, seconds));
    pyjd_get_status(&status, sizeof status);
    printf("ranges:   %" PRIu64 "\n", status.foreign);
    printf("jitdump:  %s\n", status.jitdump_path);
    printf("perf map: %s\n", status.map_path);
    return EXIT_SUCCESS;
}
