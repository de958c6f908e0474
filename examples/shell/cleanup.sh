#!/bin/bash
# What would a clean-up delete? Try it where nothing can be lost.
set -euo pipefail

mkdir logs
touch -d '40 days ago' logs/{app,error}-old.log
touch logs/app-today.log

find logs -name '*.log' -mtime +30 -print -delete | sort
echo "left: $(ls logs)"
