"""From CUDA C++ to a kernel that can be launched in a graph: NVRTC, and the driver's calls where torch has none.

Compiling takes a quarter to half a second a kernel, at start.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch

try:
    from cuda.bindings import driver, nvrtc
except ImportError:  # a build of torch without CUDA
    driver = nvrtc = None

PANEL = 64
"""Columns of a box that TMA moves: 128 bytes, as wide as its swizzle."""
ROW_BYTES = 128
"""Of a tile in shared memory."""
HEAD_DIM = 128
ALIGNMENT = 1024
"""Of the tiles in shared memory, in bytes: the kernels see to it themselves, in so much more memory."""


class Kernel:
    """A kernel with its arguments, grid and shared memory: `launch` enqueues it on the current stream, nothing else.

    `constants` are defined before its source, `functions` put before it; `arguments` are ctypes values.
    """

    def __init__(
        self,
        name: str,
        constants: Mapping[str, int],
        functions: str,
        arguments: tuple[Any, ...],
        grid: tuple[int, int],
        threads: int,
        memory: int,
        chained: bool,
        cluster: int = 1,
    ) -> None:
        memory += ALIGNMENT
        self._function = _function(name, (*constants.items(), ("CHAINED", int(chained))), functions, memory)
        self._arguments = arguments
        self._pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self._config = _launch_config(grid, threads, memory, chained, cluster)

    def launch(self) -> None:
        self._config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        _checked(driver.cuLaunchKernelEx(self._config, self._function, ctypes.addressof(self._pointers), 0))


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run on a device: Hopper, and what a CUDA build of torch brings."""
    return (
        driver is not None
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] == 9
        and dtype in (torch.bfloat16, torch.float16)
    )


def tensor_map(tensor: torch.Tensor, box_rows: int) -> Any:
    """How TMA finds boxes of `box_rows` rows and 64 columns of a matrix of 16-bit numbers, and swizzles them."""
    rows, columns = tensor.shape
    dtypes = driver.CUtensorMapDataType
    dtype = {
        torch.bfloat16: dtypes.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        torch.float16: dtypes.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.float8_e4m3fn: dtypes.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }[tensor.dtype]
    encoded = _checked(
        driver.cuTensorMapEncodeTiled(
            dtype,
            2,
            tensor.data_ptr(),
            [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
            [driver.cuuint64_t(tensor.stride(0) * tensor.element_size())],
            [driver.cuuint32_t(ROW_BYTES // tensor.element_size()), driver.cuuint32_t(box_rows)],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return (ctypes.c_uint64 * 16).from_buffer_copy(ctypes.string_at(encoded.getPtr(), 128))


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def wgmma(name: str, columns: int, dtype: torch.dtype, *, rows_in_registers: bool = False) -> str:
    """A function that enqueues 64 rows · `columns` columns · 16 deep, whose registers PTX wants named one by one.

    Operands are descriptors of shared memory; with `rows_in_registers` the first is four registers, and the second lies
    transposed. The result is `total`; `adds` is 0 where it begins.
    """
    number = columns // 2
    short = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3"}[dtype]
    depth = 32 // dtype.itemsize
    totals = ", ".join(f"%{index}" for index in range(number))
    outputs = ", ".join(f'"+f"(total[{index}])' for index in range(number))
    if rows_in_registers:
        first = f"{{%{number}, %{number + 1}, %{number + 2}, %{number + 3}}}"
        inputs, used = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])', 4
        parameter, transposed = "const unsigned int* a", ", 1"
    else:
        first, inputs, used = f"%{number}", '"l"(a)', 1
        parameter, transposed = "unsigned long long a", ", 0, 0" if dtype.itemsize == 2 else ""
    second, adds = number + used, number + used + 1
    return f"""
__device__ void {name}(float (&total)[{number}], {parameter}, unsigned long long b, int adds) {{
  asm volatile("{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{adds}, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{short}.{short} {{{totals}}}, "
    "{first}, %{second}, adds, 1, 1{transposed};\\n}}"
    : {outputs} : {inputs}, "l"(b), "r"(adds));
}}
"""


def compiled(name: str, constants: tuple[tuple[str, int], ...], functions: str) -> bytes:
    """Return the machine code of `name`.cu for Hopper; no device is needed.

    Raises `RuntimeError` with the compiler's words.
    """
    source = functions.join((_source("common.cuh"), _source(f"{name}.cu")))
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []))
    options = [b"-arch=sm_90a", b"-std=c++17", *(f"-D{constant}={value}".encode() for constant, value in constants)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status.value != 0:
        text = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, text))
        raise RuntimeError(f"{name}.cu with {dict(constants)} does not compile: {text.decode()}")
    code: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return code


@functools.cache
def _source(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text()


@functools.cache
def _function(name: str, constants: tuple[tuple[str, int], ...], functions: str, memory: int) -> Any:
    """Compile the kernel and load it, for the current device."""
    module = _checked(driver.cuModuleLoadData(compiled(name, constants, functions)))
    function = _checked(driver.cuModuleGetFunction(module, name.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(function, limit, memory))
    return function


def _launch_config(grid: tuple[int, int], threads: int, memory: int, chained: bool, cluster: int) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = *grid, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = memory
    attributes = []
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
        attributes.append(attribute)
    if chained:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a call to CUDA. Raises `RuntimeError` naming its error."""
    status, *values = result
    if status.value != 0:
        raise RuntimeError(f"CUDA: {status.name}")
    return values[0] if values else None
