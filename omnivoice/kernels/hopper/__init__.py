"""Hand-written kernels for Hopper, in CUDA C++: a layer's products and attention, by TMA and wgmma.

They do what `omnivoice.kernels.products` and `omnivoice.kernels.attention` do in Triton; where a device or a model's
sizes do not suit them, those run. CUDA builds of torch bring what compiles and launches them: NVRTC, `cuda-bindings`.
"""
