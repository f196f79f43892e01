"""The plans of the recipes of this process, and the choice among their finalists.

A recipe is optimized once, and kept in a cache with its *finalists*: plans that need less memory than every faster one. What is kept of a
recipe depends on no other. All plans share one workspace, as large as the largest of them needs, so less memory in a small plan is worth
nothing, and in the largest one all that it saves. The choice is made of all plans together, again whenever a recipe is added: of the sets
of finalists, one for each recipe, that take at most a share longer than the fastest set, the one with the smallest workspace.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
import threading
import weakref
from pathlib import Path

from .library import MemletError, Workspace, load


def _installed():
    """The binary that a wheel has put beside this interpreter, which need not be in PATH."""
    binary = os.path.join(sysconfig.get_path("scripts"), "memlet")
    return binary if os.access(binary, os.X_OK) else None


class Options:
    """How partitions are optimized. Environment: MEMLET is the binary, MEMLET_BUDGET the time for each plan of
    which a graph has more than a little (`budgets.py`)."""

    binary = os.environ.get("MEMLET") or _installed() or "memlet"
    budget = os.environ.get("MEMLET_BUDGET", "10s")
    threads = None
    #: Operators that a partition must have to be worth a call.
    least = 2
    #: Whose random numbers dropout has: "memlet", which draws masks within plans, or "pytorch", whose dropouts stay with it.
    dropout = os.environ.get("MEMLET_DROPOUT", "memlet")
    #: How much longer all plans together may take, as a share, for a smaller workspace.
    memory_slack = float(os.environ.get("MEMLET_MEMORY_SLACK", "0.02"))

    @staticmethod
    def cache():
        caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
        return Path(os.environ.get("MEMLET_TORCH_CACHE") or os.path.join(caches, "memlet", "torch"))


#: How much longer than its fastest plan a finalist of a recipe may take: a plan of a tenth of all time that is 20% slower costs 2%.
SLOWER = "25%"

#: The share of the workspace that must be saved for a set of plans to be taken that is slower.
WORTH = 0.1

#: The workspace of all plans: partitions run one after another.
WORKSPACE = Workspace()


def chosen(plans, slack):
    """Of each plan the number of the finalist to take, where all of them share one workspace.

    ``plans`` holds for each how often a step runs it, and the milliseconds and workspace bytes of its finalists. Below a bound of the
    workspace every plan takes its fastest finalist. The bound is the smallest under which all plans together take at most ``slack`` (a
    share) longer than without a bound; if that saves less than a tenth of the workspace, there is no bound."""
    def under(bound):
        fitting = [[n for n, (_, size) in enumerate(finalists) if size <= bound] for _, finalists in plans]
        return [min(numbers, key=lambda n, f=f: f[n][0]) for numbers, (_, f) in zip(fitting, plans)] if all(fitting) else None

    def total(numbers):
        return sum(times * finalists[n][0] for n, (times, finalists) in zip(numbers, plans))

    bounds = sorted({size for _, finalists in plans for _, size in finalists})
    sets = [numbers for numbers in map(under, bounds) if numbers is not None]
    if not sets:
        return []

    def workspace(numbers):
        return max(finalists[n][1] for n, (_, finalists) in zip(numbers, plans))

    fastest = sets[-1]
    smallest = next(numbers for numbers in sets if total(numbers) <= (1 + slack) * total(fastest))
    return smallest if workspace(smallest) <= (1 - WORTH) * workspace(fastest) else fastest


def _run(*words):
    try:
        done = subprocess.run([Options.binary, *words], capture_output=True, text=True, check=False)
    except OSError as error:
        # No error of a partition, which PyTorch would compute without a word: nothing can be compiled.
        where = "put `memlet` on the PATH, or name it: the variable MEMLET, or memlet.torch_backend.options(binary=…)"
        raise RuntimeError(f"the program `{Options.binary}` cannot be run ({error.strerror}): {where}") from error
    if done.returncode:
        # Below a message about a recipe stand the lines of the recipe.
        said = [line for line in done.stderr.splitlines() if line.strip() and not re.match(r"\s|\d+ \|", line)]
        raise MemletError(f"{' '.join([Options.binary, *words])}: {said[-1] if said else done.returncode}")


@contextlib.contextmanager
def _alone(folder):
    """Keeps a cache for this process: several that measured at once, as those of torchrun, would disturb each other's times, and write into
    one folder. The others wait, and find the library."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Plan:
    """The plan of a recipe: one of its finalists, whose library runs."""

    def __init__(self, text, threads, budget):
        key = hashlib.sha256(f"{text}\n{threads} {budget} {SLOWER}".encode()).hexdigest()[:20]
        self.name, self.threads, self.budget = f"p{key}", threads, budget
        self._folder = Options.cache() / key
        found = self._folder / "plan" / "finalists.json"
        if not found.exists():
            with _alone(Options.cache()):
                if not found.exists():
                    self._optimize(text)
        finalists = json.loads(found.read_text(encoding="utf-8"))["finalists"]
        self.finalists = [finalist for finalist in finalists if "workspace_bytes" in finalist]
        if not self.finalists:
            raise MemletError(f"{found}: there is no C of any of these plans; optimize again with a longer budget")
        if any(finalist["is_kept"] for finalist in self.finalists):
            # Its workspace is its own, and shares no memory with others.
            self.finalists = self.finalists[:1]
        #: The finalist that runs, and its library.
        self.finalist = self.step = None
        #: The partitions that run it, each once in a step.
        self.users = weakref.WeakSet()

    def _optimize(self, text):
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "recipe.yaml").write_text(text, encoding="utf-8")
        _run("optimize", str(self._folder / "recipe.yaml"), "--budget", self.budget, "--timing", "1s", "--threads", str(self.threads),
             "--finalists", SLOWER, "--out", str(self._folder / "plan"))  # fmt: skip

    @property
    def costs(self):
        """The milliseconds and shared bytes of each finalist."""
        return [(f["step_ms"], 0 if f["is_kept"] else f["workspace_bytes"]) for f in self.finalists]

    def take(self, finalist):
        """Runs another finalist from now on. Plans keep nothing between calls, and all of a recipe have the same results and masks."""
        if finalist is self.finalist:
            return
        file = Path(finalist["file"])
        library = self._folder / f"library-{file.stem}"
        if not (library / "library.json").exists():
            with _alone(Options.cache()):
                if not (library / "library.json").exists():
                    # A library is there whole or not at all, for processes that look for it now and for those that come after a kill.
                    part = self._folder / "part"
                    shutil.rmtree(part, ignore_errors=True)
                    _run("build", str(self._folder / "plan" / file), "--out", str(part), "--name", self.name, "--threads", str(self.threads))
                    shutil.rmtree(library, ignore_errors=True)
                    part.rename(library)
        self.step = load(library, threads=self.threads, workspace=WORKSPACE)
        self.finalist = finalist


#: The plans of this process by their recipe and threads: equal partitions share one.
_PLANS = {}
_CHOOSING = threading.RLock()


def plan(text, threads, budget):
    """The plan of a recipe, which is optimized unless the cache has it. It runs once it is chosen: see ``choose``."""
    key = (str(Options.cache()), text, threads, budget)
    with _CHOOSING:
        if key not in _PLANS:
            _PLANS[key] = Plan(text, threads, budget)
        return _PLANS[key]


def choose():
    """Chooses a finalist for each plan that some partition runs. A finalist whose library cannot be built is left out; a plan without one
    has no ``step``. Returns why, by the plan's name."""
    faults = {}
    with _CHOOSING:
        while True:
            used = [p for p in _PLANS.values() if p.users and p.finalists]
            numbers = chosen([(len(p.users), p.costs) for p in used], Options.memory_slack)
            failed = False
            for p, number in zip(used, numbers):
                finalist = p.finalists[number]
                try:
                    p.take(finalist)
                except (MemletError, OSError) as error:
                    faults[p.name], failed = str(error), True
                    p.finalists = [other for other in p.finalists if other is not finalist]
            if not failed:
                break
        for p in _PLANS.values():
            if not p.users:
                p.finalist = p.step = None
        WORKSPACE.fit()
    return faults


def workspace_bytes():
    """The bytes of the workspaces of all plans in use."""
    steps = [p.step for p in _PLANS.values() if p.step is not None]
    return sum(step.workspace_bytes for step in steps if step.workspace is None) + WORKSPACE.bytes


def table():
    """The chosen finalists as rows: plan, how often a step runs it, the finalist, its milliseconds and those of the fastest, and the
    megabytes of its workspace and of the fastest's."""
    rows = [("plan", "times", "finalist", "ms", "fastest ms", "workspace MB", "fastest's MB")]
    for p in (p for p in _PLANS.values() if p.finalist is not None):
        own, fastest = p.finalist, p.finalists[0]
        sizes = [f"{f['workspace_bytes'] / 1e6:.1f}" for f in (own, fastest)]
        rows.append((p.name, str(len(p.users)), own["plan"], f"{own['step_ms']:.3g}", f"{fastest['step_ms']:.3g}", *sizes))
    return rows
