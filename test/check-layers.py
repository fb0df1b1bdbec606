#!/usr/bin/env python3
"""A file of the library includes only downward, is not long, and each header stands alone.

usage: check-layers.py SOURCE_ROOT COMPILER...

The floors are those of docs/architecture.md. A new file must be given its floor here: until then it is
reported as not listed.
"""

import os
import re
import subprocess
import sys

LINES_MOST = 350

# From the top. A file may include headers of the floors below its own.
FLOORS = [
    (5, ['preload', 'api']),
    (4, ['session', 'arming']),
    (3, ['evalhook', 'interp', 'codename', 'qualname', 'cpython']),
    (2, ['registry', 'foreign', 'elfblock', 'sink', 'sink_jitdump', 'sink_perfmap', 'sink_elf']),
    (1, ['arena', 'elfimage', 'ehframe', 'jitdump_format']),
    (0, ['arch/arch', 'arch/x86_64', 'arch/aarch64', 'outfile', 'bytes', 'config', 'lock', 'log', 'platform']),
]

# Within a floor: who may include whom.
SAME_FLOOR = {
    'arming': ['session'],
    'evalhook': ['codename', 'interp', 'qualname', 'cpython'],
    'interp': ['cpython'],
    'codename': ['qualname', 'cpython'],
    'qualname': ['cpython'],
    'foreign': ['sink'],
    'sink_jitdump': ['sink'],
    'sink_perfmap': ['sink'],
    'sink_elf': ['sink', 'elfblock'],
    'elfimage': ['ehframe'],
    'config': ['log'],
    'outfile': ['platform'],
    'arch/arch': ['arch/x86_64', 'arch/aarch64'],
    'arch/x86_64': ['arch/arch'],
    'arch/aarch64': ['arch/arch'],
}

# The public header is above everything and known to its implementation only.
PUBLIC = {'pyjitdump.h': ['api']}

FLOOR_OF = {name: floor for floor, names in FLOORS for name in names}


def source_files(library):
    """Paths of C files and headers, relative to the library's folder."""
    for folder, _, names in os.walk(library):
        for name in sorted(names):
            if name.endswith(('.c', '.h')):
                yield os.path.relpath(os.path.join(folder, name), library)


def includes(library, path):
    """The library's own headers that a file includes, as modules, with their line numbers."""
    with open(os.path.join(library, path), encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if match:
                yield number, match.group(1)


def resolve(library, path, target):
    """The module that `target` is when `path` includes it, or None."""
    for base in (os.path.dirname(path), ''):
        candidate = os.path.normpath(os.path.join(base, target))
        if os.path.exists(os.path.join(library, candidate)):
            return os.path.splitext(candidate)[0]
    return None


def check_include(library, path, target):
    """None, or what is wrong with an include."""
    module = os.path.splitext(path)[0]
    if target in PUBLIC:
        return None if module in PUBLIC[target] else 'only the API includes the public header'
    other = resolve(library, path, target)
    if other is None:
        return 'no such header in the library'
    if not target.endswith('.h'):
        return 'includes what is not a header'
    if other == module:
        return None
    if other not in FLOOR_OF:
        return '%s has no floor' % other
    here, there = FLOOR_OF[module], FLOOR_OF[other]
    if there > here:
        return 'floor %d includes floor %d' % (here, there)
    if there == here and other not in SAME_FLOOR.get(module, []):
        return 'same floor, and not listed'
    return None


def check_file(library, path):
    if os.path.splitext(path)[0] not in FLOOR_OF:
        yield '%s: not listed in check-layers.py: which floor is it on?' % path
        return
    with open(os.path.join(library, path), encoding='utf-8') as file:
        count = sum(1 for _ in file)
    if count > LINES_MOST:
        yield '%s: %d lines, more than %d' % (path, count, LINES_MOST)
    for number, target in includes(library, path):
        trouble = check_include(library, path, target)
        if trouble:
            yield '%s:%d: "%s": %s' % (path, number, target, trouble)


def compiles(compiler, flags, path):
    """None, or the compiler's complaints about one file on its own."""
    command = compiler + flags + ['-Wall', '-Wextra', '-Werror', '-fsyntax-only', path]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.stdout.strip() if run.returncode else None


def check_headers(root, compiler):
    library = os.path.join(root, 'libpyjitdump')
    for path in source_files(library):
        if path.endswith('.h'):
            trouble = compiles(compiler, ['-x', 'c', '-std=c11', '-D_GNU_SOURCE', '-I', library],
                               os.path.join(library, path))
            if trouble:
                yield '%s does not compile alone:\n%s' % (path, trouble)
    public = os.path.join(root, 'include', 'pyjitdump.h')
    for flags in (['-x', 'c', '-std=c99', '-Wstrict-prototypes'], ['-x', 'c++', '-std=c++11']):
        trouble = compiles(compiler, flags + ['-pedantic-errors'], public)
        if trouble:
            yield 'pyjitdump.h does not compile with %s:\n%s' % (' '.join(flags), trouble)


def main():
    root, compiler = sys.argv[1], sys.argv[2:]
    library = os.path.join(root, 'libpyjitdump')
    paths = list(source_files(library))
    troubles = [trouble for path in paths for trouble in check_file(library, path)]
    troubles += check_headers(root, compiler)
    for trouble in troubles:
        print(trouble)
    print('%d files, %d troubles' % (len(paths), len(troubles)))
    return 1 if troubles or not paths else 0


if __name__ == '__main__':
    sys.exit(main())
