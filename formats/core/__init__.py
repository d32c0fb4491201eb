"""The ground of all formats: arrays at the door, sizes, errors, activations, the stages of epilogues."""
