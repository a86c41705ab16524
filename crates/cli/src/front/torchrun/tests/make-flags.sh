#!/bin/sh
# Writes flags.txt: every flag of torch's own torchrun, from its --help. Run it where torch 2.13 is installed.
cd "$(dirname "$0")" && COLUMNS=400 torchrun --help | sed -n '/^options:/,$p' | grep -oE '^  +-.*' |
    sed -E 's/  +[A-Z].*$//' | grep -oE -- '-[-a-z_]+' | grep -E '^--|^-[a-z]$' | LC_ALL=C sort -u > flags.txt
