// The static form of a job or of the pool, which a notebook's file keeps for readers without this front end.

/**
 * Hides the static form of a job or pool while its live view is in the page, wherever a front end has put that form.
 */
export class StaticForm {
  private style = document.head.appendChild(document.createElement('style'));

  /** `name` follows "jelastic-" in the form's class. */
  hide(name: string): void {
    const rule = /^\w+$/.test(name) ? `.jelastic-static.jelastic-${name} { display: none; }` : '';
    if (this.style.textContent !== rule) this.style.textContent = rule;
  }

  show(): void {
    this.style.remove();
  }
}
