// The live view of a job where no built front end is at hand (a source checkout): draws the page that the kernel folded,
// and sends clicks back. No library, no build, no network.
// Everything that comes from a person or a program goes into the page as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';
const ENDED = ['completed', 'failed', 'cancelled'];

/** An element with properties and children. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function figure(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(3)));
}

const clock = at => new Date(at * 1000).toTimeString().slice(0, 8);

function figures(screen) {
  const said = [];
  const say = (value, unit) => said.push(el('span', {}, el('b', {}, value), ` ${unit}`));
  const over = ENDED.includes(screen.phase);
  if (screen.fraction !== null && !over) say(`${Math.round(100 * screen.fraction)}`, '%');
  if (screen.epoch !== null) said.push(el('span', {}, 'epoch ', el('b', {}, figure(screen.epoch)), screen.epochs === null ? '' : ` of ${figure(screen.epochs)}`));
  if (screen.step !== null) said.push(el('span', {}, 'step ', el('b', {}, screen.step.toLocaleString('en'))));
  if (screen.samples_per_s !== null) say(figure(screen.samples_per_s), 'samples/s');
  if (screen.eta_s !== null) said.push(el('span', {}, 'about ', el('b', {}, duration(screen.eta_s)), ' left'));
  if (screen.started_at !== null && !over) said.push(el('span', { class: 'je-quiet' }, `${duration(screen.now - screen.started_at)} since its start`));
  if (screen.preemptions) said.push(el('span', { class: 'je-quiet' }, `paused ${screen.preemptions}×`));
  return said;
}

/** Slots over time as steps. */
function band(screen) {
  if (!screen.sizes.length) return [];
  const begin = screen.sizes[0].at;
  const end = Math.max(screen.ended_at ?? screen.now, begin + 1e-3);
  const most = Math.max(1, screen.max_slots, ...screen.sizes.map(point => point.slots));
  const boxes = screen.sizes.map((point, index) => {
    const until = index + 1 < screen.sizes.length ? screen.sizes[index + 1].at : end;
    const x = (1000 * (point.at - begin)) / (end - begin);
    const width = Math.max(0, (1000 * (until - point.at)) / (end - begin));
    const height = (30 * point.slots) / most;
    const title = svg('title', {});
    title.textContent = `${clock(point.at)}: ${point.slots} ${screen.unit}${point.slots === 1 ? '' : 's'}${point.reason ? `, ${point.reason}` : ''}`;
    return svg('rect', { x, y: 34 - height, width, height }, title);
  });
  const lines = [];
  for (let n = 1; n < most && most <= 16; n++) {
    const y = 34 - (30 * n) / most;
    lines.push(svg('line', { x1: 0, x2: 1000, y1: y, y2: y, stroke: 'var(--je-back)', 'stroke-width': 1, 'vector-effect': 'non-scaling-stroke' }));
  }
  const picture = svg(
    'svg',
    { viewBox: '0 0 1000 34', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${screen.unit}s over time: ${screen.sizes.map(point => point.slots).join(', ')}` },
    svg('g', { fill: 'var(--je-run)', 'fill-opacity': 0.55 }, ...boxes),
    ...lines
  );
  const now = screen.slots.length;
  const axis = el('div', { class: 'je-axis' }, el('span', {}, `${screen.unit}s, up to ${most}`), el('span', {}, ENDED.includes(screen.phase) ? duration(end - begin) : `${now} now`));
  const story = screen.sizes
    .map((point, index) => ({ point, before: index ? screen.sizes[index - 1].slots : 0 }))
    .filter(({ point }, index) => index > 0 && !ENDED.includes(point.reason))
    .slice(-4)
    .map(({ point, before }) =>
      el('li', {}, `${clock(point.at)}  `, el('b', {}, `${before} → ${point.slots}`), point.reason ? `: ${point.reason}` : '', point.pause_s >= 0.05 ? `, ${point.pause_s.toFixed(1)} s pause` : '')
    );
  return [picture, axis, el('ul', { class: 'je-story', hidden: story.length ? false : '' }, ...story)];
}

function curve(series) {
  const header = el('header', {}, el('span', { title: series.name }, series.name), el('b', {}, series.last));
  const box = el('div', { class: 'je-curve' }, header);
  const points = series.points;
  if (points.length < 2) return box;
  const xs = points.map(point => point[0]);
  const ys = points.map(point => point[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const place = ([x, y]) => {
    const px = 200 * (x1 > x0 ? (x / 2 - x0 / 2) / (x1 / 2 - x0 / 2) : 0.5);
    const py = 54 - 50 * (y1 > y0 ? (y / 2 - y0 / 2) / (y1 / 2 - y0 / 2) : 0.5);
    return `${px.toFixed(1)} ${py.toFixed(1)}`;
  };
  const path = `M${points.map(place).join('L')}`;
  box.append(
    svg(
      'svg',
      { viewBox: '0 0 200 58', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${series.name}, now ${series.last}` },
      svg('path', { d: `${path}L200 58L0 58Z`, fill: 'var(--je-run)', 'fill-opacity': 0.08 }),
      svg('path', { d: path, fill: 'none', stroke: 'var(--je-run)', 'stroke-width': 1.6, 'stroke-linejoin': 'round', 'vector-effect': 'non-scaling-stroke' })
    ),
    el('div', { class: 'je-axis' }, el('span', {}, `${figure(y0)} to ${figure(y1)}`), el('span', {}, `step ${figure(x1)}`))
  );
  return box;
}

class View {
  constructor(model, root) {
    this.model = model;
    this.rank = null;
    this.asked = false;
    this.name = el('span', { class: 'je-name' });
    this.about = el('span', { class: 'je-quiet' });
    this.state = el('span', { role: 'status', 'aria-live': 'polite' });
    this.cancel = el('button', { type: 'button', onclick: () => this.stop() }, 'Cancel');
    this.background = el('button', { type: 'button', title: 'Let the notebook go on while the job runs', onclick: () => model.send({ type: 'background' }) }, 'Send to background');
    this.detail = el('div', { class: 'je-quiet' });
    this.error = el('pre', { class: 'je-error', tabindex: 0, 'aria-label': 'traceback of the first failing rank' });
    this.fill = el('i');
    this.bar = el('div', { class: 'je-bar', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100 }, this.fill);
    this.figures = el('div', { class: 'je-figures' });
    this.band = el('div', { class: 'je-band' });
    this.curves = el('div', { class: 'je-curves' });
    this.tabs = el('div', { class: 'je-tabs', role: 'tablist', 'aria-label': 'output by rank', onkeydown: event => this.key(event) });
    this.output = el('pre', { role: 'tabpanel', tabindex: 0 });
    this.foot = el('div', { class: 'je-foot' });
    this.outputs = el('div', {}, this.tabs, this.output, this.foot);
    this.box = el(
      'section',
      { class: 'jelastic' },
      el('div', { class: 'je-head' }, this.name, this.about, el('span', { class: 'je-right' }, el('span', { class: 'je-state' }, el('span', { class: 'je-dot', 'aria-hidden': 'true' }), this.state), this.background, this.cancel)),
      this.detail, this.error, this.bar, this.figures, this.band, this.curves, this.outputs
    );
    root.append(this.box);
  }

  drawScreen() {
    const { screen, notice, traceback } = this.model.get('page') || {};
    if (!screen) return;
    const over = ENDED.includes(screen.phase);
    this.box.dataset.tone = screen.tone;
    this.box.toggleAttribute('data-live', !over);
    this.box.setAttribute('aria-label', `job ${screen.job}, ${screen.name}`);
    this.name.textContent = screen.name;
    const wants = screen.min_slots === screen.max_slots ? `${screen.max_slots}` : `${screen.min_slots} to ${screen.max_slots}`;
    this.about.textContent = `job ${screen.job} · ${screen.engine} · ${wants} ${screen.unit}${screen.max_slots === 1 ? '' : 's'}`;
    if (this.state.textContent !== screen.state) this.state.textContent = screen.state;
    this.text(this.detail, notice || screen.detail);
    this.background.hidden = over || !this.model.get('waits');
    this.cancel.hidden = over;
    if (screen.phase === 'stopping' || over) this.asked = true;
    this.cancel.disabled = this.asked;
    this.cancel.textContent = this.asked ? 'Stopping…' : 'Cancel';
    this.text(this.error, traceback || '');
    this.drawBar(screen, over);
    this.figures.replaceChildren(...figures(screen));
    this.figures.hidden = !this.figures.childNodes.length;
    this.band.replaceChildren(...band(screen));
    this.band.hidden = !this.band.childNodes.length;
    this.curves.replaceChildren(...screen.metrics.map(curve));
    this.curves.hidden = !screen.metrics.length;
  }

  drawBar(screen, over) {
    const known = screen.fraction !== null;
    this.bar.hidden = !known && (over || screen.phase === 'queued');
    this.bar.classList.toggle('je-unknown', !known);
    this.fill.style.width = known ? `${(100 * screen.fraction).toFixed(2)}%` : '';
    const percent = known ? Math.round(100 * screen.fraction) : undefined;
    if (known) this.bar.setAttribute('aria-valuenow', percent);
    else this.bar.removeAttribute('aria-valuenow');
    this.bar.setAttribute('aria-label', known ? `${percent} % done` : 'running; how far is not known');
  }

  drawOutputs() {
    const { outputs = {}, folder = '' } = this.model.get('page') || {};
    const ranks = Object.keys(outputs).sort((a, b) => a - b);
    this.outputs.hidden = !ranks.length;
    if (!ranks.length) return;
    if (!ranks.includes(this.rank)) this.rank = ranks[0];
    const present = [...this.tabs.children].map(tab => tab.dataset.rank).join();
    if (present !== ranks.join()) {
      this.tabs.replaceChildren(
        ...ranks.map(rank => el('button', { type: 'button', role: 'tab', 'data-rank': rank, onclick: () => this.choose(rank) }, `rank ${rank}`))
      );
    }
    for (const tab of this.tabs.children) {
      const chosen = tab.dataset.rank === this.rank;
      tab.setAttribute('aria-selected', chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
    const follows = this.output.scrollHeight - this.output.scrollTop - this.output.clientHeight < 24;
    const lines = outputs[this.rank];
    const spans = lines.map(([stream, text]) => (stream === 'stdout' ? `${text}\n` : el('span', { class: stream === 'stderr' ? 'je-stderr' : 'je-note' }, `${text}\n`)));
    this.output.replaceChildren(...(spans.length ? spans : [el('span', { class: 'je-note' }, 'nothing printed yet')]));
    this.output.setAttribute('aria-label', `output of rank ${this.rank}`);
    if (follows) this.output.scrollTop = this.output.scrollHeight;
    this.foot.textContent = `the last lines; all of it: ${folder}/rank.${this.rank}/`;
  }

  text(node, said) {
    if (node.textContent !== said) node.textContent = said;
    node.hidden = !said;
  }

  choose(rank, focus = false) {
    this.rank = rank;
    this.drawOutputs();
    this.output.scrollTop = this.output.scrollHeight;
    if (focus) this.tabs.querySelector(`[data-rank="${rank}"]`)?.focus();
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const ranks = [...this.tabs.children].map(tab => tab.dataset.rank);
    const next = ranks[ranks.indexOf(this.rank) + step];
    if (next !== undefined) this.choose(next, true);
    event.preventDefault();
    event.stopPropagation();
  }

  stop() {
    this.asked = true;
    this.cancel.disabled = true;
    this.cancel.textContent = 'Stopping…';
    this.model.send({ type: 'cancel' });
  }
}

function render({ model, el: root }) {
  const view = new View(model, root);
  const draw = () => {
    view.drawScreen();
    view.drawOutputs();
  };
  model.on('change:page', draw);
  model.on('change:waits', draw);
  draw();
  return () => {
    model.off('change:page', draw);
    model.off('change:waits', draw);
  };
}

export default { render };
