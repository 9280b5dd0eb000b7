"""Engine `torch`: process groups of `torch.distributed`, with our membership instead of torchrun's agent."""
