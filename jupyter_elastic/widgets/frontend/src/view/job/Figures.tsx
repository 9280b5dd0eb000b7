// The figures of a training: epoch, step, speed, time left.
import { duration, figure } from '../../format';
import type { JobScreen } from '../../screens';

export function Figures({ screen }: { screen: JobScreen }) {
  const figures: string[] = screen.training > 1 ? [`training ${screen.training}`] : [];
  if (screen.fraction !== null && screen.phase !== 'completed') figures.push(`${Math.round(100 * screen.fraction)} %`);
  if (screen.epoch !== null)
    figures.push(`epoch ${figure(screen.epoch)}${screen.epochs === null ? '' : ` of ${figure(screen.epochs)}`}`);
  if (screen.step !== null) figures.push(`step ${screen.step}`);
  if (screen.samples_per_s !== null) figures.push(`${figure(screen.samples_per_s)} samples/s`);
  if (screen.ended_at === null && screen.eta_s !== null && screen.eta_s >= 1)
    figures.push(`about ${duration(screen.eta_s)} left`);
  return figures.length ? (
    <div class="je-figures">
      {figures.map(text => (
        <span key={text.replace(/[\d.]+/g, '#')}>{text}</span>
      ))}
    </div>
  ) : null;
}
