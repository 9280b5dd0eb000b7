// A part of the pool's view, with a heading.
import type { ComponentChildren } from 'preact';

export function Section(props: { title: string; aside?: string; children: ComponentChildren }) {
  return (
    <section class="je-section">
      <h3>
        {props.title}
        {props.aside && <span class="je-aside">{props.aside}</span>}
      </h3>
      {props.children}
    </section>
  );
}
