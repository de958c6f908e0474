#!/usr/bin/env bash
# Draws docs/images/run.svg, the picture in README.md: runs each command below on a terminal of 104 columns and converts
# what the terminal receives, with its colours, to SVG. Needs root, as the commands do, and python3.
# Usage: scripts/picture.sh [DIRECTORY], a directory with the executables (default bin, as `make build` fills it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
directory=$(realpath "${1:-bin}")
[[ -x $directory/sandbox-run ]] || { echo "picture: $directory/sandbox-run: not found; try: make build" >&2; exit 1; }

commands=(
	"sandbox-run --lang go --code 'fmt.Println(6 * 7)'"
	"sandbox-run --lang python --timeout 1s --code 'while True: pass'"
	"sandbox-run --lang python --memory 64m --code 'data = bytearray(10**9)'"
	"sandbox-run exec -- unshare --mount true"
	"sandbox-run --lang python --require microvm --code 'print(42)'"
)
export PATH=$directory:/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin TERM=xterm-256color
export SANDBOX_RUN_AUDIT_LOG=off SANDBOX_RUN_SERVER=never SANDBOX_RUN_NO_CACHE=true
export COLUMNS_OF_PICTURE=104
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { (cd "$work" && script --quiet --return --command "stty cols $COLUMNS_OF_PICTURE rows 50; $1" /dev/null </dev/null) || true; }

run "${commands[0]}" >/dev/null # compiles the standard library, which happens once per machine
for command in "${commands[@]}"; do
	printf '\e[1;32m$\e[0m \e[1m%s\e[0m\r\n' "$command"
	run "$command"
	printf '\r\n'
done >"$work/terminal"

mkdir -p docs/images
python3 - "$work/terminal" docs/images/run.svg <<'PYTHON'
import html, os, re, sys

columns = int(os.environ["COLUMNS_OF_PICTURE"])
WIDTH, HEIGHT, MARGIN, BAR = 9, 21, 20, 40  # one character cell, the margin and the title bar, in pixels
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341"}

# The terminal: printable text, carriage return, line feed, erase line (K) and colours (m); long lines wrap.
lines, style, column = [[]], (), 0
for text, final, numbers in ((m[0], m[2], m[1]) for m in
        re.finditer(r"\x1b\[([0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]", open(sys.argv[1], newline="").read())):
    if final == "m":
        for number in numbers.split(";"):
            style = () if number in ("", "0") else (*style, number)
    elif final == "K":
        del lines[-1][column:]
    elif text == "\r":
        column = 0
    elif text == "\n" or column == columns:
        lines.append([])
        column = 0
    if final is None and text not in "\r\n":
        lines[-1][column:column + 1] = [(text, style)]
        column += 1
while lines and not lines[-1]:
    lines.pop()

width, height = columns * WIDTH + 2 * MARGIN, BAR + len(lines) * HEIGHT + MARGIN
out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
       "<title>Five runs of sandbox-run in a terminal, made by scripts/picture.sh</title>",
       f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>']
out += [f'<circle cx="{MARGIN + 6 + 20 * i}" cy="20" r="6" fill="{c}"/>' for i, c in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))]
out.append('<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="15" '
           'fill="#e6edf3" xml:space="preserve">')
for row, line in enumerate(lines):
    start = 0
    while start < len(line):
        end, style = start, line[start][1]
        while end < len(line) and line[end][1] == style:
            end += 1
        text = "".join(c for c, _ in line[start:end])
        fill = next((f' fill="{COLOURS[s]}"' for s in style if s in COLOURS), ' fill="#8b949e"' if "2" in style else "")
        weight = ' font-weight="bold"' if "1" in style else ""
        if words := text.strip():
            x = start + len(text) - len(text.lstrip())
            out.append(f'<text x="{MARGIN + x * WIDTH}" y="{BAR + row * HEIGHT + 15}" textLength="{len(words) * WIDTH}"{fill}{weight}>'
                       f'{html.escape(words, quote=False)}</text>')
        start = end
out += ["</g>", "</svg>", ""]
open(sys.argv[2], "w").write("\n".join(out))
PYTHON
echo "docs/images/run.svg"
