"""Reading and writing: checkpoints, safetensors, programs."""
