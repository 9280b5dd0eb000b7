"""Where README's figures come from. Ratios against a peer or a limit measured in the same run, never bare seconds."""
