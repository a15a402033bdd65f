#!/usr/bin/env python3
"""Draws the diagrams of the documentation: docs/pictures/NAME.svg. Run by `make diagrams`.

    scripts/diagrams.py docs/pictures            writes the files
    scripts/diagrams.py --check docs/pictures    fails if a file differs

Each diagram is a list of shapes at fixed places, on a light card that reads on a white and on a dark page. Nothing is
measured or random, so the output is the same everywhere. A text that is too wide for its box fails the run: fonts
differ between systems, so widths are estimated generously.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# Ink, two accents with a tint each, and greys.
INK, MUTED, LINE, EDGE, PANEL, PAPER = "#1f2933", "#52606d", "#7b8794", "#cbd2d9", "#f5f7fa", "#ffffff"
BLUE, BLUE_TINT = "#1d5fa8", "#e8f1fb"
RUST, RUST_TINT = "#b3431b", "#fcefe9"

# Arrows and labels: line, text, bold.
TONES = {"grey": (LINE, INK, False), "blue": (BLUE, BLUE, True), "rust": (RUST, RUST, True)}

# Look of a box: fill, border, text.
LOOKS = {
    "plain": (PAPER, LINE, INK),
    "panel": (PANEL, EDGE, INK),
    "blue": (BLUE_TINT, BLUE, INK),
    "rust": (RUST_TINT, RUST, INK),
    "solid": (BLUE, BLUE, PAPER),
}


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def width_of(text, size, mono=False, bold=False):
    """Estimates the width of a text in a wide system font."""
    if mono:
        return 0.61 * size * len(text)
    narrow, wide = set("iljtfr.,:;!|'()[] "), set("mwMWOQGD@%")
    units = sum(0.37 if c in narrow else 0.88 if c in wide else 0.7 if c.isupper() else 0.6 for c in text)
    return units * size * (1.07 if bold else 1)


@dataclass
class Text:
    """One or more lines of text. `y` is the baseline of the first."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: float = 13
    color: str = INK
    bold: bool = False
    mono: bool = False
    # Draws a margin in the colour of the card, so that a line behind the text does not touch it.
    halo: bool = False

    def svg(self):
        style = f'font-size="{number(self.size)}" fill="{self.color}"'
        style += f' text-anchor="{self.anchor}"' if self.anchor != "start" else ""
        style += ' font-weight="600"' if self.bold else ""
        style += f' font-family="{MONO}"' if self.mono else ""
        if self.halo:
            style += f' stroke="{PAPER}" stroke-width="5" stroke-linejoin="round" paint-order="stroke"'
        lines = self.text.split("\n")
        return "\n".join(
            f'<text x="{number(self.x)}" y="{number(self.y + i * self.size * 1.35)}" {style}>{escape(line)}</text>'
            for i, line in enumerate(lines)
        )


def note(x, y, text, anchor="start"):
    return Text(x, y, text, anchor, 12.5, MUTED)


@dataclass
class Box:
    """A rounded rectangle with a title, and smaller lines of detail below it."""

    x: float
    y: float
    w: float
    h: float
    title: str = ""
    detail: str = ""
    look: str = "plain"
    mono: bool = False
    # Puts the title at the top left, for a box around others.
    frame: bool = False

    def west(self, dy=0):
        return (self.x, self.y + self.h / 2 + dy)

    def east(self, dy=0):
        return (self.x + self.w, self.y + self.h / 2 + dy)

    def north(self, dx=0):
        return (self.x + self.w / 2 + dx, self.y)

    def south(self, dx=0):
        return (self.x + self.w / 2 + dx, self.y + self.h)

    def svg(self):
        fill, border, ink = LOOKS[self.look]
        out = [
            f'<rect x="{number(self.x)}" y="{number(self.y)}" width="{number(self.w)}" height="{number(self.h)}" '
            f'rx="8" fill="{fill}" stroke="{border}" stroke-width="1.3"/>'
        ]
        detail = self.detail.split("\n") if self.detail else []
        for text, size, mono, bold in [(self.title, 14, self.mono, not self.mono)] + [
            (line, 12.5, False, False) for line in detail
        ]:
            if width_of(text, size, mono, bold) > self.w - 12:
                sys.exit(f"{text!r} is too wide for its box")
        if self.frame:
            out.append(Text(self.x + 14, self.y + 24, self.title, bold=True, size=14, color=ink).svg())
            if detail:
                out.append(note(self.x + 14, self.y + 43, self.detail).svg())
            return "\n".join(out)
        middle = self.x + self.w / 2
        y = self.y + self.h / 2 + 5 - 8.5 * len(detail)
        if self.title:
            out.append(Text(middle, y, self.title, "middle", 14, ink, bold=not self.mono, mono=self.mono).svg())
        color = ink if self.look == "solid" else MUTED
        for i, line in enumerate(detail):
            out.append(Text(middle, y + 18 + i * 17, line, "middle", 12.5, color).svg())
        return "\n".join(out)


@dataclass
class Arrow:
    """A line through points, with rounded corners and a head at its end."""

    points: list
    label: str = ""
    # Place of the label: its x, its baseline and its anchor. Above the middle of the first segment if not given.
    at: tuple = ()
    tone: str = "grey"
    head: bool = True

    def svg(self):
        points, radius = self.points, 10
        color, ink, bold = TONES[self.tone]
        (x1, y1), (x2, y2) = points[-2], points[-1]
        angle = math.atan2(y2 - y1, x2 - x1)
        # The line ends inside of the head, whose tip is at the last point.
        end = (x2 - 6 * math.cos(angle), y2 - 6 * math.sin(angle)) if self.head else (x2, y2)
        path = f"M{number(points[0][0])} {number(points[0][1])}"
        for before, corner, after in zip(points, points[1:], points[2:]):
            start, stop = toward(corner, before, radius), toward(corner, after, radius)
            path += f" L{number(start[0])} {number(start[1])}"
            path += f" Q{number(corner[0])} {number(corner[1])} {number(stop[0])} {number(stop[1])}"
        path += f" L{number(end[0])} {number(end[1])}"
        out = [f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>']
        if self.head:
            out.append(head((x2, y2), angle, color))
        if self.label:
            (xa, ya), (xb, yb) = points[0], points[1]
            x, y, anchor = self.at or ((xa + xb) / 2, (ya + yb) / 2 - 8, "middle")
            out.append(Text(x, y, self.label, anchor, 13, ink, bold).svg())
        return "\n".join(out)


def toward(corner, point, distance):
    """Returns the point at a distance from a corner on the way to another point."""
    length = math.dist(corner, point)
    share = min(distance, length / 2) / length
    return (corner[0] + (point[0] - corner[0]) * share, corner[1] + (point[1] - corner[1]) * share)


def head(tip, angle, color):
    corners = [tip] + [
        (tip[0] - 9 * math.cos(angle + turn), tip[1] - 9 * math.sin(angle + turn)) for turn in (0.42, -0.42)
    ]
    path = " L".join(f"{number(x)} {number(y)}" for x, y in corners)
    return f'<path d="M{path} Z" fill="{color}"/>'


@dataclass
class Rule:
    """A plain line, without a head."""

    start: tuple
    end: tuple
    color: str = EDGE
    dashed: bool = False
    width: float = 1.3

    def svg(self):
        dash = ' stroke-dasharray="4 4"' if self.dashed else ""
        (x1, y1), (x2, y2) = self.start, self.end
        return (
            f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
            f'stroke="{self.color}" stroke-width="{number(self.width)}"{dash}/>'
        )


@dataclass
class Bar:
    """A span of time: a rectangle without a border, with an optional label in it."""

    x: float
    y: float
    w: float
    h: float
    color: str = BLUE_TINT
    label: str = ""
    ink: str = INK
    edge: str = ""

    def svg(self):
        edge = f' stroke="{self.edge}" stroke-width="1.3"' if self.edge else ""
        out = (
            f'<rect x="{number(self.x)}" y="{number(self.y)}" width="{number(self.w)}" height="{number(self.h)}" '
            f'rx="3" fill="{self.color}"{edge}/>'
        )
        if self.label:
            if width_of(self.label, 12.5) > self.w - 4:
                sys.exit(f"{self.label!r} is too wide for its bar")
            middle = (self.x + self.w / 2, self.y + self.h / 2 + 4.5)
            out += "\n" + Text(*middle, self.label, "middle", 12.5, self.ink).svg()
        return out


@dataclass
class Dot:
    x: float
    y: float
    color: str = INK

    def svg(self):
        return f'<circle cx="{number(self.x)}" cy="{number(self.y)}" r="4" fill="{self.color}"/>'


@dataclass
class Diagram:
    title: str
    description: str
    width: int
    height: int
    shapes: list

    def svg(self):
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'font-family="{SANS}" role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="desc">{escape(" ".join(self.description.split()))}</desc>',
                f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="10" fill="{PAPER}" '
                f'stroke="{EDGE}"/>',
                *(shape.svg() for shape in self.shapes),
                "</svg>\n",
            ]
        )


def message_states():
    producer = Box(24, 104, 88, 60, "Producer", look="panel")
    ready = Box(164, 104, 132, 60, "Ready", "can be received", "blue")
    in_flight = Box(508, 104, 148, 60, "In flight", "leased to a receiver", "blue")
    gone = Box(772, 104, 72, 60, "Gone", "deleted", "solid")
    delayed = Box(164, 266, 132, 60, "Delayed", "not yet visible", "blue")
    dead = Box(598, 266, 246, 60, "Dead letter", "ready in the dead-letter queue", "rust")
    loop = [in_flight.north(-34), (548, 58), (616, 58), in_flight.north(34)]
    back = [in_flight.south(-44), (538, 296), delayed.east()]
    description = """
        A sent message is ready, or delayed until its delay is over. A receive makes it in flight, with a new receipt
        and a delivery count that is one higher. Extend sets a new deadline. Nack, release, or the end of the lease
        makes it ready again; nack or release with a delay makes it delayed. Acknowledge deletes it. A message that is
        out of retries or rejected is stored as a dead letter and then acknowledged. A purge deletes messages in every
        state."""
    return Diagram("States of a message", description, 868, 376, [
        Arrow([producer.east(), ready.west()], "send"),
        Arrow([producer.south(), (68, 296), delayed.west()], "send with\na delay", (78, 212, "start")),
        Arrow([delayed.north(), ready.south()], "delay is over", (240, 219, "start")),
        Arrow([ready.east(-14), in_flight.west(-14)], "receive", (402, 93, "middle"), "blue"),
        note(402, 111, "new receipt, delivery count + 1", "middle"),
        Arrow([in_flight.west(14), ready.east(14)], "nack, release,\nor the lease expires", (402, 167, "middle")),
        Arrow(back, "nack or release with a delay", (412, 288, "middle")),
        Arrow(loop, "extend: new deadline", (582, 48, "middle")),
        Arrow([in_flight.east(), gone.west()], "acknowledge", tone="blue"),
        Arrow([in_flight.south(46), (628, 266)], "out of retries, or rejected:", (640, 198, "start"), "rust"),
        note(640, 217, "store a dead letter,\nthen acknowledge"),
        producer, ready, in_flight, gone, delayed, dead,
        note(24, 357, "A purge deletes the messages of a queue in every state and invalidates every receipt."),
    ])


def stale_receipt():
    a, queue, b, bottom = 176, 440, 704, 486
    # Calls in grey, replies in colour: height, from, to, label, tone.
    calls = [
        (90, a, queue, "receive", "grey"),
        (122, queue, a, "message, receipt 1", "blue"),
        (274, b, queue, "receive", "grey"),
        (306, queue, b, "same message, receipt 2", "blue"),
        (362, a, queue, "acknowledge (receipt 1)", "grey"),
        (394, queue, a, "refused: ReceiptHandleExpired", "rust"),
        (436, b, queue, "acknowledge (receipt 2)", "grey"),
        (468, queue, b, "done", "blue"),
    ]
    times = [(90, "0 s"), (228, "30 s"), (274, "31 s"), (362, "40 s"), (436, "45 s")]
    # Work of the workers, and the two leases: lifeline, start, end.
    bars = [(a, 122, 164), (b, 306, 474), (a, 348, 400), (queue, 90, 228), (queue, 274, 436)]
    lifelines = [(a, "Worker A", "panel"), (queue, "Queue", "blue"), (b, "Worker B", "panel")]
    description = """
        Worker A receives a message under receipt 1 with a lease of 30 seconds, and stalls. The lease expires and the
        message is ready again. Worker B receives it under receipt 2. Worker A acknowledges with receipt 1, which the
        queue refuses with ReceiptHandleExpired. Worker B acknowledges with receipt 2, and the message is deleted,
        once."""
    arrows = []
    for y, start, end, label, tone in calls:
        shift = 7 if end > start else -7
        arrows.append(Arrow([(start + shift, y), (end - shift, y)], label, ((start + end) / 2, y - 7, "middle"), tone))
    return Diagram("A stale receipt is refused", description, 830, 540, [
        *(Rule((82, y), (810, y), PANEL) for y, _ in times),
        *(note(72, y + 4.5, text, "end") for y, text in times),
        *(Rule((x, 60), (x, bottom), LINE, dashed=True) for x, _, _ in lifelines),
        *(Bar(x - 6, start, 12, end - start, edge=BLUE) for x, start, end in bars),
        Bar(a - 6, 164, 12, 184, RUST_TINT, edge=RUST),
        *arrows,
        note(queue + 14, 127, "lease 1: 30 s"),
        note(queue - 14, 322, "lease 2: 30 s", "end"),
        note(a - 14, 147, "delivery 1", "end"),
        note(b + 14, 331, "delivery 2"),
        Text(a - 14, 262, "stalls", "end", 13, RUST, bold=True),
        Dot(queue, 228, RUST),
        Text(queue + 14, 232.5, "lease expires: ready again", color=RUST, bold=True, halo=True),
        Text(queue, 518, "The message is settled once, by the holder of the current receipt.", "middle", bold=True),
        *(Box(x - 55, 20, 110, 40, name, look=look) for x, name, look in lifelines),
    ])


def architecture():
    names = ["Your services", "Handlers", "pillarbox CLI"]
    producers = [Box(24, 127 + 56 * i, 124, 44, name, look="panel") for i, name in enumerate(names)]
    backend = Box(214, 24, 216, 330, "Backend", "one contract for all four", "panel", frame=True)
    kinds = ["memory", "SQLite", "Redis", "SQS"]
    kinds = [Box(228 + 98 * (i % 2), 84 + 42 * (i // 2), 90, 34, kind) for i, kind in enumerate(kinds)]
    queue = Box(228, 181, 188, 48, "orders", "queue", "blue", mono=True)
    dead = Box(228, 290, 188, 48, "orders-dlq", "dead-letter queue", "rust", mono=True)
    pool = Box(544, 24, 300, 330, "Worker pool", "in each of your worker processes", "panel", frame=True)
    duties = "fetches for\nfree slots,\nextends leases,\nretries, settles"
    dispatcher = Box(558, 84, 126, 254, "Dispatcher", duties)
    workers = [Box(726, 84 + 94 * i, 104, 66, f"Worker {n}", "Tower layers,\nhandler") for i, n in enumerate("12n")]
    left, right = dispatcher.x, dispatcher.x + dispatcher.w
    description = """
        Producers send to a queue of a backend: memory, SQLite, Redis or SQS, all behind one contract. In each worker
        process a dispatcher receives messages for free worker slots, hands them to workers that run Tower layers and
        the handler, takes their outcomes, and settles: acknowledge, nack or extend. Messages that are out of retries
        go to the dead-letter queue, from which they can be replayed."""
    return Diagram("Architecture", description, 868, 398, [
        backend, pool,
        Arrow([producers[0].east(), (164, 149), (164, 205)], head=False),
        Arrow([producers[2].east(), (164, 261), (164, 205)], head=False),
        Arrow([producers[1].east(), queue.west()], "send", (190, 197, "middle")),
        Arrow([queue.east(-12), (left, 193)], "receive", (487, 185, "middle"), "blue"),
        Arrow([(left, 217), queue.east(12)], "settle", (487, 235, "middle"), "blue"),
        Arrow([(left, 314), dead.east()], "dead letter", (487, 306, "middle"), "rust"),
        Arrow([dead.north(), queue.south()], "replay", (332, 264, "start")),
        *(Arrow([(right, worker.west()[1] - 10), worker.west(-10)]) for worker in workers),
        *(Arrow([worker.west(10), (right, worker.west()[1] + 10)]) for worker in workers),
        *producers, *kinds, queue, dead, dispatcher, *workers,
        note(24, 380, "Settle: acknowledge, nack or extend, by receipt. "
                      "The outcome of a handler is done, retry, reject or release."),
    ])


def group_commit():
    left, top, row = 150, 56, 30
    # Start of each request, and the transaction that it is part of.
    requests = [(170, 0), (178, 0), (216, 1), (238, 1), (260, 1), (282, 1)]
    # Each transaction: start and end of its writing, start and end of its fsync, look.
    transactions = [(194, 300, 300, 466, BLUE_TINT, BLUE), (300, 426, 466, 632, PANEL, LINE)]
    writer = top + row * len(requests) + 22
    disk = writer + 44
    description = """
        Six callers send at about the same time. The writer thread puts the first two sends into one transaction, and
        one fsync stores both. The four sends that arrive meanwhile become the next transaction. It is written while
        the disk works, and one more fsync stores it. No caller gets a reply before its message is on the disk. Six
        sends, two fsyncs."""
    shapes = []
    for i, (start, transaction) in enumerate(requests):
        y, (_, _, _, end, fill, edge) = top + row * i, transactions[transaction]
        shapes += [
            Text(left - 14, y + 15, f"Caller {i + 1}", "end"),
            Bar(start, y, end - start, 20, fill, edge=edge),
            Text(start + 10, y + 14.5, "send", size=12.5),
            Text(end + 10, y + 15, "stored", size=12.5, color=BLUE, bold=True),
        ]
    for i, (start, written, sync, synced, fill, edge) in enumerate(transactions):
        sends = sum(transaction == i for _, transaction in requests)
        shapes += [
            Bar(start, writer, written - start, 32, fill, f"{sends} sends", edge=edge),
            Bar(sync + 1, disk, synced - sync - 2, 32, BLUE, "one fsync", PAPER),
        ]
    return Diagram("Group commit in SQLite", description, 760, 400, [
        Text(24, 32, "Six sends, two fsyncs", size=14, bold=True),
        note(736, 32, "time →", "end"),
        *(Rule((end, top - 8), (end, disk), BLUE, dashed=True, width=1) for _, _, _, end, _, _ in transactions),
        *shapes,
        *(Text(left - 14, y + 21, name, "end", bold=True) for name, y in [("Writer thread", writer), ("Disk", disk)]),
        note(24, 364, "The writer puts all pending requests into one transaction. The next one is written while the\n"
                      "disk works. No caller gets a reply before the fsync of its transaction has ended."),
    ])


def dead_letter_loop():
    queue = Box(40, 32, 150, 58, "orders", "queue", "blue", mono=True)
    worker = Box(330, 32, 150, 58, "Worker", "runs the handler")
    done = Box(690, 32, 130, 58, "Done", "acknowledged", "solid")
    dead = Box(620, 212, 200, 62, "orders-dlq", "body, error, causes, trace", "rust", mono=True)
    inspect = Box(428, 212, 140, 62, "Inspect", "errors by type")
    fix = Box(236, 212, 140, 62, "Fix", "deploy, restore")
    replay = Box(40, 212, 150, 62, "Replay", "same body, new id")
    to_dead = [worker.south(-10), (395, 148), (720, 148), dead.north()]
    commands = [(498, 298, "dlq stats"), (498, 316, "dlq show"), (115, 298, "dlq replay")]
    description = """
        A worker receives messages from the queue orders. A failure is retried after a backoff. A message that is out
        of retries, rejected or undecodable is stored in the queue orders-dlq. There pillarbox dlq stats shows the
        errors by type; after the fix, pillarbox dlq replay sends the messages back to orders."""
    return Diagram("The path of a dead letter", description, 860, 342, [
        Arrow([queue.east(-12), worker.west(-12)], "receive", (260, 40, "middle"), "blue"),
        Arrow([worker.west(14), queue.east(14)], "fails: retry\nafter a backoff", (260, 94, "middle")),
        Arrow([worker.east(), done.west()], "succeeds", tone="blue"),
        Arrow(to_dead, "out of retries, rejected or undecodable", (562, 140, "middle"), "rust"),
        Arrow([dead.west(), inspect.east()]),
        Arrow([inspect.west(), fix.east()]),
        Arrow([fix.west(), replay.east()]),
        Arrow([replay.north(), queue.south()], "back to its queue", (125, 155, "start"), "blue"),
        queue, worker, done, dead, inspect, fix, replay,
        *(Text(x, y, f"pillarbox {command}", "middle", 12, mono=True) for x, y, command in commands),
        note(720, 298, "kept until replayed\nor discarded", "middle"),
    ])


def which_backend():
    # Each question, and the backend for a yes; the last backend is for three times no.
    questions = [
        "May work be lost when\nthe process ends?",
        "Does everything run\non one machine?",
        "On AWS, with no\nserver to run?",
    ]
    backends = [
        ("memory", "memory:", "Tests, and work that can be repeated.\nOne process.", "plain"),
        ("SQLite", "sqlite:jobs.db", "The default. Survives power failure, and\nshares transactions with your data.",
         "blue"),
        ("SQS", "sqs://REGION/", "Nothing to run. Fewer guarantees: no\nstrict receipts, lower limits.", "plain"),
        ("Redis", "redis://HOST", "Several machines. Failover with Sentinel\nor Cluster.", "plain"),
    ]
    boxes = [Box(24, 28 + 96 * i, 220, 64, look="panel") for i in range(len(questions))]
    cards = [Box(330, 24 + 96 * i, 466, 72, look=look) for i, (_, _, _, look) in enumerate(backends)]
    description = """
        May work be lost when the process ends? Then memory. Otherwise, does everything run on one machine? Then
        SQLite, the default. Otherwise, are you on AWS and want no server to run? Then SQS. Otherwise Redis, with
        Sentinel or Cluster for failover."""
    shapes = [Arrow([box.east(), card.west()], "yes", tone="blue") for box, card in zip(boxes, cards)]
    for box, after in zip(boxes, [boxes[1].north(), boxes[2].north(), cards[3].west()]):
        x, y = box.south()
        path = [(x, y), after] if after[0] == x else [(x, y), (x, after[1]), after]
        shapes.append(Arrow(path, "no", (x + 10, y + 21, "start")))
    for box, question in zip(boxes, questions):
        shapes += [box, Text(box.x + box.w / 2, box.y + 28, question, "middle", 13.5, bold=True)]
    for card, (name, url, text, _) in zip(cards, backends):
        shapes += [
            card,
            Text(card.x + 16, card.y + 31, name, size=15, bold=True),
            Text(card.x + 16, card.y + 53, url, size=12, color=BLUE, mono=True),
            Text(card.x + 168, card.y + 31, text),
        ]
    return Diagram("Which backend", description, 820, 408, shapes)


DIAGRAMS = {
    "message-states": message_states,
    "stale-receipt": stale_receipt,
    "architecture": architecture,
    "group-commit": group_commit,
    "dead-letter-loop": dead_letter_loop,
    "which-backend": which_backend,
}


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    directories = [argument for argument in arguments if argument != "--check"]
    if len(directories) != 1:
        sys.exit(__doc__)
    different = []
    for name, draw in DIAGRAMS.items():
        path, svg = Path(directories[0]) / f"{name}.svg", draw().svg()
        if not check:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            different.append(str(path))
    if different:
        sys.exit(f"not as drawn by scripts/diagrams.py: {', '.join(different)}; run `make diagrams`")


main()
