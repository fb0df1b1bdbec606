#!/usr/bin/env python3
"""The unwind data in the files that `perf inject --jit` makes is right: check-cfi looks at each.

usage: test_perf_inject.py LIBPYJITDUMP CHECK_CFI
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77

WORKLOAD = '''\
import json, time
def work(n):
    return sum(i * i for i in range(n))
end = time.monotonic() + 1
while time.monotonic() < end:
    work(3000)
    json.dumps({"a": [1, 2, 3]})
'''


def skip(reason):
    print('SKIP perf-inject: %s' % reason)
    return SKIPPED


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, **options)


def record(perf, library, folder):
    """Records the workload; perf's exit status and output."""
    app = os.path.join(folder, 'app.py')
    with open(app, 'w') as file:
        file.write(WORKLOAD)
    return run([perf, 'record', '-q', '-k', '1', '-e', 'cpu-clock', '--call-graph', 'dwarf,16384',
                '-o', os.path.join(folder, 'perf.data'), '--',
                'env', 'LD_PRELOAD=' + library, 'PYJD_OUTPUT=jitdump', 'PYJD_DIR=' + folder,
                '/usr/bin/python3', app])


def main():
    library, check_cfi = map(os.path.abspath, sys.argv[1:3])
    perf = shutil.which('perf')
    if not perf:
        return skip('perf is not installed')
    if os.uname().machine != 'x86_64':
        return skip('check-cfi knows x86-64 only')
    if run([perf, 'stat', '-e', 'cpu-clock', 'true']).returncode:
        return skip('perf may not be used here (kernel.perf_event_paranoid)')
    with open(library, 'rb') as file:
        if b'__asan_init' in file.read():
            return skip('the library is built with AddressSanitizer')

    with tempfile.TemporaryDirectory(prefix='pyjd-inject-') as folder:
        recorded = record(perf, library, folder)
        if recorded.returncode:
            print('perf record: %s' % recorded.stdout)
            return 1
        injected = run([perf, 'inject', '--jit', '-i', os.path.join(folder, 'perf.data'),
                        '-o', os.path.join(folder, 'perf.jit.data')])
        files = glob.glob(os.path.join(folder, 'jitted-*.so'))
        if injected.returncode or len(files) < 10:
            print('perf inject made %d files: %s' % (len(files), injected.stdout))
            return 1
        checked = run([check_cfi] + files)
        print(checked.stdout)
        return checked.returncode


if __name__ == '__main__':
    sys.exit(main())
