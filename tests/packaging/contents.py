"""What the built distributions hold: `python contents.py FOLDER`, from the root of a clone.

The wheel has every file of the package and nothing else, tests and examples least of all. The source distribution has
all that a packager needs to build and to test. The metadata are complete, and the README renders.
"""

import re
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = re.findall(r'^__version__ = "(.+)"$', Path("agentloop/_common/version.py").read_text(encoding="utf-8"), re.M)[
    0
]
NOT_PACKAGED = {"__pycache__", ".mypy_cache", ".ruff_cache"}
IN_SOURCES = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "noxfile.py",
    "docs/index.md",
    "tests/conftest.py",
)


def check_wheel(wheel: Path) -> Message:
    """Check the files of *wheel*, and return its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        info = f"{PROJECT['name'].replace('-', '_')}-{VERSION}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        license_text = archive.read(f"{info}/licenses/LICENSE").decode()
        points = archive.read(f"{info}/entry_points.txt").decode()
    files = {path for path in Path("agentloop").rglob("*") if path.is_file() and not NOT_PACKAGED & set(path.parts)}
    packaged = {path.as_posix() for path in files}
    of_package = {name for name in held if not name.startswith(info)}
    require(of_package == packaged, f"the wheel differs from the package: {sorted(of_package ^ packaged)}")
    require("agentloop/py.typed" in held, "the wheel has no py.typed")
    require(license_text == Path("LICENSE").read_text(encoding="utf-8"), "the wheel has another license")
    require("agentloop = agentloop.cli:main" in points, "the wheel has no command")
    require("agentloop = agentloop.testing.plugin" in points, "the wheel has no pytest plugin")
    return metadata


def check_metadata(metadata: Message) -> None:
    """Check what an index shows of the package."""
    require(metadata["Name"] == PROJECT["name"], "another name")
    require(metadata["Version"] == VERSION, "another version")
    require(metadata["License-Expression"] == PROJECT["license"], "another license")
    require(metadata["Requires-Python"] == PROJECT["requires-python"], "other Pythons")
    require(set(metadata.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"]), "other extras")
    require(metadata["Description-Content-Type"] == "text/markdown", "a README of another type")
    require(set(PROJECT["classifiers"]) == set(metadata.get_all("Classifier") or ()), "other classifiers")
    from readme_renderer.markdown import render

    page = render(str(metadata.get_payload()))
    require(page is not None and re.search("<h1[^>]*>agentloop<", page) is not None, "the README doesn't render")


def check_sources(archive: Path) -> None:
    """Check the files of the source distribution *archive*."""
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    missing = [name for name in IN_SOURCES if name not in held]
    missing += [str(path) for path in sorted(Path("examples").glob("*.py")) if path.as_posix() not in held]
    require(not missing, f"not in the source distribution: {missing}")
    strange = sorted(name for name in held if NOT_PACKAGED & set(Path(name).parts))
    require(not strange, f"in the source distribution: {strange}")


def require(held: bool, otherwise: str) -> None:
    """Raise an error that says *otherwise* unless *held*."""
    if not held:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (wheel,) = folder.glob("*.whl")
    (sources,) = folder.glob("*.tar.gz")
    check_metadata(check_wheel(wheel))
    check_sources(sources)
    print("complete:", wheel.name, sources.name)
