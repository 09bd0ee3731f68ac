#!/bin/sh
# Objects compiled for one instruction set must define no symbol that the linker could merge with another
# file's: an inline function with AVX-512 code chosen for everybody would crash a machine that lacks it.
#   isa_symbols_test.sh OBJECT...
status=0
for object in "$@"; do
  weak=$(nm --demangle --defined-only "$object" | grep -E ' [WVuU] ' | grep -v 'DW.ref.__gxx_personality')
  if [ -n "$weak" ]; then
    echo "$object defines mergeable symbols:"
    echo "$weak"
    status=1
  fi
done
exit $status
