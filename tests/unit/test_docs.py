"""What the documents name exists: commands, their options, files of the repository; and their examples can be parsed.

A shell line is a line of a code block, or inline code, with `bigbatch COMMAND` in it. Its options must be the command's;
in a code block the command's own parser must take the whole line. Inline code that is an option alone belongs to the
command in the nearest heading above it, or to any command. In the tables of docs/migration.md the column headed
"theirs" names another project's options and is left out.
"""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from bigbatch.scripts import cli, train

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
BUILTIN = {"--help", "-h", "--version", "--print-config"}
ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>", ")"}
FOREIGN_COLUMN = "theirs"


class Code(NamedTuple):
    """A piece of code in a document: where, whether a whole line of a block, and the command of the heading above."""

    place: str
    text: str
    block: bool
    heading: str | None


def pieces(text: str, name: str) -> list[Code]:
    """All code of a document: lines of blocks, fenced or indented, with continued ones joined; and inline code."""
    found: list[Code] = []
    fenced, python, heading, named_at, foreign, joined, previous = False, False, None, 0, -1, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{name}:{number}"
        if line.lstrip().startswith("```"):
            fenced, python = not fenced, line.strip() == "```python"
        elif python:
            continue  # `from bigbatch import ...` is no command
        elif fenced or (line.startswith("    ") and (joined or not previous.strip() or previous.startswith("    "))):
            joined += line.strip()
            if joined.endswith("\\"):
                joined = joined[:-1]
                continue
            found.append(Code(place, joined, True, heading))
            joined = ""
        else:
            if line.startswith("#"):
                depth = len(line) - len(line.lstrip("#"))
                named = re.search(r"bigbatch ([a-z]+)", line)
                if named or depth <= named_at:
                    heading, named_at = (named[1], depth) if named and named[1] in cli.COMMANDS else (None, 0)
            cells = re.split(r"(?<!\\)\|", line) if line.startswith("|") else [line]
            if len(cells) == 1:
                foreign = -1
            elif not previous.startswith("|"):
                titles = [cell.strip() for cell in cells]
                foreign = titles.index(FOREIGN_COLUMN) if FOREIGN_COLUMN in titles else -1
            for column, cell in enumerate(cells):
                if column != foreign:
                    found += [Code(place, span, False, heading) for span in re.findall(r"`([^`]+)`", cell)]
        previous = line
    return found


def words(line: str) -> list[str] | None:
    """Words of the `bigbatch` call in a shell line, from the command on; None if there is no call."""
    lexer = shlex.shlex(line.replace("\\|", "|"), posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        all_words = list(lexer)
    except ValueError:  # an apostrophe in a sentence
        all_words = line.split()
    for at, word in enumerate(all_words):
        if word == "bigbatch" or word.endswith("/bigbatch") or word == "bigbatch.scripts.cli":
            rest = all_words[at + 1 :]
            end = next((i for i, w in enumerate(rest) if w in ENDS), len(rest))
            return rest[:end]
    return None


def option_names(command: str) -> set[str]:
    """Option strings of a command, spelt with dashes."""
    if command == "train":
        parsers = [train.build_parser(kind) for kind in train.MODELS]
    else:
        parsers = [importlib.import_module(f"bigbatch.scripts.{command}").build_parser()]
    names = {s for parser in parsers for action in parser._actions for s in action.option_strings}
    return {name.replace("_", "-") for name in names} | BUILTIN


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    return {command: option_names(command) for command in cli.COMMANDS}


def dashed(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def benchmark_options(name: str = "*") -> set[str]:
    """Options that a benchmark, or any, takes."""
    files = sorted((REPO / "benchmarks").glob(f"{name}.py"))
    return {option for file in files for option in re.findall(r'add_argument\("(--[a-z-]+)"', file.read_text())}


def unknown_names(code: Code, options: dict[str, set[str]]) -> list[str]:
    """Commands and options in a piece of code that do not exist."""
    call = words(code.text)
    if call is None and (benchmark := re.search(r"-m bigbatch\.benchmarks\.(\w+)(.*)", code.text)):
        used = re.findall(r"--[a-z-]+", benchmark[2])
        return [f"{code.place}: {name}" for name in used if name not in benchmark_options(benchmark[1])]
    if call is None:
        name = dashed(code.text.split()[0]) if re.match(r"--[a-z]", code.text) else None
        known = options.get(code.heading or "", set().union(benchmark_options(), *options.values()))
        return [f"{code.place}: {name}"] if name and name not in known else []
    if not call or not re.fullmatch(r"--?[a-z-]+|[a-z]+", call[0]):  # `bigbatch` alone, or a placeholder: COMMAND
        return []
    if call[0].startswith("-") or call[0] in ("help", "version"):
        return [] if call[0] in (*BUILTIN, "help", "version") else [f"{code.place}: bigbatch {call[0]}"]
    if call[0] not in options:
        # a sentence such as "bigbatch is" is no call; in a block, or with an option, it is meant as one
        meant = code.block or any(word.startswith("--") for word in call)
        return [f"{code.place}: bigbatch {call[0]}"] if meant else []
    used = [dashed(word) for word in call[1:] if re.match(r"--[a-z]", word)]
    return [f"{code.place}: bigbatch {call[0]} {name}" for name in used if name not in options[call[0]]]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_exist(document: Path, options: dict[str, set[str]]) -> None:
    found = pieces(document.read_text(encoding="utf-8"), document.name)
    assert not [line for code in found for line in unknown_names(code, options)]


def complete(code: Code) -> list[str] | None:
    """Words of an example that a reader can paste; None for one with something left out, or for help."""
    call = words(code.text) if code.block else None
    if not call or call[0] not in cli.COMMANDS or BUILTIN & {dashed(word) for word in call}:
        return None
    if any("..." in word or "…" in word or "$" in word or word == "\\" for word in call):
        return None
    return call


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_can_be_parsed(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no run folder of the reader's stands in for the defaults
    (tmp_path / "configs").symlink_to(REPO / "configs")
    for code in pieces(document.read_text(encoding="utf-8"), document.name):
        call = complete(code)
        if call is None:
            continue
        argv = cli.with_dashes(call[1:])
        try:
            if call[0] in ("train", "finetune"):
                importlib.import_module(f"bigbatch.scripts.{call[0]}").parse(argv)
            else:
                importlib.import_module(f"bigbatch.scripts.{call[0]}").build_parser().parse_args(argv)
        except (ValueError, SystemExit) as error:
            pytest.fail(f"{code.place}: {code.text}: {error}")
        except FileNotFoundError:
            pass  # the reader's own file; those of the repository are looked for below


def missing_files(text: str, document: Path) -> list[str]:
    """Links and paths that lead nowhere."""
    gone = []
    for target in re.findall(r"\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"", text):
        link = (target[0] or target[1]).partition("#")[0]
        if link and not re.match(r"[a-z]+:", link) and not (document.parent / link).exists():
            gone.append(link)
    folders = "|".join(sorted(p.name for p in REPO.iterdir() if p.is_dir() and (p / "__init__.py").exists()))
    for path in re.findall(rf"(?<![\w./-])(?:(?:{folders}|configs|docs|tests)/[\w./-]*\w)", text):
        # a path in a run folder (data/demo, say) has no extension of ours
        if path.endswith((".py", ".md", ".yaml", ".png")) and not (REPO / path).exists():
            gone.append(path)
    return gone


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_exist(document: Path) -> None:
    assert not missing_files(document.read_text(encoding="utf-8"), document)


def test_architecture_names_real_modules() -> None:
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"(?<![\w/])(\w+\.py)\b", text))
    real = {path.name for path in REPO.rglob("*.py") if ".venv" not in path.parts}
    assert names and not names - real


def test_architecture_names_every_module_of_the_model_and_training() -> None:
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = ("models", "data", "fp16", "training", "evaluation", "sentiment", "analysis")
    modules = [path for folder in folders for path in (REPO / folder).glob("*.py") if path.name != "__init__.py"]
    assert not [str(path) for path in modules if path.name not in text]


def test_every_command_is_documented() -> None:
    headings = re.findall(r"^## bigbatch (\w+)$", (REPO / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(cli.COMMANDS)


BAD = """# bigbatch train
`--optim.learning-rate` is wrong, `--optim.lr` and `--nproc 2` are right, `bigbatch is` a name.

## Part

| theirs | ours |
|---|---|
| `--nhid` | `--model.nhid`, `--test` |

    bigbatch transfer --run-dir runs/x --train a.csv \\
      --tset b.csv | tee --log
    bigbatch trian --seed 1
"""


def test_the_checks_see_mistakes(options: dict[str, set[str]]) -> None:
    found = pieces(BAD, "bad.md")
    assert [line for code in found for line in unknown_names(code, options)] == [
        "bad.md:2: --optim.learning-rate",
        "bad.md:8: --model.nhid",
        "bad.md:8: --test",
        "bad.md:11: bigbatch transfer --tset",
        "bad.md:12: bigbatch trian",
    ]
    links = "[a](gone.md) [b](architecture.md#run-folder) [c](https://x.org/y.md) `models/gone.py` `models/mlstm.py`"
    assert missing_files(links, REPO / "docs" / "x.md") == ["gone.md", "models/gone.py"]
