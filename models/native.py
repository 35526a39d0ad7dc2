"""Compiles `mlstm_kernels.cpp` on first use and loads it with ctypes; without a compiler, says so once and returns None.

The library is cached by a hash of source, compiler, flags and processor, because home folders are shared by machines that
differ. It uses the OpenMP runtime that torch has loaded, found by its name, so that there is one pool of threads.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("mlstm_kernels.cpp")
# No -ffast-math: inf and NaN must survive. Without traps and errno the loops still become vector code.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-fPIC", "-shared", "-fopenmp")
TURN_OFF = "BIGBATCH_NATIVE"  # 0: never compile, use plain PyTorch


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they are turned off or cannot be built; the reason is logged once."""
    if os.environ.get(TURN_OFF) == "0":
        return None
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        log.warning("no C++ compiler: the mLSTM runs on plain PyTorch, which is slower")
        return None
    try:
        return ctypes.CDLL(str(build(compiler)))
    except (OSError, subprocess.CalledProcessError) as error:
        detail = error.stderr.strip().splitlines()[-1:] if isinstance(error, subprocess.CalledProcessError) else [error]
        log.warning(
            "the mLSTM kernels cannot be built with %s (%s): plain PyTorch runs instead, slower", compiler, *detail
        )
        return None


def build(compiler: str, cache: Path | None = None) -> Path:
    """Compiles the kernels unless the cache has them; returns the library.

    Raises:
        subprocess.CalledProcessError: the compiler failed; `stderr` says why.
        OSError: there is no such compiler, or no place to write to.
    """
    cache = cache or cache_folder()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = "\n".join((SOURCE.read_text(encoding="utf-8"), version, " ".join(FLAGS), processor()))
    path = cache / f"mlstm-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if path.is_file():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(suffix=".so", dir=cache)  # ranks may build at once: the last rename wins
    os.close(handle)
    try:
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", partial], capture_output=True, text=True, check=True)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/bigbatch, by default ~/.cache/bigbatch; a folder of this user's in /tmp where that cannot be written."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (base / "bigbatch").mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"bigbatch-{os.getuid()}"
    return base / "bigbatch"


def processor() -> str:
    """What the machine can execute: -march=native makes code for this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
