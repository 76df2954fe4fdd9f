"""Triton kernels of the packed step. Imported on CUDA only; each has a slow twin in torch, and a test that compares."""
