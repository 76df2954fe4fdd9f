"""The GPU, where the settings ask for one: there, usable by this torch, and with room for the weights."""

from __future__ import annotations

from collections.abc import Iterator

from worker.doctor.findings import Finding, error, ok, one_line, warning
from worker.jobs.settings import Settings


def check_gpu(settings: Settings, weight_bytes: int) -> list[Finding]:
    """`weight_bytes` is the size of the checkpoint's weights. Uses a few bytes of the device for a moment."""
    if settings.synthesizer != "engine" or settings.device == "cpu":
        return [ok("device", "the CPU, as the settings say")]
    try:
        import torch  # noqa: PLC0415 - seconds, and only for who uses it
    except ImportError as problem:
        return [error("torch", one_line(problem), "pip install 'omnivoice-queue[worker]'")]
    if not torch.cuda.is_available():
        text = f"torch {torch.__version__} (CUDA {torch.version.cuda or 'not built in'}) sees no GPU"
        if settings.device == "auto":
            return [
                warning("device", f"{text}: a worker here uses the CPU", "set OMNIVOICE_DEVICE=cpu if that is meant")
            ]
        remedy = (
            "install NVIDIA's driver and a torch with CUDA, give the container the GPU, or set OMNIVOICE_DEVICE=cpu"
        )
        return [error("device", text, remedy)]
    return list(_look(settings, weight_bytes))


def _look(settings: Settings, weight_bytes: int) -> Iterator[Finding]:
    import torch  # noqa: PLC0415

    index, count = int(settings.device.partition(":")[2] or 0), torch.cuda.device_count()
    if index >= count:
        numbers = "0" if count == 1 else f"0 to {count - 1}"
        yield error(
            "device", f"{settings.device} is not there", f"this torch sees GPU {numbers}: correct OMNIVOICE_DEVICE"
        )
        return
    try:
        free, total = torch.cuda.mem_get_info(index)
        torch.ones(1, device=f"cuda:{index}").add_(1).item()  # a driver or a GPU too old for this torch shows here
    except RuntimeError as problem:
        remedy = "see nvidia-smi: is the driver new enough for this torch, and the GPU free?"
        yield error("device", str(problem).strip().splitlines()[0], remedy)
        return
    major, minor = torch.cuda.get_device_capability(index)
    yield ok("device", f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}")
    yield ok("torch", f"{torch.__version__}, CUDA {torch.version.cuda}")
    if settings.dtype in ("auto", "bfloat16") and major < 8:
        yield error("dtype", "this GPU has no bfloat16", "set OMNIVOICE_DTYPE=float16")
    room = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if free < weight_bytes:
        yield error("memory", f"{room}, the weights are {weight_bytes / 2**30:.1f} GiB", "end what else uses the GPU")
    else:
        yield ok("memory", room)
    yield _triton()


def _triton() -> Finding:
    try:
        import triton  # noqa: PLC0415
    except ImportError as problem:
        return error("triton", one_line(problem), "install the torch of PyPI for CUDA, which brings it along")
    return ok("triton", triton.__version__)
