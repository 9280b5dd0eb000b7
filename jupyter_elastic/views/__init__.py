"""Models and screens of jobs and of the pool, shared by the kernel, the server and the terminal."""
