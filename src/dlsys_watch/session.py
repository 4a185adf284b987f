"""One watched run: from the moment torch is there until the end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import uuid
from importlib.abc import Loader
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from dlsys_watch.frames import hidden
from dlsys_watch.report import Report

if TYPE_CHECKING:
    from dlsys_watch.attach import Attachment
    from dlsys_watch.watch import Watch


class Session:
    """The settings of a run and its report; the watch begins when torch is imported."""

    running: ClassVar[list[Session]] = []

    def __init__(self, settings, notes: Path | None = None):
        self.notes = notes or Path(tempfile.gettempdir(), f"dlsys_watch_{uuid.uuid4().hex}")
        self.report = Report(settings, self.notes)
        self.settings = settings
        self.watch: Watch | None = None
        self.attachment: Attachment | None = None   # none if this torch cannot be watched
        self.owner = os.getpid()
        self.undo: list = []     # what else was changed for this run
        self.report.write_files()

    def attach(self) -> None:
        """Begin to watch: torch is there, or is imported now."""
        from dlsys_watch.attach import Attachment
        from dlsys_watch.watch import Watch

        self.watch = Watch(self.settings, self.report)
        self.watch.enough = self.end
        self.attachment = Attachment(self.watch)
        self.running.append(self)

    def attach_with_torch(self) -> None:
        """Begin to watch when the program imports torch, and not before.

        A program may set variables that torch reads as it is imported.
        """
        if "torch" in sys.modules:
            self.attach()
        else:
            sys.meta_path.insert(0, WhenTorchComes(self))

    def end(self) -> None:
        """Stop, leave torch as it was, and take in what other processes found."""
        if self.watch is not None and self.watch.on:
            self.watch.end()
        elif self.watch is not None:   # it let go after the steps that were asked for
            self.report.gather()
        if self.attachment is not None:
            self.attachment.off()
        if self in self.running:
            self.running.remove(self)
        while self.undo:
            self.undo.pop()()
        if os.getpid() == self.owner:
            shutil.rmtree(self.notes, ignore_errors=True)


class WhenTorchComes:
    """A finder of modules that knows torch, and begins the watch after its import."""

    def __init__(self, session):
        self.session = session

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Loader, ThenAttach(spec.loader, self.session))
        return spec


class ThenAttach:
    """A loader that delegates to the real one, and then begins the watch."""

    def __init__(self, loader, session):
        self.loader, self.session = loader, session

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    @hidden  # type: ignore[arg-type]
    def exec_module(self, module) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            self.session.attach()
        except Exception as error:
            self.session.report.print(f"dlsys watch: this torch {module.__version__} cannot be "
                                      f"watched ({type(error).__name__}: {error}). The program "
                                      "runs without.")
