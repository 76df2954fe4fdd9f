"""Whether a way to run the engine changes what is said: codes beside those of eager float32, and words heard wrong.

python -m bench.accuracy generate --checkpoint checkpoints/demo --out /tmp/accuracy    # where the GPU is
python -m bench.accuracy listen /tmp/accuracy --checkpoint checkpoints/demo            # with the development packages

`generate` needs the engine's packages only and leaves codes and figures, row by row; `listen` makes the audio of the
codes on a CPU, on another machine if need be, and counts the words that a recogniser hears. `compare` sets the engine's
codes beside the reference package's, `realtime` takes the time of a CPU.
"""
