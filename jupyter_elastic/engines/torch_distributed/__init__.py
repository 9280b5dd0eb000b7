"""Engine `torch`: process groups of `torch.distributed`, on our membership in the place of torchrun's agent."""
