# shellcheck shell=bash
# Shared by the scripts of deploy/ and tests/: messages, root rights, building with progress. Sourced, never run.
# Needs bash and coreutils alone.

set -euo pipefail
export LC_ALL=C.UTF-8

tessera_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' red=$'\e[31m' reset=$'\e[0m' on_terminal=1
else
  bold='' red='' reset='' on_terminal=
fi

# step TEXT: the heading of a stage.
step() { printf '%s==> %s%s\n' "$bold" "$*" "$reset"; }

# note TEXT: a line beneath it.
note() { printf '    %s\n' "$*"; }

# die CAUSE CURE...: says what went wrong and what to do about it, and exits 1.
die() {
  printf '%serror: %s%s\n' "$red" "$1" "$reset" >&2
  shift
  local line
  for line in "$@"; do printf '  cure: %s\n' "$line" >&2; done
  exit 1
}

# as_root COMMAND...: runs it as root, with sudo where needed; need_root comes first.
as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

# need_root WHAT AS-ROOT-COMMAND: dies where there is neither root nor sudo.
need_root() {
  [[ $(id -u) == 0 ]] || command -v sudo >/dev/null ||
    die "$1 needs root rights, and there is no sudo" "run this once as root: $2"
}

# build_jobs: compilers to run at once; gRPC's headers take over a gigabyte each under a sanitizer.
build_jobs() {
  local cores memory_kib jobs
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || echo 4000000)
  jobs=$((memory_kib / 1300000))
  ((jobs < 1)) && jobs=1
  ((jobs > cores)) && jobs=$cores
  echo "$jobs"
}

# configure PRESET CMAKE-OPTION...: CMake, quiet unless it fails.
configure() {
  local preset=$1 dir log known
  shift
  dir=$(preset_dir "$preset")
  mkdir -p "$dir"
  log=$dir/configure.log
  local fresh=()
  if [[ -f $dir/CMakeCache.txt ]]; then
    known=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$dir/CMakeCache.txt")
    [[ $known == "$tessera_root" ]] || fresh=(--fresh)
  fi
  if ! (cd "$tessera_root" && cmake --preset "$preset" "${fresh[@]}" "$@") >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    die "CMake could not configure the '$preset' build (whole log: $log)" \
        "install what it misses with ./deploy/install-packages build test, or remove $dir and try again"
  fi
}

preset_dir() {
  if [[ $1 == release ]]; then echo "$tessera_root/build"; else echo "$tessera_root/build-$1"; fi
}

# build PRESET TARGET...: Ninja with progress; no target means all of them.
build() {
  local preset=$1 dir log status=0
  shift
  dir=$(preset_dir "$preset")
  log=$dir/build.log
  local command=(cmake --build "$dir" --parallel "$(build_jobs)")
  (($# > 0)) && command+=(--target "$@")
  # Compiler output goes to the log. A terminal gets one line that moves, a file a line every tenth.
  NINJA_STATUS='[%f/%t %es] ' "${command[@]}" 2>&1 | tee "$log" | show_build_progress || status=$?
  if ((status != 0)); then
    grep -A 12 -E '^FAILED:|error:|ninja: error' "$log" | tail -n 40 >&2 || true
    if grep -q -E 'Killed|cannot allocate memory|internal compiler error: Killed' "$log"; then
      die "a compiler was killed, most likely for lack of memory (whole log: $log)" \
          "close other programs or add swap, then run this again: it goes on where it stopped"
    fi
    die "the '$preset' build failed (whole log: $log)" \
        "see the first error above; if files were moved or updated by hand, remove $dir and try again"
  fi
}

show_build_progress() {
  awk -v terminal="$on_terminal" -v columns="${COLUMNS:-100}" '
    match($0, /^\[[0-9]+\/[0-9]+ [0-9.]+s\]/) {
      split(substr($0, 2), part, /[\/ ]/)
      if (terminal) {
        printf "\r\033[K    %s", substr($0, 1, columns - 6); fflush()
      } else if (part[2] > 0 && (tenth = int(10 * part[1] / part[2])) > last) {
        last = tenth; split($0, head, "]"); printf "    %s]\n", head[1]; fflush()
      }
    }
    END { if (terminal) printf "\r\033[K" }'
}
