"""The time for optimizing each recipe of a graph: what hardly counts in a step is not worth ten seconds.

The work of a recipe is estimated from its text before anything is measured. A product's multiply-adds count one each; any other point of a
step counts as many as a core computes while memory brings an element, some fifty. Recipes with less than a fiftieth of a graph's work get a
fifth of the budget: were the plan of one twice as slow as with all of it, a step would take some 2% longer, and it is mostly far closer.
"""

import math
import re

#: Multiply-adds in the time in which memory brings an element.
ELEMENT = 50

#: Recipes with a smaller share of a graph's work get this part of the budget.
SMALL, PART = 0.02, 5

_ACCESS = re.compile(r"(\w+)\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]")


def work(text):
    """The work of a recipe, in multiply-adds."""
    dims = dict(re.findall(r"(\w+): ([^,]+)", re.search(r"^dims: \{(.*)\}$", text, re.M)[1]))

    def size(name):
        # A number, one in quotes, another dim, or windows along one: `(d5-4)/2 + 1`.
        of = dims[name].strip('"')
        windows = re.fullmatch(r"\((\w+)([+-]\d+)\)/(\d+) \+ 1", of)
        if windows:
            return (size(windows[1]) + int(windows[2])) // int(windows[3]) + 1
        return int(of) if of.isdecimal() else size(of)

    def points(indices):
        return math.prod(size(name) for name in indices)

    total = 0
    for step in re.findall(r'^ +- "(.*)"$', text, re.M):
        # Where a kernel lies with a stride, few places of the image are under it.
        far = {name for _, name in re.findall(r"-([2-9]|\d\d+)\*(\w+)", step)}
        named = [re.findall(r"\w+", subscripts) for _, subscripts in _ACCESS.findall(step)]
        accesses = [{name for name in names if name in dims and name not in far} for names in named]
        total += ELEMENT * max(map(points, accesses), default=1)
        everywhere = set().union(*accesses)
        if re.search(r"\] \* \w+\[", step) and "(" not in step and everywhere != accesses[0]:
            total += points(everywhere)
    return total


def budgets(texts, whole):
    """The budget of each recipe of a graph that has these, equal ones several times; ``whole`` is the one of large recipes."""
    given = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", whole.strip())
    if given is None:
        return {text: whole for text in texts}
    all_work = sum(map(work, texts))
    small = f"{float(given[1]) / PART:g}{given[2]}"
    return {text: small if texts.count(text) * work(text) < SMALL * all_work else whole for text in set(texts)}
