#!/bin/bash
# Runs a clean-up in a sandbox, where it can delete no file of the host.
set -euo pipefail

mkdir logs
touch -d '40 days ago' logs/{app,error}-old.log
touch logs/app-today.log

find logs -name '*.log' -mtime +30 -print -delete | sort
echo "left: $(ls logs)"
