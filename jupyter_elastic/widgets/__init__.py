"""What a person sees of jobs and pool: models of them, kept current, as screens and pages.

`pool_model` folds events, `follower` keeps the models current, `updater` runs it in a thread and paces what is drawn,
`job_display` puts a job's view below its cell, `frontend` draws in the browser.
"""
