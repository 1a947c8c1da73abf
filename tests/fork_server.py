"""A process with everything imported that forks a child for each command: a verb of the real command line starts in
milliseconds, and can be killed, starved of memory or of disk, without harm to anybody else.

    with ForkServer() as server:
        job = server.start("train", data, "--epsilon", 3, home=home)
        code, out, err = server.wait(job)

A child can be asked to kill itself (SIGKILL) just before its n-th change to the file system below a folder (`die_at`):
all states that a kill can leave on disk, but for half-written buffers, lie between two such changes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import platform
import resource
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

MODULES = (
    "dpvision.audit.geometry",
    "dpvision.cli",
    "dpvision.cli.plan",
    "dpvision.cli.screen",
    "dpvision.public.diffusion.guidance",
    "dpvision.public.quality.evaluation",
    "dpvision.released.model",
    "dpvision.public.dictionary",
    "dpvision.public.contrastive",
    "dpvision.public.warmup",
    "dpvision.public.random",
    "dpvision.private.statistics.release",
    "dpvision.audit.hierarchical",
    "dpvision.private.features.public_map",
    "dpvision.released.report",
    "dpvision.private.training.gradient_study",
    "dpvision.public.prompts",
    "dpvision.private.training.train",
    "matplotlib.font_manager",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "rich.progress",
)
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "200"}
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link", "os.chmod"}
IN_THEIR_PLACE = CHANGES - {"os.truncate", "os.chmod"}  # these change the name itself, and not what a link points to
RUNNING = {
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn"),
    *("pickle.find_class", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname"),
}
ESCAPED = 71
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Job:
    """A child that was started, and where its output goes."""

    pid: int
    place: Path


class ForkServer:
    """The side of the tests."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="dpvision-forks-")
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            cwd=Path(__file__).parents[1],
            env={k: v for k, v in os.environ.items() if not k.startswith("DPVISION_")}
            | ALONE
            | {"MPLCONFIGDIR": self._scratch.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()
        self._scratch.cleanup()

    def start(
        self,
        *words: str | Path | float,
        home: Path,
        key: str | None = None,
        cwd: Path | None = None,
        call: str = "tests.fork_server:command_line",
        arena: Path | None = None,
        die_at: int | None = None,
        die_by: int = signal.SIGKILL,
        memory: int | None = None,
        file_size: int | None = None,
        seconds: int | None = None,
        guard: bool = False,
        mount: tuple[Path, str] | None = None,
        **more: str,
    ) -> Job:
        """A child that runs `call` with these words: by default the command line.

        `arena` is the folder whose changes are counted, for `die_at`, where the signal `die_by` is sent; `memory` and `file_size` are limits in bytes;
        so is `seconds`, of the processor; with `guard` a child that changes anything outside of the arena, starts a
        process, calls another machine or reads a pickle ends with ESCAPED. `mount` is a folder, and what is mounted there for this child alone: "ro" itself, read-only, or a tmpfs "64k".
        `more` are further variables of its environment. It has the umask of this process.
        """
        self._count += 1
        place = Path(self._scratch.name) / str(self._count)
        place.mkdir()
        environment = more | {"DPVISION_HOME": str(home)} | ({"DPVISION_TEST_KEY": key} if key else {})
        if guard:
            environment["DPVISION_OFFLINE"] = "1"  # a download is not an error, and its library starts processes
        request = {
            "words": [str(word) for word in words],
            "environment": environment,
            "cwd": str(cwd or place),
            "place": str(place),
            "call": call,
            "arena": None if arena is None else str(arena),
            "die_at": die_at,
            "die_by": int(die_by),
            "memory": memory,
            "file_size": file_size,
            "seconds": seconds,
            "guard": guard,
            "umask": _umask(),
            "mount": None if mount is None else [str(mount[0]), mount[1]],
        }
        return Job(self._ask({"start": request}), place)

    def ended(self, job: Job, *, within: float) -> int | None:
        """The exit code (below 0: the signal that ended it), or None if it still runs after this many seconds."""
        return self._ask({"wait": job.pid, "seconds": within})

    def wait(self, job: Job, *, seconds: float = 300.0) -> tuple[int, str, str]:
        """(exit code, output, errors). A child that runs for too long is killed, which is an error."""
        code = self.ended(job, within=seconds)
        if code is None:
            os.kill(job.pid, signal.SIGKILL)
            self.ended(job, within=60)
            raise TimeoutError(f"still running after {seconds:g} s")
        return code, *read_output(job)

    def run(self, *words: str | Path | float, home: Path, **options: Any) -> tuple[int, str, str]:
        return self.wait(self.start(*words, home=home, **options))

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Forked:
    """A child of the shared server that is used like a subprocess.Popen."""

    def __init__(self, *words: str | Path, home: Path, key: str | None, **more: str) -> None:
        self._job = shared().start(*words, home=home, key=key, call="tests.fork_server:module", cwd=Path.cwd(), **more)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._job.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("a fork", timeout)
        return read_output(self._job)

    def _ended(self, within: float) -> int | None:
        if self.returncode is None:
            self.returncode = shared().ended(self._job, within=within)
        return self.returncode


@cache
def shared() -> ForkServer:
    """The one server of this process of tests: it takes seconds to start, and ends with the process."""
    server = ForkServer()
    atexit.register(server.__exit__, None, None, None)
    return server


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def read_output(job: Job) -> tuple[str, str]:
    """(output, errors) so far: nothing of a child that was killed before it could open its files."""
    paths = (job.place / name for name in ("out", "err"))
    out, err = (path.read_text("utf-8", errors="replace") if path.exists() else "" for path in paths)
    return out, err


def changes(job: Job) -> int:
    """How many changes to the file system a child made that came to its end."""
    return int((job.place / "changes").read_text())


def opened(job: Job) -> set[str]:
    """The files that a child opened for reading which came to its end."""
    return set(json.loads((job.place / "opened").read_text()))


def command_line(*words: str) -> None:
    from dpvision.cli import main

    sys.argv = ["dpvision", *words]
    main()


def module(name: str, *words: str) -> None:
    """What `python -m name words` does."""
    sys.argv = [name, *words]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def serve() -> None:
    """The side of the children: one request a line, one answer a line."""
    answers = os.dup(1)
    os.dup2(2, 1)
    for name in MODULES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    platform.processor()  # asks another program, once
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer: int | None = os.fork()
            if answer == 0:
                os.close(answers)
                _child(request["start"])
        else:
            answer = _await(request["wait"], request["seconds"])
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _await(pid: int, seconds: float) -> int | None:
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended else None


def _child(request: dict[str, Any]) -> None:
    code = 70
    try:
        place = Path(request["place"])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.pop("DPVISION_TEST_KEY", None)
        os.environ.update(request["environment"])
        tempfile.tempdir = str(place)  # what is kept for the time of a reading
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        _limit(request)
        count, opened = _watch(request)
        module, name = request["call"].split(":")
        code = _exit_code(getattr(importlib.import_module(module), name), request["words"])
        if request["arena"] is not None:
            (place / "changes").write_text(str(count[0]))
            (place / "opened").write_text(json.dumps(sorted(opened)))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(call: Any, words: list[str]) -> int:
    """What python itself would end with."""
    try:
        call(*words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _limit(request: dict[str, Any]) -> None:
    if request["mount"] is not None:
        _mount(*request["mount"])
    if request["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (_size() + request["memory"],) * 2)
    if request["file_size"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
    if request["seconds"] is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + request["seconds"] + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))


def _size() -> int:
    """Of this process's addresses, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _mount(folder: str, what: str) -> None:
    """In a namespace of mounts that this child has for itself."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    slave, bind, remount, readonly, recursive = 1 << 19, 1 << 12, 1 << 5, 1, 1 << 14

    def call(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{name} does not work here")

    call("unshare", 0x00020000)
    call("mount", b"none", b"/", None, slave | recursive, None)
    place = os.fsencode(folder)
    if what == "ro":
        call("mount", place, place, None, bind, None)
        call("mount", place, place, None, bind | remount | readonly, None)
    else:
        call("mount", b"none", place, b"tmpfs", 0, f"size={what}".encode())


def _watch(request: dict[str, Any]) -> tuple[list[int], set[str]]:
    """Count the changes below a folder, each before it is made; send this process a signal before one of them.

    Also the names of files that were opened for reading.
    """
    count, opened, arena, guard = [0], set[str](), request["arena"], request["guard"]
    if arena is None:
        return count, opened
    # An audit's own ledgers, which it throws away, are in memory (audit/canaries.py).
    allowed = (*(f"{folder}{os.sep}" for folder in (arena, request["place"])), "/dev/shm/dpvision-audit-")

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        if guard and event in RUNNING:
            _escaped(event, arguments)
        if event != "open" and event not in CHANGES:
            return
        if event == "open" and isinstance(arguments[2], int):
            if not isinstance(arguments[0], int) and arguments[2] & os.O_ACCMODE != os.O_WRONLY:
                opened.add(os.path.abspath(os.fsdecode(arguments[0])))
            if not arguments[2] & WRITING:
                return
        paths = _changed(event, arguments)
        inside = [isinstance(path, int) or path.startswith(allowed) for path in paths]
        if guard and not all(ok or path in (arena, os.devnull) for ok, path in zip(inside, paths, strict=True)):
            _escaped(event, arguments)
        if any(inside):
            count[0] += 1
            if count[0] == request["die_at"]:
                os.kill(os.getpid(), request["die_by"])

    sys.addaudithook(before)
    return count, opened


def _changed(event: str, arguments: tuple[Any, ...]) -> list[Any]:
    """The files that an event changes, by their true names; open files by their numbers."""
    own = event in IN_THEIR_PLACE or (event == "open" and bool(arguments[2] & os.O_NOFOLLOW))  # a link is refused
    both = {"os.rename": arguments[:2], "os.link": arguments[:2], "os.symlink": arguments[1:2]}
    results = []
    for path in both.get(event, arguments[:1]):
        if not isinstance(path, int):
            folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
            whole = os.path.join(os.path.realpath(folder), name)
            path = whole if own else os.path.realpath(whole)
        results.append(path)
    return results


def _escaped(event: str, arguments: tuple[Any, ...]) -> None:
    os.write(2, f"ESCAPED: {event} {arguments!r}\n".encode(errors="backslashreplace"))
    os._exit(ESCAPED)


if __name__ == "__main__":
    serve()
