"""What a person sees of jobs and pool: folds of the events into models, models into screens, screens onto pages.

`model` and `pool_model` fold, `live` and `live_pool` keep them current in a kernel, `show` puts a job's view below its
cell, `frontend` draws in the browser. Nothing here may import the scheduler.
"""
