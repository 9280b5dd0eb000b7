"""Models of jobs and pool, kept current, and their screens and pages.

`pool_model` folds events, `follower` keeps the models current, `updater` runs the follower in a thread and paces
redraws, `job_display` puts a job's view below its cell, `frontend` draws in the browser.
"""
