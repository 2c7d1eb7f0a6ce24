"""A real Ray on this machine, and workers that wait to be killed."""

import dataclasses
import logging
import os
import secrets
import signal
from contextlib import contextmanager
from unittest import mock

import ray

from anchorhold_lab.experiments import RunFinished, RunProgress
from anchorhold_lab.experiments.on_ray import ray_executor
from anchorhold_lab.experiments.on_ray.connection import start_ray
from anchorhold_lab.experiments.on_ray.mailbox import empty_mailbox
from anchorhold_lab.experiments.on_ray.parcel import Parcel
from anchorhold_lab.experiments.on_ray.worker import run_group
from tests.limits import patient_ray


@contextmanager
def local_ray():
    """Two cores, for as long as the tests of one process take."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.update(patient_ray())
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())  # else Ray would write one into the home folder
    before = signal.getsignal(signal.SIGTERM)
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    start_ray("local", num_cpus=2, num_gpus=0, **options)
    signal.signal(signal.SIGTERM, before)
    yield
    ray.shutdown()


def post_until_stopped(mailbox, moment=3):
    """Return what posts messages, and at some progress waits until there is a request to stop."""
    seen = 0

    def post(message):
        nonlocal seen
        stop = ray.get(mailbox.post.remote(message))
        seen += isinstance(message.event, RunProgress)
        while seen == moment and not stop:
            stop = ray.get(mailbox.post.remote(dataclasses.replace(message, parcel=Parcel(), event=None)))
        return stop

    return post


class OtherWorkers:
    """While it is entered, Ray's workers do what ``worker()`` returns."""

    def worker(self):
        raise NotImplementedError

    def __enter__(self):
        self._patch = mock.patch.object(ray_executor, "_run_and_post", self.worker())
        self._patch.start()
        return self

    def __exit__(self, *_):
        self._patch.stop()


class Killer(OtherWorkers):
    """Kills the worker that makes a run, at some progress of each of its first attempts."""

    def __init__(self, folder, spec, *, times=1, progress=4):
        self.times, self.progress, self.run = times, progress, spec.id
        self.killed = []
        self.events = []
        self._pipe = folder / "pid"
        os.mkfifo(self._pipe)
        self._seen = 0

    def worker(self):
        """Return what workers do instead: the same, but at that moment they tell their process's id, and wait."""
        pipe, run, times, moment = self._pipe, self.run, self.times, self.progress

        def run_until_killed(attempt, specs, parcel, work, mailbox):
            seen = 0

            def post(message):
                nonlocal seen
                stop = ray.get(mailbox.post.remote(message))
                seen += isinstance(message.event, RunProgress)
                if seen == moment and attempt_of_run < times:
                    pipe.write_text(str(os.getpid()))
                    signal.pause()
                return stop

            # Attempts are numbered over all runs; those of this one are counted in a file.
            attempt_of_run = times
            if any(spec.id == run for spec in specs):
                with pipe.with_name("attempts").open("a") as attempts:
                    attempt_of_run = attempts.tell()
                    attempts.write("+")
            return run_group(attempt, specs, parcel, work, post)

        return run_until_killed

    def on_event(self, event):
        self.events.append(event)
        if isinstance(event, RunProgress) and any(spec.id == self.run for spec in event.specs):
            self._seen += 1
            if len(self.killed) < self.times and self._seen == self.progress:
                self._seen = 0
                self.killed.append(int(self._pipe.read_text()))
                os.kill(self.killed[-1], signal.SIGKILL)


def kill_mailbox():
    """Kill the process of this connection's mailbox."""
    os.kill(ray.get(empty_mailbox().__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


class MailboxKiller(OtherWorkers):
    """Kills the mailbox when one run has finished and another, whose worker waits, is at its fourth progress."""

    def __init__(self, folder, finishing, waiting):
        self.events = []
        self._folder, self._finishing, self._waiting = folder, finishing, waiting
        self._killed = False

    def worker(self):
        """Return what workers do instead: the same, but the first of the waiting run is at no end of its messages."""
        begun, waiting, run_and_post = self._folder / "begun", self._waiting.id, ray_executor._run_and_post

        class Patient:
            def __init__(self, mailbox):
                self.post, self._post, self._seen = self, mailbox.post, 0

            def remote(self, message):
                sent = self._post.remote(message)
                self._seen += isinstance(message.event, RunProgress)
                while self._seen == 4:
                    ray.get(self._post.remote(dataclasses.replace(message, parcel=Parcel(), event=None)))
                return sent

        def run_until_it_is_dead(attempt, specs, parcel, work, mailbox):
            first = specs[0].id == waiting and not begun.exists()
            if first:
                begun.touch()
            return run_and_post(attempt, specs, parcel, work, Patient(mailbox) if first else mailbox)

        return run_until_it_is_dead

    def on_event(self, event):
        self.events.append(event)
        finished = any(isinstance(e, RunFinished) and e.result.spec == self._finishing for e in self.events)
        progress = sum(isinstance(e, RunProgress) and e.specs[0] == self._waiting for e in self.events)
        if finished and progress == 4 and not self._killed:
            self._killed = True
            kill_mailbox()
