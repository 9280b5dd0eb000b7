"""Engine `functions`: workers that call functions, as many as there is work for. Started by `elastic.submit`."""
