# What scripts/quickstart, scripts/test, scripts/test-matrix and .ci/run share. Sourced, not run.
# shellcheck shell=bash

# One line of progress, with the seconds since the script began.
say() { printf '==> [%3d s] %s\n' "$SECONDS" "$*"; }

# fail STATUS MESSAGE...: one line for each message, and the end.
fail() {
  local status=$1
  shift
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit "$status"
}

have() { command -v "$1" >/dev/null 2>&1; }

# logged FILE COMMAND...: runs the command with its output in the file; shows the end of it when it fails.
logged() {
  local log=$1 status=0
  shift
  printf '$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  [ "$status" -eq 0 ] || {
    echo "This failed (exit status $status): $*" >&2
    tail -n 15 "$log" | sed 's/^/    /' >&2
    echo "All of its output: $log" >&2
  }
  return "$status"
}

# --- What is missing ---------------------------------------------------------------------------------------------

# A probe for each Debian package. It asks for the thing, not for the package, so that a meson from pip or a
# perf built from source serves too.
is_there() {
  case $1 in
    gcc | g++ | clang) have "$1" ;;
    libc6-dev) echo '#include <stdio.h>' | "${CC:-cc}" -E - >/dev/null 2>&1 ;;
    meson) meson --version >/dev/null 2>&1 ;;
    ninja-build) have ninja ;;
    pkg-config) have pkg-config || have pkgconf ;;
    linux-perf) find_perf >/dev/null ;;
    python3) "${PYTHON:-python3}" -c 'import json, zlib, sqlite3, re, hashlib' >/dev/null 2>&1 ;;
    python3-pytest) pytest_python >/dev/null ;;
    check) pkg-config --exists check 2>/dev/null ;;
    libdw-dev) pkg-config --exists libdw 2>/dev/null ;;
    libelf-dev) pkg-config --exists libelf 2>/dev/null ;;
    python3-dev) system_python -c 'import os, sysconfig
raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' >/dev/null 2>&1 ;;
    binutils) have readelf ;;
    elfutils) have eu-stack ;;
    llvm) have llvm-symbolizer ;;
    git | gdb | bpftrace | strace | gunicorn | chromium | shellcheck | debootstrap) have "$1" ;;
    *) dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed ;;
  esac
}

# The same things for people whose system is not Debian.
in_words() {
  case $1 in
    gcc) echo "a C compiler (gcc)" ;;
    g++) echo "a C++ compiler (g++), to see that the header is C++ as well" ;;
    libc6-dev) echo "the headers of the C library" ;;
    meson) echo "meson, 1.0 or newer" ;;
    ninja-build) echo "ninja" ;;
    linux-perf) echo "perf, from the kernel's tools" ;;
    python3) echo "CPython 3.8 or newer with its sqlite3 and zlib modules" ;;
    python3-dev) echo "the development files of Python" ;;
    python3-pytest) echo "pytest" ;;
    check) echo "Check, the unit test library, with its development files" ;;
    libdw-dev | libelf-dev) echo "the development files of elfutils (${1%-dev})" ;;
    *) echo "$1" ;;
  esac
}

# perf that runs. Ubuntu's /usr/bin/perf is a wrapper which knows no perf but the running kernel's; any will do.
find_perf() {
  local candidate
  for candidate in ${PERF:+"$PERF"} perf /usr/lib/linux-tools/*/perf /usr/lib/linux-tools-*/perf /usr/bin/perf_*; do
    if "$candidate" --version >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# The distribution's Python, where a version manager hides it.
system_python() { if [ -x /usr/bin/python3 ]; then /usr/bin/python3 "$@"; else python3 "$@"; fi; }

# The Python that has pytest need not be the first on PATH.
pytest_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
    if "$candidate" -c 'import pytest' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# ensure LOG PACKAGE...: installs those Debian packages whose probe fails, or says what to install and exits with 2.
ensure() {
  local log=$1 package missing=()
  shift
  for package; do
    is_there "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  if ! have apt-get; then
    local words=()
    for package in "${missing[@]}"; do words+=("$(in_words "$package")"); done
    fail 2 "these are missing; install them with your system's package manager, then run this again:" "${words[@]}"
  fi
  # Ubuntu has perf under another name.
  if grep -qsx 'ID=ubuntu' /etc/os-release; then
    missing=("${missing[@]/#linux-perf/linux-tools-generic}")
  fi
  if [ "$(id -u)" -ne 0 ]; then
    fail 2 "something is missing, and installing it needs root. Run this, then run me again:" \
      "sudo apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # One broken source of several need not matter: installing shows.
  apt-get update -q >>"$log" 2>&1 </dev/null || echo "apt-get update failed" >>"$log"
  logged "$log" apt-get install -q -y --no-install-recommends "${missing[@]}" || exit 2
  hash -r
  for package; do
    is_there "$package" || fail 2 "$(in_words "$package") is installed but does not work (package $package); see $log"
  done
}

# --- perf ---------------------------------------------------------------------------------------------------------

# perf_event PERF: prints the event to sample with. When perf cannot record here, fails, with the reason on stderr.
# A virtual machine may lack `cycles`, or have it and never count: so a busy loop must give a sample.
perf_event() {
  local perf=$1 event dir status=1
  dir=$(mktemp -d)
  for event in cycles cpu-clock; do
    # shellcheck disable=SC2016 # for the inner shell
    if "$perf" record -q -e "$event" -o "$dir/data" -- sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done' \
      >"$dir/log" 2>&1 </dev/null && [ -n "$("$perf" script -i "$dir/data" 2>/dev/null)" ]; then
      # perf may have taken another one, without a word.
      "$perf" evlist -i "$dir/data" 2>/dev/null | sed 's/:.*//' | head -n 1
      status=0
      break
    fi
  done
  [ "$status" -eq 0 ] || why_no_perf "$dir/log" >&2
  rm -rf "$dir"
  return "$status"
}

# may BIT: whether this process has a capability, by its number in capability.h.
may() { ((16#$(awk '/^CapEff:/ {print $2}' /proc/self/status) >> $1 & 1)); }

# why_no_perf LOG: what perf said, the likely cause, and the cure.
why_no_perf() {
  local setting=/proc/sys/kernel/perf_event_paranoid level
  echo "perf cannot record here. It said:"
  grep -vE '^ *$|^Error:$' "$1" | head -n 3 | sed 's/^/    /'
  if [ ! -e "$setting" ]; then
    echo "This kernel (or sandbox) has no perf events at all: $setting is not there. Use a machine that has them."
    return
  fi
  level=$(cat "$setting")
  # CAP_SYS_ADMIN; CAP_PERFMON, from Linux 5.8 on.
  if may 21 || may 38; then
    echo "The kernel grants it (perf_event_paranoid is $level, and this process is privileged), so a seccomp filter,"
    echo "a security module or the hypervisor refuses. In a container: --security-opt seccomp=unconfined."
  elif [ "$(id -u)" -eq 0 ]; then
    echo "This is root without CAP_PERFMON, as in a container. Start the container with --cap-add PERFMON"
    echo "(docker, podman; in Kubernetes securityContext.capabilities.add: [PERFMON])."
  elif [ "$level" -le 2 ]; then
    echo "kernel.perf_event_paranoid is $level, which would do, so something else refuses: a container's seccomp filter"
    echo "(start it with --cap-add PERFMON), or a limit on locked memory (ulimit -l)."
  else
    echo "kernel.perf_event_paranoid is $level: without root, 2 or less is needed. Run this as root, or allow it with:"
    echo "    sudo sysctl kernel.perf_event_paranoid=1"
  fi
}

# --- Building -----------------------------------------------------------------------------------------------------

# build LOG DIRECTORY OPTION...: configures (once) and compiles. A directory that a moved or copied tree, an
# interrupted run or another meson left unusable is made anew.
build() {
  local log=$1 dir=$2 source
  shift 2
  if [ -e "$dir/meson-info/meson-info.json" ]; then
    source=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["directories"]["source"])' \
      "$dir/meson-info/meson-info.json" 2>/dev/null) || source=
    if [ "$source" = "$PWD" ] && meson setup "$@" --reconfigure "$dir" >>"$log" 2>&1 </dev/null; then
      logged "$log" meson compile -C "$dir"
      return
    fi
    echo "$dir is of no use, making it anew" >>"$log"
    find "$dir" -mindepth 1 -maxdepth 1 ! -name "$(basename "$(dirname "$log")")" -exec rm -rf {} +
  fi
  logged "$log" meson setup "$@" "$dir" && logged "$log" meson compile -C "$dir"
}
