"""`python scripts/guards.py [WORD ...]`: removes each guard of a shared pool once, and shows that its test turns red.

It works in a copy of the tree. All tests must pass there first, and none may be skipped (be root); then each guard, or
those whose line has one of the words, is taken out alone, its test is run, and it is put back. Prints a table; exit
code 1 when a test stays green. About ten minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from jupyter_elastic.platform import processes

ROOT = Path(__file__).parents[1]
LIMIT_S = 150


class Guard(NamedTuple):
    """A place that keeps something from happening."""

    what: str
    file: str
    """Below `jupyter_elastic/`."""
    old: str
    """Stands there exactly once."""
    new: str
    """What the place is without the guard."""
    test: str
    """Below `tests/`: `file::test`, or `file::test[case]`."""

    def removed(self, root: Path) -> str:
        """The file without the guard; ValueError when the guard isn't there exactly once."""
        text = (root / "jupyter_elastic" / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.what}: {self.file} has it {text.count(self.old)} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


AUTH = "unit/scheduler/test_auth.py::test_rights_of_a_shared_pool"
LEASES = "unit/scheduler/test_leases.py"
LIMITS = "live/daemon/test_limits.py"
HOSTILE = "live/daemon/test_hostile.py"
HUB = "hub/test_service.py"
KEYS = "live/daemon/test_registered_keys.py"
AUTHENTICATORS = "live/daemon/test_authenticators.py"
SOCKETS = "unit/driver/test_session_sockets.py"
SLOTS = "live/daemon/test_slot_agent.py"
LEFT = f"{SLOTS}::test_what_is_left_of_a_lease_is_ended_and_nobody_else_gets_in[1]"
SEEN = "unit/scheduler/test_what_others_see.py"
VISIBLE = "unit/scheduler/test_visibility.py"
FILES, FOLDER = "live/daemon/test_job_files.py", "unit/jobfiles/test_job_folder.py"
SHARED = "unit/scheduler/test_shared_hosts.py::test_a_way_by_which_all_would_be_one_user_is_refused"
GUARDS = (
    # leases: a slot comes back, and only when nothing of its attempt lives
    Guard("a lease that has run out stays so", "driver/lease.py",
          "now >= self.until or until <= self.until", "until <= self.until",
          "unit/driver/test_lease.py::test_a_lease_counts_from_the_question_and_never_comes_back"),
    Guard("the kernel kills a driver whose lease has run out", "platform/enforced_end.py",
          "        _check(_libc().timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(when), None))\n", "",
          "unit/driver/test_lease.py::test_the_kernel_kills_a_process_that_is_stopped_when_its_time_has_come"),
    Guard("the kernel kills workers with all that they started", "platform/enforced_end.py",
          "F_SETOWN, -os.getpgrp()", "F_SETOWN, os.getpid()",
          "unit/driver/test_lease.py::test_a_group_is_killed_with_the_writer_stopped_or_in_compiled_code"),
    Guard("slots stay leased for a margin after the term", "scheduler/slots/leases.py",
          "renewed + job.lease_s + MARGIN_S - now", "renewed + job.lease_s - now",
          f"{LEASES}::test_a_lease_runs_out_a_margin_after_its_term"),
    Guard("a lease is renewed by its owner only", "scheduler/slots/leases.py",
          "(job.owner, job.attempt) == (user, attempt[1])", "job.attempt == attempt[1]",
          f"{LEASES}::test_only_what_holds_slots_is_renewed_by_its_owner"),
    Guard("a lease of an attempt that is over is not renewed", "scheduler/slots/leases.py",
          " and job.phase in ACTIVE\n", "\n",
          f"{LEASES}::test_what_the_attempt_says_after_its_end_counts_no_more_and_it_is_started_anew"),
    Guard("leases that have run out are ended", "scheduler/slots/leases.py",
          "if self.left_s(job, heard.get(job.owner)) < 0]", "if False]",
          f"{LEASES}::test_a_lease_runs_out_a_margin_after_its_term"),
    Guard("a lease is renewed before anything is started", "agent/attempt.py",
          "if launch.lease_s and not await self._holds_slots():", "if False:",
          "live/agent/test_agent.py::test_an_order_to_launch_that_came_too_late_starts_nothing"),
    Guard("what holds no slots any more is ended", "agent/agent.py",
          "                attempt.forfeit()\n", "                pass\n",
          "live/agent/test_agent.py::test_what_holds_no_slots_any_more_is_ended"),
    Guard("what is to stop is renewed no longer", "scheduler/slots/leases.py",
          "if not (job.stop and job.lease_s):", "if True:",
          "unit/scheduler/test_agents.py::test_an_attempt_that_does_not_end_is_lost_and_its_agent_keeps_its_others"),
    Guard("what saves is not cut off by a short lease", "scheduler/slots/leases.py",
          "max(SAVED_S - job.lease_s, 0.0)", "0.0",
          f"{LEASES}::test_what_saves_before_it_ends_has_the_time_that_its_driver_gives_it[5.0-preempt]"),
    Guard("a session that keeps slots too long loses them", "scheduler/slots/leases.py",
          "*state.retained(exclusive=True)]", "]",
          "unit/scheduler/test_agents.py::test_a_session_that_never_gives_its_slots_back_loses_them[True]"),
    Guard("users of a shared pool reach its hosts as themselves", "hostfiles/shared_hosts.py",
          "if host_providers.parse(host).isolates_users:", "if host_providers.parse(host):",
          f"{SHARED}[slurm://7/lab2]"),
    Guard("a URL that names a user makes all users one", "hosts/providers/ssh.py",
          'return "@" not in self.destination', "return True", f"{SHARED}[ssh://root@lab2]"),
    Guard("why a user's host failed is told to nobody else", "types/texts.py",
          'return reason.partition(" (")[0] if reason.startswith(_LOST) else reason', "return reason",
          "live/daemon/test_others.py::test_others_read_that_a_host_was_lost_and_not_why"),
    Guard("how a session is called is its owner's", "scheduler/access/visibility.py",
          "if slot.pinned and not self.whole(user, slot.owner) else slot", "if False else slot",
          f"{SEEN}::test_nothing_that_is_an_owners_alone_is_in_any_answer_to_another[kept_by_a_session]"),
    Guard("who never had an agent holds no slots", "scheduler/requests/job_requests.py",
          "        agents.expect(user)\n", "",
          "live/daemon/test_others.py::test_jobs_of_a_user_who_never_had_an_agent_wait_for_it_and_hold_nothing"),
    Guard("an agent that was killed is replaced", "driver/driver.py",
          "sampler.run(), self._agent_watchdog.run())", "sampler.run())",
          "live/agent/test_leases.py::test_drivers_replace_their_killed_agent_by_one_that_renews_their_leases"),
    Guard("an agent that left on purpose is not started again", "agent/__main__.py",
          "        paths.agent_file().unlink(missing_ok=True)", "        pass",
          "live/agent/test_what_stays.py::test_an_agent_that_is_told_to_end_takes_its_parents_along_but_no_job"),
    Guard("slots with a lease are not released before its end", "scheduler/agents.py",
          "if not force and left_s < inf:", "if False:",
          "live/daemon/test_service.py::test_what_has_a_lease_is_not_released_before_its_end"),
    Guard("slots of an agent that is there are not released", "scheduler/agents.py",
          "if not force and (job.owner in self._peers or job.owner in self._awaited):", "if False:",
          "live/daemon/test_service.py::test_an_administrator_releases_what_nobody_speaks_for"),
    # two agents of one user
    Guard("an agent elsewhere is refused while something runs", "scheduler/core/agent_succession.py",
          "elif not jobs or take_over or (alone", "elif True or (alone",
          "unit/scheduler/core/test_agents.py::test_it_takes_over_openly_when_the_first_is_gone"),
    Guard("only the user's agent reports", "scheduler/agents.py",
          'if peer.role != "agent":', "if False:",
          "live/daemon/test_service.py::test_an_agent_elsewhere_is_not_heard"),
    # who may what
    Guard("others change no job", "scheduler/access/auth.py",
          "if name_of(caller) != owner and not self.is_admin(caller):", "if False:", AUTH),
    Guard("others report on no job", "scheduler/access/auth.py", "if user != owner:", "if False:", AUTH),
    Guard("others switch no policy", "scheduler/access/auth.py",
          'if not self._may(caller, "administer" if source else "policy"):', "if False:", AUTH),
    Guard("others end no daemon", "scheduler/access/auth.py",
          "if caller not in {self.owner, user_name(0)}:", "if False:", AUTH),
    Guard("a priority needs a right", "scheduler/access/auth.py",
          "(spec.priority <= highest and", "(True and",
          "unit/scheduler/test_auth.py::test_going_before_others_needs_a_right_that_the_file_of_shares_gives"),
    Guard("a shared pool begins with shares of users", "scheduler/daemon.py",
          "policies.SHARED_DEFAULT if shared else policies.DEFAULT", "policies.DEFAULT",
          "live/daemon/test_default.py::test_a_shared_pool_begins_with_a_policy_that_serves_users_before_jobs"),
    Guard("nobody says himself which group is his", "scheduler/requests/job_requests.py",
          "replace(ask.spec, group=group, max_time_s=limit)", "replace(ask.spec, max_time_s=limit)",
          "live/daemon/test_default.py::test_shares_come_from_the_administrators_file_and_a_group_is_not_chosen"),
    Guard("a submit key is its user's", "scheduler/core/decide_commands.py",
          "if state.owner_of(known) != command.by:", "if False:",
          f"{HOSTILE}::test_another_unix_user_may_see_and_submit_but_not_touch"),
    # who is who
    Guard("a name is what the kernel says", "scheduler/net/peers.py",
          'uid_of_peer(str(frame.get("Peer-Address")))', 'uid_of_peer(str(frame.get("User-Id")))',
          f"{HOSTILE}::test_a_peer_cannot_write_its_own_name_into_its_greeting"),
    Guard("names that peers give themselves are refused", "scheduler/net/peers.py",
          "        if len(identity) != 5 or identity[0] != 0:\n"
          "            self._connections.end(_connection(parts[-1]))\n"
          "        if len(parts) != 2 or len(identity) != 5 or identity[0] != 0:\n", "        if len(parts) != 2:\n",
          f"{HOSTILE}::test_parts_and_names_of_ones_own_are_ignored"),
    Guard("a name under another id inherits nothing", "scheduler/access/authenticators.py",
          "bound is None or bound == uid", "True",
          "live/daemon/test_others.py::test_an_id_that_is_used_again_and_a_name_under_another_id_inherit_nothing"),
    Guard("a key that is struck off loses its connection", "scheduler/net/peers.py",
          "                if not peer.refusal:", "                if False:",
          f"{HOSTILE}::test_a_key_that_is_struck_off_loses_its_connection_and_a_bad_line_costs_itself"),
    Guard("a key that is not in the table gets in nowhere", "scheduler/net/zap.py",
          "if isinstance(verdict, Identity):", "if key:",
          f"{HOSTILE}::test_curve_lets_in_the_keys_of_the_table_and_nobody_else"),
    Guard("no authenticator lifts what another has refused", "scheduler/access/authenticators.py",
          "            if isinstance(answer, NotAllowed):\n                return answer\n", "            pass\n",
          f"{AUTHENTICATORS}::test_by_the_guide_another_user_is_let_in_by_a_key_and_kept_out_by_name"),
    Guard("an authenticator that fails refuses", "scheduler/access/authenticators.py",
          'problem = f"it failed ({type(error).__name__})"', 'problem, answer = "", None',
          f"{AUTHENTICATORS}::test_by_the_guide_another_user_is_let_in_by_a_key_and_kept_out_by_name"),
    Guard("only an administrator's authority gives an administrator's name", "scheduler/access/authenticators.py",
          'if rights is not None and user in self._admins and "administer" not in rights:', "if False:",
          "unit/scheduler/test_authenticators.py::test_an_answer_that_is_no_identity_refuses[an administrator]"),
    Guard("who is refused is answered nothing", "scheduler/responder.py",
          "        if peer.refusal:", "        if False:",
          f"{AUTHENTICATORS}::test_by_the_guide_another_user_is_let_in_by_a_key_and_kept_out_by_name"),
    Guard("a process of somebody else is not served", "platform/peer.py",
          "if uid != os.getuid():", "if False:",
          "unit/platform/test_platform.py::test_a_process_of_another_user_is_not_served"),
    Guard("an agent starts only what its user packed", "agent/attempt.py",
          "info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o022", "False",
          "unit/jobfiles/test_attempt_folder.py::test_only_a_job_that_this_user_packed_is_started"),
    Guard("a folder of somebody else is not used", "platform/private_files.py",
          "if info.st_uid != os.getuid() or link.st_uid not in {os.getuid(), 0}:", "if False:",
          "unit/platform/test_platform.py::test_somebody_elses_folder_is_refused"),
    Guard("a folder in /tmp that somebody else made locks nobody out", "platform/paths.py",
          "        return _other_root(notes)", "        raise",
          "unit/platform/test_platform.py::test_a_name_that_somebody_else_took_locks_nobody_out"),
    Guard("a commit that somebody else has laid there is not read", "jobfiles/commits.py",
          "(self.shared, self.disk) if self._is_ours() else (self.disk,)", "(self.shared, self.disk)",
          "unit/jobfiles/test_commits.py::test_a_commit_that_somebody_else_has_laid_there_is_not_read"),
    # what one user may take
    Guard("unfinished jobs of a user are limited", "scheduler/requests/job_requests.py",
          "if has >= most and not", "if False and not",
          f"{LIMITS}::test_a_users_unfinished_jobs_are_limited_and_the_refusal_says_who_can_raise_it"),
    Guard("bytes of a spec are limited", "scheduler/requests/job_requests.py",
          "if length > SPEC_BYTES:", "if False:", f"{LIMITS}::test_a_spec_has_so_many_bytes_and_no_more"),
    Guard("streams of a user are limited", "scheduler/event_streams.py",
          "if self._of_user[peer.user] >= self._limits.streams and", "if False and",
          f"{LIMITS}::test_a_users_streams_are_limited_over_all_connections"),
    Guard("streams of a connection are limited", "scheduler/event_streams.py",
          "if len(streams) >= STREAMS and", "if False and",
          f"{HOSTILE}::test_a_connection_follows_so_many_streams_and_no_more"),
    Guard("asks of a user are limited", "scheduler/net/rate_limits.py",
          "if mine.left < 1 or connection.left < 1:", "if False:",
          f"{LIMITS}::test_who_asks_too_fast_is_told_when_to_come_again_and_others_are_answered"),
    Guard("who floods the pool is hung up on", "scheduler/responder.py",
          "        if self.allowances.overdrawn(account):", "        if False:",
          f"{LIMITS}::test_who_goes_on_all_the_same_is_hung_up_on"),
    Guard("connections of a user are limited", "scheduler/net/connections.py",
          "connection.surplus = count > self.by_user", "connection.surplus = False",
          "live/daemon/test_connections.py::test_the_connections_of_one_user_are_counted_and_nobody_else_notices"),
    Guard("connections end before descriptors do", "scheduler/net/connections.py",
          "if len(self._open) > self.most + ADMINS:", "if False:",
          "live/daemon/test_connections.py::test_more_connections_than_descriptors_do_not_end_the_daemon"),
    Guard("a frame has so many bytes and no more", "scheduler/net/transport.py",
          "        socket.maxmsgsize = MAX_FRAME", "        pass",
          f"{HOSTILE}::test_an_oversized_frame_costs_its_sender_the_connection"),
    Guard("names hold no control characters", "scheduler/requests/answering.py",
          "if isinstance(text, str) and has_control(text):", "if False:",
          f"{HOSTILE}::test_hostile_fields_are_refused"),
    Guard("marks of direction are control characters", "types/texts.py",
          "\\u061c\\u200e\\u200f\\u2028", "\\u2028",
          "unit/test_texts.py::test_every_character_that_changes_the_direction_of_writing_is_written_out"),
    # what others see
    Guard("others see of a job what is named", "scheduler/access/visibility.py",
          "        if self.whole(user, record.owner):", "        if True:",
          f"{VISIBLE}::test_of_what_is_anothers_no_field_is_seen_but_those_that_are_named"),
    Guard("others see of an event what is named", "scheduler/access/visibility.py",
          "        if self.whole(user, owner):", "        if True:",
          f"{VISIBLE}::test_progress_and_deaths_are_not_seen_at_all"),
    Guard("names may be hidden", "scheduler/access/visibility.py",
          'if self._hide_names and "name" in fields', 'if False and "name" in fields',
          f"{VISIBLE}::test_names_may_be_hidden"),
    # the files of another user's job
    Guard("what another user pickled is not unpickled", "jobfiles/job_folder.py",
          "        if not self.own:\n            raise NotAllowed(", "        if False:\n            raise NotAllowed(",
          f"{FILES}::test_what_another_user_pickled_is_never_unpickled"),
    Guard("the daemon says whose the files of a job are", "scheduler/requests/query_requests.py",
          "replace(info, uid=state.ids.get(info.owner, -1))", "info",
          f"{FILES}::test_what_another_user_pickled_is_never_unpickled"),
    Guard("a file of a job is its owner's", "jobfiles/job_folder.py",
          " or info.st_uid != self._uid:", ":",
          f"{FOLDER}::test_what_belongs_to_anybody_else_is_not_opened"),
    Guard("no link in a job's folder is followed", "jobfiles/job_folder.py",
          "os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_NONBLOCK",
          f"{FOLDER}::test_no_link_is_followed_wherever_it_leads"),
    Guard("nobody waits for a file of a job", "jobfiles/job_folder.py",
          "os.O_NONBLOCK | os.O_NOCTTY", "os.O_NOCTTY",
          f"{FOLDER}::test_nobody_waits_for_what_is_no_file"),
    Guard("what is no regular file is not read", "jobfiles/job_folder.py",
          "if not is_kind(info.st_mode) or", "if",
          f"{FOLDER}::test_nobody_waits_for_what_is_no_file"),
    Guard("of another user's file so much is read and no more", "jobfiles/job_folder.py",
          "            return file.read(MAX_READ)\n",
          "            file.seek(0)\n            return file.read(20 * MAX_READ)\n",
          f"{FOLDER}::test_what_is_read_has_a_limit"),
    Guard("nothing is written into another user's folder", "jobfiles/job_folder.py",
          "        self.check_own(f\"change its {'/'.join(names)}\")\n", "",
          f"{FOLDER}::test_nothing_is_written_for_another_user"),
    Guard("another user's control characters are written out", "jobfiles/job_folder.py",
          "return text if self.own else visible(text, lines=True)", "return text",
          f"{FILES}::test_escape_sequences_of_others_are_written_out"),
    Guard("what another user displays is no output of a cell", "widgets/relay.py",
          "        if not self._files.own:", "        if False:",
          f"{FOLDER}::test_what_another_user_displays_is_text_and_no_output_of_a_cell"),
    Guard("another user's markup is not drawn", "views/output.py",
          "        if self._folder.own:\n            return line\n", "        return line\n",
          f"{FOLDER}::test_what_another_user_displays_is_text_and_no_output_of_a_cell"),
    Guard("of another user's ranks so many are read", "views/output.py",
          "len(self.ranks) >= MAX_RANKS:", "False:",
          f"{FOLDER}::test_of_another_users_ranks_and_lines_so_much_is_read_and_no_more"),
    Guard("another user's calls are not opened by a server", "server_ext/function_handlers.py",
          '        JobFolder.of(info).check_own("see or cancel its calls; the job as a whole can be cancelled")\n', "",
          f"{FILES}::test_nothing_is_written_into_another_users_folder"),
    Guard("a folder that an unfinished job has is refused", "scheduler/requests/job_requests.py",
          "if (other := store.core.state.folders.get(normpath(spec.folder))) is not None:",
          "if (other := None) is not None:",
          f"{FILES}::test_a_folder_that_an_unfinished_job_has_is_refused"),
    Guard("the end of another job is not believed", "agent/attempt.py",
          "return folder.whose() in {None, (self.job, self.number)}", "return True",
          "live/agent/test_attempt.py::test_the_end_of_another_job_in_the_same_folder_is_not_taken"),
    # files and processes
    Guard("an agent that somebody may need stays", "agent/agent.py",
          "or not self._clients.acquire(attempts=1):", "or False:",
          "live/agent/test_agent.py::test_an_agent_stays_as_long_as_a_process_of_its_user_may_need_it"),
    Guard("an agent for which a job waits stays", "agent/agent.py",
          "needed = bool(self._attempts or expect(answer, Jobs).jobs)", "needed = False",
          "live/agent/test_agent.py::test_an_agent_stays_as_long_as_a_job_of_its_user_waits"),
    Guard("a table of keys costs no more than its bad line", "scheduler/access/key_authenticators.py",
          "len(fields) != 2 or len(fields[0]) != 40", "False",
          "unit/scheduler/test_auth.py::test_a_wrong_line_is_named"),
    # what administrators alone do
    Guard("others drain nothing", "scheduler/access/auth.py",
          "        if not self.is_admin(caller):\n            raise NotAllowed(\n"
          '                f"only an administrator ({self._admins()}) may drain slots',
          "        if False:\n            raise NotAllowed(\n"
          '                f"only an administrator ({self._admins()}) may drain slots',
          "live/daemon/test_administration.py::test_only_administrators_drain_and_everybody_sees_why"),
    Guard("a drained slot takes nothing new", "scheduler/core/state.py",
          "return not self.out and not self.drained", "return not self.out",
          "unit/scheduler/core/test_drains.py::test_a_job_gets_the_slots_beside_a_drained_one"),
    Guard("others register no keys", "scheduler/access/auth.py",
          "if isinstance(caller, Guest) or not self.is_admin(caller):", "if False:",
          f"{KEYS}::test_a_registered_key_has_its_users_name_and_rights_and_no_more"),
    # users of a Hub
    Guard("a key may what its token may", "scheduler/access/auth.py",
          'if isinstance(caller, Guest) and not self._may(caller, "submit"):', "if False:",
          f"{KEYS}::test_a_registered_key_has_its_users_name_and_rights_and_no_more"),
    Guard("nobody of a Hub is called as an administrator", "scheduler/access/auth.py",
          'if user in self.admins and "administer" not in rights:', "if False:",
          f"{KEYS}::test_users_services_and_administrators_of_one_name_are_kept_apart"),
    Guard("a registered key has a term", "scheduler/daemon.py",
          "found is not None and found.expires_at > self.store.now()", "found is not None",
          "unit/scheduler/test_auth.py::test_a_registered_key_is_known_no_longer_than_its_term"),
    Guard("a service of a user's name is somebody else", "scheduler/requests/key_requests.py",
          'return name if kind == "user" else SERVICE + name', "return name",
          f"{KEYS}::test_users_services_and_administrators_of_one_name_are_kept_apart"),
    Guard("a UNIX user of a Hub's user's name is somebody else", "scheduler/daemon.py",
          "return self.rights.ids.get(name, GUEST)", "return None",
          f"{KEYS}::test_a_unix_user_who_is_called_as_a_hubs_user_is_somebody_else"),
    Guard("who may not use the Hub's service is not served", "hub/visitors.py",
          "if not auth.check_scopes(auth.access_scopes, model):", "if False:",
          f"{HUB}::test_what_a_client_lacks_is_said_at_once"),
    Guard("asks of a Hub's user are limited", "hub/visitors.py",
          '        rates.ask(f"{found.kind}:{found.name}")\n', "",
          f"{HUB}::test_a_flood_of_one_user_is_refused_and_others_get_through"),
    # sessions, whose cells are never paused, and whose workers and driver listen between cells
    Guard("a user's cells wait or run in so many sessions", "scheduler/requests/job_requests.py",
          "            _check_number_of_sessions(peer, ask.spec.session, terms, store, rights)\n", "            pass\n",
          f"{LIMITS}::test_everybody_has_so_many_sessions_whose_cells_end_in_time"),
    Guard("a session's cell ends in time", "scheduler/access/auth.py",
          "            longest = longest or SESSION_S\n", "            pass\n",
          f"{LIMITS}::test_everybody_has_so_many_sessions_whose_cells_end_in_time"),
    Guard("nobody cancels others' jobs by the dozen", "scheduler/requests/job_requests.py",
          "        rights.change_job(context.peer.caller, found(state, job).owner, job)\n    for number",
          "        pass\n    for number",
          f"{LIMITS}::test_many_jobs_are_cancelled_by_one_ask_that_keeps_nobody_waiting"),
    Guard("what is never paused needs a right", "scheduler/access/auth.py",
          "spec.preemptible or bool(spec.session) or highest > 0", "True",
          f"{LIMITS}::test_everybody_has_so_many_sessions_whose_cells_end_in_time"),
    Guard("a session's parked worker is its user's", "worker/parking.py",
          "            check_same_user(connected)\n", "", f"{SOCKETS}::test_a_parked_worker_hangs_up_on_another_user"),
    Guard("a session's driver that stays is its user's", "driver/staying.py",
          "        check_same_user(connected)\n", "", f"{SOCKETS}::test_a_driver_that_stays_hangs_up_on_another_user"),
    # slots that root guards
    Guard("who has no lease gets into no group", "slot_agent/slot_agent.py",
          "            if not self._holds(peer, ask):\n                raise",
          "            if ask.slot not in self._leases:\n                raise", LEFT),
    Guard("a lease is its user's", "slot_agent/slot_agent.py",
          "lease[1:] == (ask.job, ask.attempt, peer.uid)", "lease[1:3] == (ask.job, ask.attempt)",
          LEFT),
    Guard("what is left of a lease is ended", "slot_agent/slot_agent.py",
          "[self._cgroups.end_others(kept.get(name), name) for name in self._cgroups.names()]", "[True]",
          LEFT),
    Guard("a slot's device is nobody else's", "slot_agent/cgroups.py",
          "            self._rules.deny(group, [device for other, device in devices.items() if other != name])\n", "",
          f"{SLOTS}::test_a_worker_opens_the_device_of_its_slot_and_no_other[1]"),
    Guard("a user has so many connections to the slot agent", "slot_agent/slot_agent.py",
          "self._asking[peer.uid] < MAX_BY_USER and self._asking", "self._asking",
          f"{SLOTS}::test_nobody_is_kept_waiting_by_garbage_and_silence[1]"),
    Guard("the slot agent's folder is root's", "slot_agent/slot_agent.py",
          "if info.st_uid != 0 or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):", "if False:",
          f"{SLOTS}::test_where_it_can_not_guard_it_says_so"),
    # parameter servers, which listen everywhere and ask nobody who is there
    Guard("a cluster is in a network of its own", "engines/tensorflow_ps/worker.py",
          "if paths := start.env.get(NETWORK):", "if paths := start.env.get(NETWORK) and None:",
          "live/engine/test_parameter_servers.py::test_nothing_of_a_cluster_is_reached_from_outside_of_it"),
    Guard("a shared pool has no cluster without such a network", "engines/tensorflow_ps/driver.py",
          "            if self.context.shared:\n", "            if False:\n",
          "live/engine/test_parameter_servers.py"
          "::test_a_pool_of_several_people_refuses_it_where_no_network_can_be_made"),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Remove one guard after the other; 1 when a test does not notice."""
    processes.adopt_orphans()
    chosen = [guard for guard in GUARDS if not words or any(word in f"{guard}" for word in words)]
    with tempfile.TemporaryDirectory(prefix="je-guards-") as folder:
        root = _copy(Path(folder))
        tests = sorted({guard.test for guard in chosen})
        said = _run(root, *tests, limit_s=LIMIT_S * len(tests))
        if said.code != 0 or "skipped" in said.last:
            print(f"{said.text}\nThe tests must pass as they are, and none be skipped, before a guard is removed.")
            return 1
        green = 0
        for guard in chosen:
            path = root / "jupyter_elastic" / guard.file
            whole = path.read_text()
            path.write_text(guard.removed(root))
            code = _run(root, guard.test).code
            path.write_text(whole)
            red = code in {1, None}
            green += not red
            print(f"{'red' if red else 'GREEN'}  {guard.what}  ({guard.file}; {guard.test})", flush=True)
    print(f"{len(chosen) - green} of {len(chosen)} tests turn red without their guard")
    return int(green > 0)


class Said(NamedTuple):
    """What pytest said."""

    code: int | None
    """None: it did not end in time."""
    text: str

    @property
    def last(self) -> str:
        """The line with the numbers."""
        return self.text.rstrip().rpartition("\n")[2]


def _copy(folder: Path) -> Path:
    """The tracked files of this tree, and new ones, where other users may read them."""
    folder.chmod(0o755)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _run(root: Path, *tests: str, limit_s: float = LIMIT_S) -> Said:
    """Run tests of a copy. It comes first on the path, before the tree that the environment is made for."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(f"tests/{test}" for test in tests),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return Said(None, "")
    finally:
        processes.end_children()  # what a test without its guard leaves behind
    return Said(done.returncode, done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
