#!/usr/bin/env python3
"""The shared library shows the world its public functions and nothing else.

usage: check-exports.py LIBPYJITDUMP PYJITDUMP_H

Exports are what the header declares, and __gmon_start__ (preload.c says why). Besides: the soname, the
NODELETE flag, no text relocations, no executable stack, no need of a libpython.
"""

import re
import subprocess
import sys

SONAME = 'libpyjitdump.so.0'
EXTRA = {'__gmon_start__'}


def readelf(library, *options):
    return subprocess.run(['readelf', '-W', *options, library], stdout=subprocess.PIPE, check=True,
                          text=True, env={'LC_ALL': 'C', 'PATH': '/usr/bin:/bin:/usr/local/bin'}).stdout


def declared(header):
    """Functions that the header declares with PYJD_API."""
    with open(header, encoding='utf-8') as file:
        text = re.sub(r'/\*.*?\*/', '', file.read(), flags=re.DOTALL)
    return set(re.findall(r'\bPYJD_API\b[^;]*?\b(pyjd_\w+)\s*\(', text))


def exported(library):
    """Names of all symbols that others can bind to."""
    names = set()
    for line in readelf(library, '--dyn-syms').splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(':') or fields[0] == 'Num:':
            continue
        kind, binding, visibility, section, name = fields[3:8]
        if section in ('UND', 'ABS') or binding == 'LOCAL' or visibility in ('HIDDEN', 'INTERNAL'):
            continue
        names.add(name.split('@')[0])
    return names


def check_symbols(library, header):
    wanted = declared(header) | EXTRA
    found = exported(library)
    if len(wanted) <= len(EXTRA):
        yield 'no declaration found in %s' % header
    for name in sorted(found - wanted):
        yield 'exports %s, which the header does not declare' % name
    for name in sorted(wanted - found):
        yield 'does not export %s' % name


def check_dynamic(library):
    dynamic = readelf(library, '--dynamic')
    soname = re.findall(r'\(SONAME\).*\[(.*)\]', dynamic)
    if soname != [SONAME]:
        yield 'soname is %s' % soname
    if not re.search(r'\(FLAGS_1\).*\bNODELETE\b', dynamic):
        yield 'no NODELETE flag'
    if re.search(r'\(TEXTREL\)|\(FLAGS\).*\bTEXTREL\b', dynamic):
        yield 'has text relocations'
    for needed in re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic):
        if 'python' in needed:
            yield 'needs %s' % needed


def check_segments(library):
    headers = readelf(library, '--program-headers')
    stack = re.search(r'^\s*GNU_STACK\s+(?:0x\w+\s+){5}([RWE ]+?)\s+0x', headers, re.MULTILINE)
    if not stack:
        yield 'no GNU_STACK header: the stack would be executable'
    elif 'E' in stack.group(1):
        yield 'asks for an executable stack'
    for flags in re.findall(r'^\s*LOAD\s+(?:0x\w+\s+){5}([RWE ]+?)\s+0x', headers, re.MULTILINE):
        if 'W' in flags and 'E' in flags:
            yield 'has a segment that is writable and executable'


def main():
    library, header = sys.argv[1:3]
    troubles = [*check_symbols(library, header), *check_dynamic(library), *check_segments(library)]
    for trouble in troubles:
        print(trouble)
    print('%d exports, %d troubles' % (len(exported(library)), len(troubles)))
    return 1 if troubles else 0


if __name__ == '__main__':
    sys.exit(main())
