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
"""Do-nothing CUDA and MPI libraries: MindSpore's own parallel compiler can then be asked anywhere, in one process.

The compiler refuses `semi_auto_parallel` for the device target CPU. The wheel also carries a GPU backend, which misses
nothing but CUDA's libraries, and compiling a graph asks them for little more than a device's properties: functions that
return 0 are enough. MPI's library is what that backend asks for the number of ranks; one that answers with an
environment variable lets a single process compile what a rank of a job of any size would. Nothing is ever run. Which
functions have to be there is read from the installed wheel.
"""
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA = "11.6"
_GIBIBYTE = 1 << 30
_DRIVER = "libcuda.so.1"
_MPI = "libmpi.so.40"
# Only these have to answer with more than success.
_ANSWERS = {
    "MPI_Comm_size": "(void *group, int *size) { *size = atoi(getenv(\"STAND_IN_WORLD\")); return 0; }",
    "MPI_Comm_rank": "(void *group, int *rank) { *rank = atoi(getenv(\"PMIX_RANK\")); return 0; }",
    "MPI_Comm_create_group": "(void *all, void *ranks, int tag, void **made) { *made = ranks; return 0; }",
    "MPI_Group_incl": "(void *all, int size, int *ranks, void **made) { *made = ranks; return 0; }",
    "MPI_Comm_group": "(void *all, void **made) { *made = all; return 0; }",
    "MPI_Initialized": "(int *flag) { *flag = 1; return 0; }",
    "MPI_Finalized": "(int *flag) { *flag = 1; return 0; }",
    "cudaGetDeviceCount": "(int *count) { *count = 1; return 0; }",
    "cudaRuntimeGetVersion": "(int *version) { *version = 11060; return 0; }",
    "cudaDriverGetVersion": "(int *version) { *version = 11060; return 0; }",
    "cudaMemGetInfo": f"(size_t *left, size_t *all) {{ *left = *all = {8 * _GIBIBYTE}; return 0; }}",
    "cudaMalloc": "(void **at, size_t bytes) { *at = malloc(bytes); return 0; }",
    "cudaMallocHost": "(void **at, size_t bytes) { *at = malloc(bytes); return 0; }",
    "cudaHostAlloc": "(void **at, size_t bytes) { *at = malloc(bytes); return 0; }",
}
# A device's name is its first 256 bytes; any small count does for the numbers behind it.
_PROPERTIES = ("(char *device, int index) { memset(device, 0, 712); strcpy(device, \"none\"); "
               "for (int at = 256; at < 712; at += 4) *(int *)(device + at) = 8; return 0; }")


def missing_tool():
    """What this machine lacks for building the libraries, as a reason for a skip; None if nothing."""
    for tool in ("gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not _backend().exists():
        return f"this wheel of mindspore has no GPU backend for CUDA {CUDA}"
    return None


def environment(world, rank=0):
    """Environment variables under which a new process is one rank of a job, with the libraries in its reach.

    The libraries are built once for a version of MindSpore and of this file.

    Args:
        world: ranks of the job; the others do not exist.
        rank: the process's own.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyper_parallel"
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    folder = cache / f"stand_in_{importlib.metadata.version('mindspore')}_{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache))
        _build(made)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return {"LD_LIBRARY_PATH": str(folder), "CUDA_HOME": str(folder / "cuda"), "LD_PRELOAD": str(folder / "libnccl.so"),
            "OMPI_COMMAND": "none", "PMIX_RANK": str(rank), "STAND_IN_WORLD": str(world)}


def _wheel():
    return Path(importlib.util.find_spec("mindspore").origin).parent / "lib"


def _backend():
    return _wheel() / "plugin" / f"libmindspore_gpu.so.{CUDA}"


def _build(folder):
    """Write, compile and link every library into `folder`."""
    objects = [_backend(), _wheel() / "libmpi_collective.so", *(_wheel() / "plugin").glob("gpu/*.so*"),
               *(_wheel() / "plugin").glob(f"gpu{CUDA}/libnvidia*.so*")]
    needed = re.findall(r"NEEDED.*\[(lib(?:cu|nvrtc)\S+?)\]", _output("readelf", "-d", _backend()))
    functions = {soname: {} for soname in (*needed, "libnccl.so", _MPI)}
    for path in objects:
        for name, version in re.findall(r" [Uw] (\w+)(?:@(\S+))?", _output("nm", "-D", "--undefined-only", path)):
            # a second @ marks a default version
            version = version.lstrip("@")
            soname = version if version in functions else _library_of(name, needed)
            if soname:
                functions[soname][name] = version or functions[soname].get(name, "")
    for soname, versions in functions.items():
        _link(folder, soname, versions)
    compiler = folder / "cuda" / "bin" / "nvcc"  # asked for its version only
    compiler.parent.mkdir(parents=True)
    compiler.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {CUDA}, V{CUDA}.0'\n", encoding="utf-8")
    compiler.chmod(0o755)


def _library_of(name, needed):
    """The library that an unversioned symbol belongs to, by its prefix; None for what is not CUDA's."""
    if name.startswith("nccl"):
        return "libnccl.so"
    if name.startswith(("MPI_", "ompi_")):
        return _MPI
    if re.match(r"cu[A-Z]", name):
        return _DRIVER
    owners = [soname for soname in needed if soname != _DRIVER
              and name.startswith(("cuda", "__cuda") if "cudart" in soname else re.match(r"lib([a-z]+)", soname)[1])]
    return owners[0] if owners else None


def _link(folder, soname, versions):
    lines = ["#include <stdlib.h>", "#include <string.h>"]
    for name in sorted(versions):
        if name.startswith("cudaGetDeviceProperties"):
            lines.append(f"int {name}{_PROPERTIES}")
        elif name.startswith("ompi_"):  # not a function, but the address that stands for a communicator or a type
            lines.append(f"char {name}[512];")
        elif name.endswith("GetErrorString"):
            lines.append(f"const char *{name}(int code) {{ return \"none\"; }}")
        else:
            lines.append(f"long {name}{_ANSWERS.get(name, '() { return 0; }')}")
    source = folder / f"{soname}.c"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", folder / soname, source, f"-Wl,-soname,{soname}"]
    by_version = defaultdict(list)
    for name, version in versions.items():
        if version:
            by_version[version].append(name)
    if by_version:
        script = folder / f"{soname}.map"
        script.write_text("".join(f"{version} {{ global: {'; '.join(names)}; }};\n"
                                  for version, names in by_version.items()), encoding="utf-8")
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
