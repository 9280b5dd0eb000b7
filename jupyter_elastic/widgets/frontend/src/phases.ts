// Phases in which a job is over.

export const ENDED = ['completed', 'failed', 'cancelled'];
