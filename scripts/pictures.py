#!/usr/bin/env python3
"""Records terminal pictures of the `pillarbox` command: docs/pictures/*.svg. Run by `make pictures`.

A command runs in a pseudo-terminal, its screen is sampled whenever it changes, and the samples become
the frames of an animated SVG, side by side in a strip that moves past a window. A row that many frames
share is drawn once.

Without animation, because a viewer cannot or a reader prefers reduced motion, a picture shows the last
frame. The animation begins with it as well.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

CELL, LINE, MARGIN = 8.43, 18, 12
INK, PAPER = "#d8dee9", "#20242c"
COLOURS = {
    "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "yellow": "#e5c07b", "cyan": "#56b6c2",
    "blue": "#61afef", "magenta": "#c678dd", "black": "#5c6370", "brightblack": "#7f8794",
}


def record(command, columns, rows, seconds=60.0, keys=(), step=0.25):
    """Runs a command and returns its screens as (time, rows)."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    start, frames, keys = time.monotonic(), [], list(keys)
    while (now := time.monotonic() - start) < seconds:
        if keys and now >= keys[0][0]:
            os.write(terminal, keys.pop(0)[1])
        if select.select([terminal], [], [], 0.02)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            # Leaving the alternate screen would clear the picture.
            stream.feed(data.replace(b"\x1b[?1049l", b""))
        if not frames or now - frames[-1][0] >= step:
            shot = snapshot(screen)
            if not frames or shot != frames[-1][1]:
                frames.append((now, shot))
    else:
        os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    os.close(terminal)
    if snapshot(screen) != frames[-1][1]:
        frames.append((time.monotonic() - start, snapshot(screen)))
    return frames


def snapshot(screen):
    """Returns the screen as rows of runs: (column, text, colour, bold, reverse)."""
    rows = []
    for y in range(screen.lines):
        runs, line = [], screen.buffer[y]
        for x in range(screen.columns):
            cell = line[x]
            style = (cell.fg, cell.bold, cell.reverse)
            if runs and runs[-1][2:] == style and runs[-1][0] + len(runs[-1][1]) == x:
                runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, *style)
            else:
                runs.append((x, cell.data, *style))
        rows.append(tuple(run for run in runs if run[1].strip() or run[4]))
    return tuple(rows)


def draw_row(row):
    parts = []
    for column, text, colour, bold, reverse in row:
        x, width = column * CELL, len(text) * CELL
        fill = COLOURS.get(colour, INK if colour == "default" else f"#{colour}")
        if reverse:
            parts.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="{LINE}" fill="{INK}"/>')
            fill = PAPER
        weight = ' font-weight="bold"' if bold else ""
        # Each piece has an explicit column, independent of the font.
        for piece in re.finditer(r"[\u2500-\u259f]+|[^\s\u2500-\u259f]+(?: [^\s\u2500-\u259f]+)*", text):
            at, shown = x + piece.start() * CELL, piece.group()
            parts.append(
                f'<text x="{at:.1f}" y="{LINE - 5}" fill="{fill}"{weight} '
                f'textLength="{len(shown) * CELL:.1f}">{escape(shown)}</text>'
            )
    return "".join(parts)


def svg(frames, columns, rows, title, rest=4.0):
    width, height = columns * CELL + 2 * MARGIN, rows * LINE + 2 * MARGIN
    defined, definitions, strip = {}, [], []
    for number, (_, screen) in enumerate(frames):
        uses = []
        for y, row in enumerate(screen):
            if not row:
                continue
            if row not in defined:
                defined[row] = f"r{len(defined)}"
                definitions.append(f'<g id="{defined[row]}">{draw_row(row)}</g>')
            uses.append(f'<use href="#{defined[row]}" y="{y * LINE}"/>')
        strip.append(f'<g transform="translate({number * width:.1f} 0)">{"".join(uses)}</g>')
    total = rest + frames[-1][0]
    last = (len(frames) - 1) * width
    steps = [f"0%,100%{{transform:translateX(-{last:.1f}px)}}"] + [
        f"{(rest + moment) / total * 100:.2f}%{{transform:translateX(-{number * width:.1f}px)}}"
        for number, (moment, _) in enumerate(frames[:-1])
    ]
    animation = (
        f"@keyframes f{{{''.join(steps)}}}@media(prefers-reduced-motion:no-preference)"
        f"{{.s{{animation:f {total:.2f}s step-end infinite}}}}"
        if len(frames) > 1 else ""
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>"
        f'<style>text{{font:14px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}}{animation}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>'
        f"<defs>{''.join(definitions)}</defs>"
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{columns * CELL:.1f}" height="{rows * LINE}">'
        f'<g class="s" transform="translate(-{last:.1f} 0)">{"".join(strip)}</g></svg></svg>\n'
    )


def main():
    program, directory = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.symlink(program, "pillarbox")
        os.environ["PATH"] = place + os.pathsep + os.environ["PATH"]
        pillarbox = lambda *args, **options: subprocess.run(["pillarbox", *args], check=True, **options)

        size = (100, 20)
        frames = record(["pillarbox", "demo", "--url", "sqlite:demo.db"], *size)
        title = "pillarbox demo: 100 tasks on 4 workers"
        (directory / "demo.svg").write_text(svg(frames, *size, title))
        print(f"demo.svg: {len(frames)} frames, {frames[-1][0]:.1f} s")

        # Load to show: a running demo, a growing queue, delayed messages.
        url = "sqlite:work.db"
        lines = "".join(f'{{"order": {n}, "item": "lamp"}}\n' for n in range(240))
        # Not subprocess.DEVNULL, which is open for reading as well: `receive` takes that for a closed stdout.
        quiet = {"stdout": open(os.devnull, "w"), "text": True}
        pillarbox("--url", url, "send", "orders", "--file", "-", input=lines, **quiet)
        pillarbox("--url", url, "send", "mail", "--file", "-", "--delay", "1h", input="1\n2\n3\n", **quiet)
        pillarbox("--url", url, "receive", "orders", "--max", "12", "--visibility", "10m", **quiet)
        demo = subprocess.Popen(
            ["pillarbox", "demo", "--url", url, "--tasks", "150", "--workers", "6"], **quiet
        )
        load = subprocess.Popen(
            ["bash", "-c", f"for n in {{1..60}}; do pillarbox --url {url} send orders '{{\"order\":1}}'; "
             f"pillarbox --url {url} receive orders --max $((RANDOM % 4 + 1)) --ack; sleep 0.1; done"],
            **quiet,
        )
        size = (100, 18)
        keys = [(7.0, b"jj"), (8.0, b"\r"), (10.0, b"j"), (10.5, b"j"), (11.5, b"\x1b"), (13.0, b"q")]
        frames = record(
            ["pillarbox", "top", "--url", url, "--interval", "500ms"], *size, 14, keys, step=0.4
        )
        for process in (demo, load):
            process.terminate()
            process.wait()
        title = "pillarbox top: queues with rates, ages and sparklines"
        (directory / "top.svg").write_text(svg(frames, *size, title))
        print(f"top.svg: {len(frames)} frames, {frames[-1][0]:.1f} s")


if __name__ == "__main__":
    main()
