"""The packed step as CUDA graphs: static buffers, one graph a token bucket, one replay a step."""
