"""What is read and written: checkpoints, safetensors, programs."""
