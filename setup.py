# Copyright 2026 The hyper_parallel authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Packaging of hyper-parallel (import name hyper_parallel)."""
import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent

# What MindFormers 2.0.0 itself asks for; the pins stand here so that one command resolves them together.
MINDFORMERS = [
    "mindformers==2.0.0",
    "transformers==4.57.1",
    "mindpet==1.0.4",
    "nltk==3.9.1",
    "setuptools>=83",
]


def version():
    """The version in hyper_parallel/version.py, read as text: importing the package needs MindSpore."""
    text = (HERE / "hyper_parallel" / "version.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


def long_description():
    """README.md, where the checkout or source archive has it."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="hyper-parallel",
    version=version(),
    description="Automatic tensor parallelism for MindSpore: a checked plan, and the same numbers on every rank",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["hyper_parallel", "hyper_parallel.*"]),
    entry_points={"console_scripts": ["hyper-parallel = hyper_parallel.cli.main:main"]},
    python_requires=">=3.10,<3.13",
    install_requires=[
        "mindspore>=2.10.0,<2.11",
        "numpy<2",
        # Not imported here: a later pyarrow refuses numpy 1.x, so that `pip install mindformers==2.0.0` on top of this
        # package would resolve and then fail at `import mindformers`.
        "pyarrow>=23.0.1,<24",
        "PyYAML",
        "rich",
        "safetensors",
        "tqdm",
    ],
    extras_require={
        "mindformers": MINDFORMERS,
        "judge": ["torch==2.13.0"],
        "quickstart": ["matplotlib", "tokenizers"],
        "test": ["coverage>=7.10", "hypothesis", "pytest", "pytest-cov"],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
