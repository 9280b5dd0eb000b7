// Stands in the place of a job's view until its first page has come.

export function NoPage({ job, notice }: { job: number; notice: string }) {
  return <div class="je-root je-job">{notice || `job ${job}: asking the server…`}</div>;
}
