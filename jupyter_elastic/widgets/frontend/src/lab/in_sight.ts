// Runs a view while its element is in sight.

/** Start the view whenever the element comes into sight, and stop it whenever it leaves. */
export function whileInSight(element: Element, view: { start(): void; stop(): void }): IntersectionObserver {
  const observer = new IntersectionObserver(seen =>
    seen[seen.length - 1].isIntersecting ? view.start() : view.stop()
  );
  observer.observe(element);
  return observer;
}
