"""The Triton kernels compile for Ampere and Hopper without a GPU at hand: to PTX and machine code, for each dtype."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bigbatch.models import mlstm_triton as kernels

FLOATS = {"gates", "before", "after", "dh", "dc", "grad_c", "d_gates", "d_xm", "d_z"}
NUMBERS = {"H": "i32", "tokens": "*i64", "reset": "*u8"}
count = 0
for architecture in (80, 90):
    for dtype in ("fp32", "fp16", "bf16"):
        for kernel in (kernels.multiply, kernels.update, kernels.update_backward, kernels.multiply_backward):
            for flag in (True, False):
                signature, constants = {}, {}
                for name in kernel.arg_names:
                    if name.isupper() and name != "H":
                        signature[name] = "constexpr"
                        constants[name] = {"BLOCK": 512, "WIDTH": 5, "NARROW": dtype != "fp32"}.get(name, flag)
                    elif name in NUMBERS:
                        signature[name] = NUMBERS[name]
                    else:
                        signature[name] = "*fp32" if name in FLOATS else f"*{dtype}"
                source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
                built = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
                assert f".target sm_{architecture}" in built.asm["ptx"] and len(built.asm["cubin"]) > 1000
                count += 1
print(count)
"""


@pytest.mark.slow
def test_kernels_compile_ahead_of_time() -> None:
    pytest.importorskip("triton", reason="pip install triton==3.7.1, as `make test-all` does")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "48"
