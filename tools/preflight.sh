#!/bin/sh
# Before anything is downloaded: say in one sentence what this machine lacks and how to mend it.
# Usage: preflight.sh PYTHON [vllm]
python=${1:-python3}
need_disk_mb=600
need_memory_mb=1500
newest=14
if [ "${2:-}" = vllm ]; then
  need_disk_mb=4500
  need_memory_mb=4500
  newest=13
  # With CUDA it is more than twice as large.
  nvidia-smi -L >/dev/null 2>&1 && need_disk_mb=15000
fi

fail() {
  echo "forebay: $1" >&2
  exit 2
}

[ "$(uname -s)" = Linux ] || fail "Linux is needed and this is $(uname -s); run it in a Linux machine or container."
case $(uname -m) in
  x86_64 | aarch64) ;;
  *) fail "x86-64 or 64-bit ARM is needed and this is $(uname -m); run it on such a machine." ;;
esac
command -v "$python" >/dev/null 2>&1 ||
  fail "'$python' was not found; install it with: apt-get install python3 python3-venv (or: make PYTHON=/path/to/python3)."
"$python" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $newest))" ||
  fail "$python is $("$python" -V 2>&1), but Python 3.11 to 3.$newest is needed; name another one with: make PYTHON=/path/to/python3.12."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$python has no venv module; install it with: apt-get install python3-venv."
[ -w . ] || fail "this directory cannot be written; clone into one of your own."
free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
[ "$free_mb" -ge "$need_disk_mb" ] ||
  fail "$need_disk_mb MB of disk are needed here and $free_mb MB are free; free some, or clone onto another drive."
memory_mb=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
# A container may be allowed less than the machine has.
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
case $limit in
  '' | *[!0-9]*) ;;
  *) [ $((limit / 1048576)) -ge "$memory_mb" ] || memory_mb=$((limit / 1048576)) ;;
esac
[ "$memory_mb" -ge "$need_memory_mb" ] ||
  fail "$need_memory_mb MB of memory are needed and $memory_mb MB are available; stop something or use a larger machine."
