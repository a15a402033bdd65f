#!/usr/bin/env python3
"""Checks that the crates can be published.

    scripts/release_check.py            everything
    scripts/release_check.py --quick    everything except for building the packages: about a second
    scripts/release_check.py --tag      also that the release has a date and all changes are committed

Checks the metadata of every crate in crates/, the dependencies between them, and the versions that the changelog and
the documentation name. Then packages all crates without a network and builds each from its package, with the packages
of the others as dependencies. Lists all problems, not only the first.
"""

import argparse
import graphlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target/release-check"))

# Categories that crates.io knows; only those that a crate like ours could have.
CATEGORIES = {
    "asynchronous", "caching", "command-line-utilities", "concurrency", "data-structures", "database",
    "database-implementations", "development-tools", "development-tools::testing", "encoding", "network-programming",
    "rust-patterns", "web-programming",
}
KEYWORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,19}")
# Files that every package must have, and directories that read files of the repository.
NEEDED = {"Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"}
UNWANTED = {"tests", "benches", "target"}
# crates.io accepts 10 MB.
MAX_PACKAGE_KIB = 1024


class CargoFailed(Exception):
    pass


class Check:
    def __init__(self):
        self.problems = []
        workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
        self.version = workspace["version"]
        self.rust = workspace["rust-version"]
        self.repository = workspace["repository"]
        self.license = workspace["license"]
        members = json.loads(cargo("metadata", "--no-deps", "--offline", "--format-version", "1"))["packages"]
        self.published = {one["name"]: one for one in members if one["publish"] != []}
        self.internal = {one["name"]: one for one in members if one["publish"] == []}

    def expect(self, condition, problem):
        if not condition:
            self.problems.append(problem)

    def members(self):
        for name, one in {**self.published, **self.internal}.items():
            directory = pathlib.Path(one["manifest_path"]).parent.parent.name
            expected = "crates" if name in self.published else "internal"
            self.expect(directory == expected, f"{name}: is in {directory}/, and should be in {expected}/")

    def metadata(self):
        for name, one in self.published.items():
            directory = pathlib.Path(one["manifest_path"]).parent
            expected = {"version": self.version, "rust_version": self.rust, "license": self.license,
                        "repository": self.repository}
            for field, value in expected.items():
                self.expect(one[field] == value, f"{name}: {field} is {one[field]}, and that of the workspace {value}")
            self.expect(one["description"] and not one["description"].endswith("."),
                        f"{name}: the description is missing, or ends with a full stop")
            self.expect((one["documentation"] or "").startswith(("https://docs.rs/" + name, self.repository)),
                        f"{name}: documentation is {one['documentation']}")
            self.expect(one["homepage"] != self.repository, f"{name}: the homepage is the repository: leave it out")
            # crates.io resolves relative links against the directory of the crate.
            self.expect(one["readme"] == "README.md" and (directory / "README.md").is_file(),
                        f"{name}: the readme is {one['readme']}, and should be its own README.md")
            keywords, categories = one["keywords"], one["categories"]
            self.expect(1 <= len(keywords) <= 5 and all(KEYWORD.fullmatch(word) for word in keywords),
                        f"{name}: keywords are {keywords}: 1 to 5, each of at most 20 letters, digits, -, _ and +")
            self.expect(1 <= len(categories) <= 5 and CATEGORIES.issuperset(categories),
                        f"{name}: categories are {categories}: 1 to 5 of those in {pathlib.Path(__file__).name}")

    def order(self):
        """Returns the crates so that each comes after those that it needs."""
        graph = {name: set() for name in self.published}
        for name, one in self.published.items():
            for dependency in one["dependencies"]:
                other, requirement = dependency["name"], dependency["req"]
                is_dev = dependency["kind"] == "dev"
                if "path" not in dependency:
                    self.expect(requirement != "*", f"{name}: depends on any version of {other}")
                elif is_dev and requirement == "*":
                    # Cargo leaves these out of the package.
                    continue
                elif other not in self.published:
                    self.expect(False, f"{name}: depends on {other}, which is not published")
                else:
                    self.expect(requirement == f"^{self.version}",
                                f"{name}: needs {other} {requirement}, and the workspace has {self.version}")
                    graph[name].add(other)
        try:
            return list(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            self.expect(False, "crates depend on each other (dev-dependencies with a version count): "
                        + " -> ".join(error.args[1]))
            return sorted(graph)

    def changelog(self, needs_date):
        text = (ROOT / "CHANGELOG.md").read_text()
        heading = re.search(rf"(?m)^## \[{re.escape(self.version)}\] - (\d{{4}}-\d\d-\d\d|Unreleased)$", text)
        self.expect(heading, f"CHANGELOG.md: there is no '## [{self.version}] - DATE' or '... - Unreleased'")
        if needs_date and heading:
            self.expect(heading[1] != "Unreleased", f"CHANGELOG.md: {self.version} has no date")
        link = f"[{self.version}]: {self.repository}/releases/tag/v{self.version}"
        self.expect(link in text.splitlines(), f"CHANGELOG.md: there is no line '{link}'")

    def pages(self):
        """Versions, URLs and links in everything that users read."""
        readmes = [ROOT / "crates" / name / "README.md" for name in self.published]
        others = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob(".github/*/*.yml"))]
        requirement = re.compile(r'(?m)^\s*(pillarbox[a-z-]*) = (?:"|\{[^}\n]*version = ")=?([0-9.]+)')
        short = ".".join(self.version.split(".")[:2])
        for path in filter(pathlib.Path.is_file, [*readmes, *others]):
            page, text = path.relative_to(ROOT), path.read_text()
            for crate, version in requirement.findall(text):
                self.expect(crate in self.published, f"{page}: {crate} is not published")
                self.expect(version in (short, self.version), f"{page}: {crate} {version}, and this is {self.version}")
            for version in re.findall(r"\bRust (1\.\d+)\b(?= or (?:later|newer))", text):
                self.expect(version == self.rust, f"{page}: Rust {version}, and Cargo.toml says {self.rust}")
            for url in re.findall(r"https://github\.com/[\w.-]*pillarbox[\w.-]*/[\w.-]+[^\s)\]\"'>`]*", text):
                self.expect(re.match(re.escape(self.repository) + r"(?:[/#]|\.git\b|$)", url),
                            f"{page}: {url}, and the repository is {self.repository}")
                linked = re.match(re.escape(self.repository) + r"/(?:blob|raw|tree)/main/([^#?]+)", url)
                self.expect(not linked or (ROOT / linked[1]).exists(), f"{page}: {url}: there is no such file")
        for path in filter(pathlib.Path.is_file, readmes):
            for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
                self.expect(link.startswith(("https://", "#")), f"{path.relative_to(ROOT)}: {link} is relative")
        readme = (ROOT / "README.md").read_text()
        self.expect(requirement.search(readme), f'README.md: there is no \'pillarbox = "{short}"\'')
        self.expect(f"Rust {self.rust}" in readme, f"README.md: Rust {self.rust} is not named")

    def packages(self, order, build):
        """Packages the crates, and builds them from their packages; returns the size of all."""
        # Cargo keeps what it has unpacked.
        shutil.rmtree(TARGET / "package", ignore_errors=True)
        select = [part for name in self.internal for part in ("--exclude", name)]
        how = ["--all-features"] if build else ["--no-verify"]
        cargo("package", "--workspace", *select, "--offline", "--locked", "--allow-dirty", "--target-dir", TARGET, *how)
        size = 0
        for name in order:
            path = TARGET / "package" / f"{name}-{self.version}.crate"
            size += path.stat().st_size
            self.expect(path.stat().st_size <= MAX_PACKAGE_KIB * 1024,
                        f"{name}: the package is larger than {MAX_PACKAGE_KIB} KiB")
            with tarfile.open(path) as package:
                files = {file.name.split("/", 1)[1]: file for file in package.getmembers()}
                manifest = tomllib.load(package.extractfile(files["Cargo.toml"]))
            self.expect(NEEDED <= files.keys(), f"{name}: the package lacks {sorted(NEEDED - files.keys())}")
            unwanted = UNWANTED & {file.split("/")[0] for file in files}
            self.expect(not unwanted, f"{name}: the package has {sorted(unwanted)}")
            self.expect(all(file.isfile() and file.size > 0 for file in files.values()),
                        f"{name}: the package has links or empty files")
            self.expect(manifest["package"].get("rust-version") == self.rust,
                        f"{name}: the package has another rust-version")
            for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
                for other, dependency in manifest.get(kind, {}).items():
                    self.expect("path" not in dependency, f"{name}: the package depends on {other} by path")
        return size


def cargo(*arguments):
    # The packages are built once each: without what debuggers and later builds would use.
    settings = {"CARGO_PROFILE_DEV_DEBUG": "false", "CARGO_INCREMENTAL": "0", **os.environ}
    run = subprocess.run([CARGO, *arguments], cwd=ROOT, env=settings, capture_output=True, text=True)
    if run.returncode != 0:
        raise CargoFailed(f"{run.stderr}cargo {arguments[0]} failed ('cargo fetch --locked' downloads dependencies)")
    return run.stdout


def main():
    parser = argparse.ArgumentParser(description="Checks that the crates can be published.")
    parser.add_argument("--quick", action="store_true", help="package the crates without building them")
    parser.add_argument("--tag", action="store_true", help="require a date in the changelog and a clean checkout")
    options = parser.parse_args()
    began = time.monotonic()
    check = Check()
    check.members()
    check.metadata()
    order = check.order()
    check.changelog(options.tag)
    check.pages()
    if options.tag:
        changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
        check.expect(not changes.stdout, "some changes are not committed")
    try:
        size = check.packages(order, build=not options.quick)
    except CargoFailed as failure:
        check.problems.append(str(failure))
    if check.problems:
        sys.exit("\n".join(check.problems) + f"\nproblems: {len(check.problems)}")
    done = "packaged" if options.quick else "packaged and built"
    print(f"{check.version}: {len(order)} crates {done}, {size // 1024} KiB, in {time.monotonic() - began:.0f} s.")
    print("To publish, in this order: " + " ".join(order))


if __name__ == "__main__":
    try:
        main()
    except CargoFailed as failure:
        sys.exit(str(failure))
