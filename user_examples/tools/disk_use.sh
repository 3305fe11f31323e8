#!/bin/bash
# How much room the files in a folder take. Copy it to ~/.moryflow/tools/ and make it executable.
#
# /// moryflow
# name = "disk_use"
# description = "Say how many KiB each entry of a folder takes, the largest first."
# domain = "read"
# targets = ["folder"]
# timeout = 30
#
# [parameters]
# required = ["folder"]
# properties.folder = { type = "string", description = "The folder; . is the working folder" }
# ///
set -euo pipefail

# The folder that the rules judged, with links followed.
folder=$MORYFLOW_TARGET

echo '{"progress": "measuring"}'
cd -- "$folder"
shopt -s nullglob dotglob
entries=(*)
if ((${#entries[@]})); then du -sk -- "${entries[@]}" | sort -rn; else echo "nothing is in $folder"; fi
