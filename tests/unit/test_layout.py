"""The map of the repository holds: packages match folders, imports point downwards, configs stay free of torch."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

LEVEL = {
    "models": 0,
    "data": 0,
    "fp16": 0,
    "training": 1,
    "inference": 2,
    "evaluation": 2,
    "sentiment": 3,
    "analysis": 4,
    "benchmarks": 5,
    "scripts": 5,
    "bigbatch": 5,
}


def product_files(repo: Path) -> list[Path]:
    return sorted(path for folder in LEVEL for path in (repo / folder).rglob("*.py"))


def imported_packages(path: Path, repo: Path) -> set[str]:
    """Top-level product packages that a file imports, relative imports resolved."""
    package = ["bigbatch", *path.relative_to(repo).parent.parts]
    if package[1:2] == ["bigbatch"]:
        package = package[1:]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "bigbatch":
                found.add(parts[1] if len(parts) > 1 and parts[1] in LEVEL else "bigbatch")
    return found


def test_imports_point_downwards(repo: Path) -> None:
    violations = []
    for path in product_files(repo):
        owner = path.relative_to(repo).parts[0]
        for target in imported_packages(path, repo) - {owner}:
            # `from bigbatch import __version__` is the one upward import: the version has a single home.
            if target == "bigbatch" and "__version__" in path.read_text(encoding="utf-8"):
                continue
            if LEVEL[target] >= LEVEL[owner] and not (LEVEL[owner] == 5 and LEVEL[target] == 5):
                violations.append(f"{path.relative_to(repo)} imports {target}")
    assert not violations


def test_import_walker_sees_a_violation(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    bad = tmp_path / "models" / "bad.py"
    bad.write_text("from ..training.engine import train\n")
    assert imported_packages(bad, tmp_path) == {"training"}


def test_config_modules_import_no_torch(repo: Path) -> None:
    for path in (p for p in product_files(repo) if p.name == "config.py"):
        assert not re.search(r"^\s*(import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_setup_lists_every_package(repo: Path) -> None:
    # The listing is read from the source, so the test does not depend on how the project was installed.
    tree = ast.parse((repo / "setup.py").read_text(encoding="utf-8"))
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FOLDERS"
    )
    folders = {str(p.parent.relative_to(repo)) for folder in LEVEL for p in (repo / folder).rglob("__init__.py")}
    assert set(listed) == folders - {"bigbatch"}


def test_inner_init_files_are_empty(repo: Path) -> None:
    filled = [
        p for p in product_files(repo) if p.name == "__init__.py" and p.parent != repo / "bigbatch" and p.read_text()
    ]
    assert not filled


def test_every_module_imports_from_elsewhere(repo: Path, tmp_path: Path) -> None:
    modules = []
    for path in product_files(repo):
        parts = path.relative_to(repo).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if (
            parts[-1] == "mlstm_triton" and importlib.util.find_spec("triton") is None
        ):  # comes with CUDA builds of torch
            continue
        modules.append(".".join(parts if parts[0] == "bigbatch" else ("bigbatch", *parts)))
    (tmp_path / "models").mkdir()  # a user's own folder of the same name must not shadow ours
    (tmp_path / "models" / "__init__.py").write_text("raise ImportError('the wrong models package')\n")
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names_resolve() -> None:
    import bigbatch

    for name in bigbatch.__all__:
        assert getattr(bigbatch, name) is not None
    with pytest.raises(AttributeError, match="public names"):
        _ = bigbatch.nothing_of_that_name


def test_import_is_cheap() -> None:
    code = "import bigbatch, sys; sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'sklearn', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_metadata_never_names_apex(repo: Path) -> None:
    # PyPI's `apex` is an unrelated package; NVIDIA's is found by its extension modules at run time.
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        assert not re.search(r"^\s*[\"']?apex\b", (repo / name).read_text(encoding="utf-8"), re.MULTILINE), name


def test_under_ci_a_test_that_skips_itself_fails(
    repo: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest((repo / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile("""
        import pytest
        def test_package(): pytest.importorskip("no_such_package")
        def test_corpus(): pytest.skip("no real corpora at x: set BIGBATCH_CORPORA")
        @pytest.mark.gpu
        def test_gpu(): pytest.skip("no GPU")
        @pytest.mark.xfail
        def test_known(): assert False
    """)
    monkeypatch.delenv("CI", raising=False)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(skipped=3, xfailed=1)
    monkeypatch.setenv("CI", "true")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(skipped=2, failed=1, xfailed=1)
