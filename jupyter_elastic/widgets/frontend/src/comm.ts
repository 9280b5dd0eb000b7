// Sends requests to the kernel over a widget's comm; a request's number comes back in its answer.

export interface Model {
  get(name: string): unknown;
  on(event: string, handler: (content: unknown) => void): void;
  off(event: string, handler: (content: unknown) => void): void;
  send(content: unknown): void;
}

/** Milliseconds to wait for an answer of the kernel. */
const PATIENCE_MS = 30_000;

export class Comm {
  private waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  private next = 1;

  constructor(private model: Model) {
    model.on('msg:custom', this.receive);
  }

  close(): void {
    this.model.off('msg:custom', this.receive);
  }

  ask<T>(content: Record<string, unknown>): Promise<T> {
    const id = this.next++;
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      setTimeout(
        () => this.settle(id)?.reject(new Error('The kernel has not answered for 30 s: it is busy or gone.')),
        PATIENCE_MS
      );
      this.model.send({ id, ...content });
    });
  }

  private settle(id: number) {
    const waits = this.waiting.get(id);
    this.waiting.delete(id);
    return waits;
  }

  private receive = (content: unknown) => {
    const { id, value, error } = content as { id: number; value: never; error?: string };
    const waits = this.settle(id);
    if (error) waits?.reject(new Error(error));
    else waits?.resolve(value);
  };
}
