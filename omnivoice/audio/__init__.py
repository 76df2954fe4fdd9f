"""Audio without a codec: files, resampling and what is done to a waveform. Loads neither torch nor a model."""
