#!/usr/bin/env python3
"""Builds docs/ as a book into target/site, and checks every link.

Pages link to files of the repository; those are put beside the book, so that it can be read from the disk or be
served as it is. Warnings of mdbook are errors."""

import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE = ROOT / "target/site"
BOOK = SITE / "docs"
BESIDE = ["CHANGELOG.md", "Cargo.toml", "README.md", "SECURITY.md", "crates", "deploy", "internal", "specs"]


class Page(html.parser.HTMLParser):
    """Returns the links and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.anchors.add(attributes["id"])
        for name in ("href", "src"):
            if attributes.get(name) and tag in ("a", "img"):
                self.links.append(attributes[name])


def build():
    run = subprocess.run(["mdbook", "build", ROOT / "docs"], capture_output=True, text=True)
    output = run.stdout + run.stderr
    if run.returncode != 0 or re.search(r"\b(WARN|ERROR)\b", output):
        sys.exit(output)
    for name in BESIDE:
        link = SITE / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)
    for path in BOOK.glob("*.html"):
        # mdbook turns every link to .md into one to a page. Those outside of docs/ are files.
        text = path.read_text()
        outside = re.sub(r'(href="\.\./[^"#]*)\.html(["#])', r"\1.md\2", text)
        if outside != text:
            path.write_text(outside)


def check():
    pages = {path: Page(path) for path in BOOK.glob("*.html") if path.name not in ("404.html", "toc.html")}
    links, broken = 0, []
    for path, page in sorted(pages.items()):
        for link in page.links:
            if urllib.parse.urlparse(link).scheme:
                continue
            links += 1
            name, _, anchor = link.partition("#")
            target = (path.parent / urllib.parse.unquote(name)).resolve() if name else path
            inside = BOOK / target.name if target.parent == BOOK.resolve() else None
            if not target.exists():
                broken.append(f"{path.name}: {link}: there is no such file")
            elif anchor and inside in pages and urllib.parse.unquote(anchor) not in pages[inside].anchors:
                broken.append(f"{path.name}: {link}: there is no such heading")
    if broken:
        sys.exit("\n".join(broken))
    print(f"{len(pages)} pages, {links} links: target/site/docs/index.html")


build()
check()
