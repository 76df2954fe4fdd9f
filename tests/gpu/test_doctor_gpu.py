"""What the doctor says of a real GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic", reason="the doctor reads settings; a bare GPU machine may lack pydantic")

import torch

from worker.doctor.findings import Level, has_errors
from worker.doctor.gpu import check_gpu
from worker.jobs.settings import Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "auto"])
def test_a_gpu_with_room(device: str) -> None:
    findings = check_gpu(Settings(device=device), 2**20)
    assert not has_errors(findings), findings
    assert torch.cuda.get_device_name(0) in findings[0].text
    assert [finding.subject for finding in findings] == ["device", "torch", "memory", "triton"]


def test_a_gpu_that_is_not_there_and_one_that_is_too_small() -> None:
    [finding] = check_gpu(Settings(device="cuda:99"), 0)
    assert finding.level is Level.ERROR
    assert "cuda:99" in finding.text
    findings = {finding.subject: finding for finding in check_gpu(Settings(device="cuda"), 2**60)}
    assert findings["memory"].level is Level.ERROR
