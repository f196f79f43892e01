#!/usr/bin/env bash
# How long two builds of memlet take from a recipe to what they print, side by side.
#
#   MEMLET_OTHER=/path/to/older/memlet bench/waiting.sh [ROW…]
#
# Each row is one command on one recipe, run RUNS times (3) by each build in turns, with empty caches and a folder of its own. A table of
# medians goes to the terminal, and all times to target/memlet/waiting.json: wall-clock seconds, processor seconds of the process and of
# the compilers that it runs, and kilobytes of its largest memory. Of a row that makes a plan, the steps of both builds' last plans are timed
# in turns, so that no time is saved at the cost of the plan. Rows that a build does not end within LIMIT seconds (900) are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
MEMLET=${MEMLET:-target/release/memlet}
RUNS=${RUNS:-3}
LIMIT=${LIMIT:-900}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 bench/waiting_recipes.py "$work/recipes"
mkdir -p target/memlet
MEMLET="$MEMLET" OTHER="${MEMLET_OTHER:-}" RUNS="$RUNS" LIMIT="$LIMIT" WORK="$work" exec python3 bench/waiting.py "$@"
