// The table of unfinished jobs.
import type { PoolActions } from '../../actions';
import type { Ask } from '../../ask';
import type { Colour } from '../../format';
import type { PoolScreen } from '../../screens';
import type { Requests } from '../requests';
import { JobLine } from './JobLine';

/** Height in pixels of a row in a table that is shown in windows; rows of a short table are as high as they need. */
const ROW_HEIGHT = 56;

/** The page holds only the rows in sight: the server sends a window, and empty space stands for the other rows. */
export function JobTable(props: {
  screen: PoolScreen;
  colour: Colour;
  offset: number;
  actions: PoolActions;
  requests: Requests;
  ask: Ask;
}) {
  const { screen, offset, actions, requests, ask } = props;
  const long = screen.total_jobs > screen.jobs.length;
  const scrolled = (event: Event) => {
    const box = event.currentTarget as HTMLElement;
    const first = Math.floor(box.scrollTop / ROW_HEIGHT);
    const shown = Math.ceil(box.clientHeight / ROW_HEIGHT);
    if (first < offset || first + shown > offset + screen.jobs.length) {
      actions.window(Math.max(0, first - shown), 4 * shown);
    }
  };
  if (!screen.total_jobs) return <p class="je-quiet">No jobs</p>;
  return (
    <div
      class={`je-jobs${long || offset ? ' je-window' : ''}`}
      onScroll={long || offset ? scrolled : undefined}
      tabIndex={0}
      role="group"
      aria-label="jobs"
    >
      <div style={long || offset ? `height: ${screen.total_jobs * ROW_HEIGHT}px` : ''}>
        <ol style={`transform: translateY(${offset * ROW_HEIGHT}px)`}>
          {screen.jobs.map(row => (
            <JobLine
              key={row.job}
              row={row}
              colour={props.colour}
              mine={row.mine && actions.cancel !== undefined}
              cancel={() => actions.cancel!(row.job)}
              open={actions.open && (() => actions.open!(row.job))}
              now={screen.at}
              requests={requests}
              ask={ask}
            />
          ))}
        </ol>
      </div>
    </div>
  );
}
