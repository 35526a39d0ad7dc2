"""Packaging: maps the top-level folders to one importable name (`models/` -> `bigbatch.models`).

The folders stay where they are, yet nothing called `models` or `data` is installed that could collide with a user's own.
"""

from pathlib import Path

from setuptools import setup

FOLDERS = [
    "analysis",
    "analysis/figures",
    "benchmarks",
    "data",
    "evaluation",
    "fp16",
    "inference",
    "models",
    "models/interchange",
    "scripts",
    "sentiment",
    "training",
    "training/tasks",
]
PACKAGES = {"bigbatch": "bigbatch", **{f"bigbatch.{folder.replace('/', '.')}": folder for folder in FOLDERS}}
# Folders of data without Python, shipped so that the planner finds its cluster files in an installed copy as well.
DATA = {"bigbatch.configs.clusters": "configs/clusters"}

EXTRAS = {
    "parquet": ["pyarrow>=15"],
    "zstd": ["zstandard>=0.22"],
    "log": ["tensorboardX>=2.6"],
    "transformers": ["tokenizers>=0.20", "transformers>=5"],
    "slurm": ["submitit>=1.5"],
    "dev": [
        "pytest>=8",
        "hypothesis>=6.100",
        "ruff>=0.6",
        "pyright>=1.1.380",
        "pyarrow>=15",
        "zstandard>=0.22",
        "tensorboardX>=2.6",
        "tokenizers>=0.20",
        "transformers>=5",
        "submitit>=1.5",
    ],
}

setup(
    name="bigbatch",
    version="0.1.0",
    description="Mixed-precision, large-batch language modelling: the multiplicative LSTM and its sentiment unit",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*PACKAGES, *DATA],
    package_dir={**PACKAGES, **DATA},
    package_data={
        "bigbatch.models": ["*.cpp"],
        "bigbatch.analysis": ["published/*.csv"],
        "bigbatch.configs.clusters": ["*.yaml"],
    },
    install_requires=[
        "torch>=2.9,<3",
        "numpy>=1.26",
        "pandas>=2.2",
        "scikit-learn>=1.6",
        "scipy>=1.11",
        "matplotlib>=3.8",
        "tqdm>=4.66",
        "jsonargparse[signatures]>=4.49",
        "safetensors>=0.4.5",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["bigbatch = bigbatch.scripts.cli:run"]},
)
