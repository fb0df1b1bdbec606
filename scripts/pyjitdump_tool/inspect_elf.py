"""The outer part of an image: ELF header, section headers, program headers, and where sections are
(System V ABI, chapters 4 and 5; libpyjitdump/elfimage.h). inspect_image.py has what is inside."""
import re
import struct

from .inspect_common import MACHINES, Broken, Cursor, Report, align, machine_name, printable

MAGIC = b"\x7fELF"
EHDR, PHDR, SHDR, SYM = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), \
    struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
ALLOC, WRITE, EXEC = 2, 1, 4
PROGBITS, STRTAB, HASH, DYNAMIC, DYNSYM = 1, 3, 5, 6, 11
# name, type, flags, linked section, info, alignment, entry size; in the order of their headers
SECTIONS = (
    ("", 0, 0, 0, 0, 0, 0),
    (".text", PROGBITS, ALLOC | EXEC, 0, 0, 4096, 0),
    (".eh_frame", PROGBITS, ALLOC, 0, 0, 8, 0),
    (".eh_frame_hdr", PROGBITS, ALLOC, 0, 0, 4, 0),
    (".hash", HASH, ALLOC, 5, 0, 8, 4),
    (".dynsym", DYNSYM, ALLOC, 6, 1, 8, 24),
    (".dynstr", STRTAB, ALLOC, 0, 0, 1, 0),
    (".dynamic", DYNAMIC, ALLOC | WRITE, 6, 0, 8, 16),
    (".debug_line", PROGBITS, 0, 0, 0, 1, 0),
    (".debug_abbrev", PROGBITS, 0, 0, 0, 1, 0),
    (".debug_info", PROGBITS, 0, 0, 0, 1, 0),
    (".debug_aranges", PROGBITS, 0, 0, 0, 16, 0),
    (".shstrtab", STRTAB, 0, 0, 0, 1, 0),
)
PT_NAMES = {1: "LOAD", 2: "DYNAMIC", 0x6474E550: "GNU_EH_FRAME", 0x6474E551: "GNU_STACK"}


class Section:
    def __init__(self, index, name, header_at, fields):
        self.index, self.name, self.header_at = index, name, header_at
        (self.name_at, self.type, self.flags, self.addr, self.offset, self.size, self.link, self.info,
         self.alignment, self.entry_size) = fields
        self.end = self.offset + self.size


class Outer:
    """Reads the headers into `sections`, by name, and checks them."""

    def __init__(self, path, data):
        self.report, self.data = Report(path, "image", len(data)), data
        self.sections, self.machine = {}, 0

    def cursor(self, name):
        section = self.sections[name]
        return Cursor(self.data, section.offset, section.end)

    # ----------------------------------------------------------------------------------- headers

    def elf_header(self):
        report = self.report
        cursor = Cursor(self.data, 0, len(self.data))
        (ident, kind, machine, version, entry, phoff, shoff, flags, ehsize, phentsize, self.phnum, shentsize,
         shnum, shstrndx) = EHDR.unpack(cursor.take(EHDR.size, "the ELF header"))
        report.check(ident[:4] == MAGIC, 0, "magic is %s, not 7f454c46", ident[:4].hex())
        wanted = bytes((2, 1, 1, 0))
        for index, what in enumerate(("class", "byte order", "version", "ABI")):
            report.check(ident[4 + index] == wanted[index], 4 + index, "ELF %s is %d, images of this machine "
                         "have %d", what, ident[4 + index], wanted[index])
        report.check(not any(ident[8:]), 8, "the end of e_ident is not zero")
        for offset, what, value, right in (
                (16, "e_type", kind, 3), (20, "e_version", version, 1), (24, "e_entry", entry, 0),
                (32, "e_phoff", phoff, EHDR.size), (48, "e_flags", flags, 0), (52, "e_ehsize", ehsize, EHDR.size),
                (54, "e_phentsize", phentsize, PHDR.size), (56, "e_phnum", self.phnum, 5),
                (58, "e_shentsize", shentsize, SHDR.size), (60, "e_shnum", shnum, len(SECTIONS)),
                (62, "e_shstrndx", shstrndx, len(SECTIONS) - 1)):
            report.check(value == right, offset, "%s is %d, images have %d", what, value, right)
        report.check(machine in MACHINES, 18, "e_machine is %d, which is no machine known here", machine)
        self.machine = machine
        report.summary["machine"] = machine_name(machine)
        headers = len(SECTIONS) * SHDR.size
        if shoff + headers > len(self.data):
            raise Broken(40, "truncated: the section headers end at %d, the file at %d", shoff + headers,
                         len(self.data))
        report.check(shoff + headers == len(self.data), 40, "%d bytes behind the section headers",
                     len(self.data) - shoff - headers)
        self.section_headers(shoff)

    def section_headers(self, shoff):
        report, data = self.report, self.data
        headers = [SHDR.unpack_from(data, shoff + index * SHDR.size) for index in range(len(SECTIONS))]
        strings = headers[-1][4], min(headers[-1][4] + headers[-1][5], len(data))
        for index, (fields, wanted) in enumerate(zip(headers, SECTIONS)):
            at = shoff + index * SHDR.size
            name, kind, flags, link, info, alignment, entry_size = wanted
            section = Section(index, name, at, fields)
            named = Cursor(data, strings[0] + section.name_at, strings[1])
            try:
                found = named.raw_string("section name").decode("latin-1")
                report.check(found == name, at, "section %d is named %s, images have %s there", index,
                             printable(found) or "nothing", name)
            except Broken:
                report.error(at, "the name of section %d, %s, is outside of .shstrtab", index, name)
            for offset, what, value, right in (
                    (4, "type", section.type, kind), (8, "flags", section.flags, flags),
                    (40, "link", section.link, link), (44, "info", section.info, info),
                    (48, "alignment", section.alignment, alignment),
                    (56, "entry size", section.entry_size, entry_size)):
                report.check(value == right, at + offset, "%s of section %s is %d, images have %d", what,
                             name or "0", value, right)
            if index == 0:
                report.check(not any(fields), at, "the header of section 0 is not zero")
                continue
            right = section.offset if flags & ALLOC else 0
            report.check(section.addr == right, at + 16, "section %s has address %d, its place is %d", name or "0",
                         section.addr, right)
            if section.end > len(data):
                report.error(at + 24, "truncated: section %s ends at %d, the file at %d", name, section.end,
                             len(data))
                continue
            self.sections[name] = section
            report.records.append({
                "offset": section.offset, "type": "section", "name": name, "size": section.size,
                "loaded": "rw-" if flags & WRITE else "r-x" if flags & ALLOC else ""})

    def layout(self):
        """Where sections are, one behind the other; .debug_line alone begins inside of another one."""
        report, before = self.report, self.sections[".text"]
        page = before.offset if before.offset in (4096, 16384, 65536) else 4096
        report.check(before.offset == page, before.header_at + 24,
                     ".text is at %d, which is no page size", before.offset)
        self.gap(EHDR.size + 5 * PHDR.size, before.offset)
        end = before.end
        for name in (".eh_frame", ".eh_frame_hdr", ".hash", ".dynsym", ".dynstr", ".debug_line", ".dynamic",
                     ".debug_abbrev", ".debug_info", ".debug_aranges", ".shstrtab"):
            section = self.sections[name]
            to = {".eh_frame_hdr": 4, ".debug_abbrev": 1, ".debug_info": 4, ".debug_aranges": 16, ".shstrtab": 1,
                  ".dynamic": page}.get(name, 8)
            if name == ".debug_line":               # its header has the names, which .dynstr has too
                report.check(section.offset == before.offset + 4 and section.end > before.end,
                             section.header_at + 24, ".debug_line, %d to %d, does not go from 4 bytes inside of"
                             " .dynstr, %d to %d, to behind it", section.offset, section.end, before.offset,
                             before.end)
                before, end = section, section.end
                continue
            place = align(before.end, to)
            report.check(section.offset == place, section.header_at + 24, "%s is at %d, behind %s would be %d", name,
                         section.offset, before.name, place)
            before = section
            self.gap(end, section.offset)
            end = section.end
        self.gap(end, len(self.data) - len(SECTIONS) * SHDR.size)

    def gap(self, start, end):
        found = re.search(rb"[^\0]", self.data[start:end])
        self.report.check(not found, start + (found.start() if found else 0),
                          "the space between two sections, %d to %d, is not zero", start, end)

    def program_headers(self):
        report, sections = self.report, self.sections
        dynamic, hdr = sections[".dynamic"], sections[".eh_frame_hdr"]
        wanted = ((1, 5, 0, sections[".debug_line"].end), (1, 6, dynamic.offset, dynamic.size),
                  (2, 6, dynamic.offset, dynamic.size), (0x6474E550, 4, hdr.offset, hdr.size),
                  (0x6474E551, 6, 0, 0))
        for index, (kind, flags, offset, size) in enumerate(wanted):
            at = EHDR.size + index * PHDR.size
            found = PHDR.unpack_from(self.data, at)
            for field, what, value, right in zip(
                    (0, 4, 8, 16, 24, 32, 40), ("type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz"),
                    found, (kind, flags, offset, offset, offset, size, size)):
                report.check(value == right, at + field, "%s of program header %d (%s) is %d, should be %d", what,
                             index, PT_NAMES[kind], value, right)
            alignment = found[7]
            report.check(alignment and alignment & alignment - 1 == 0, at + 48,
                         "alignment of program header %d (%s) is %d", index, PT_NAMES[kind], alignment)
