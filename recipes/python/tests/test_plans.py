"""The choice among finalists of several plans that share a workspace: `python test_plans.py`. Needs NumPy alone."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from memlet.budgets import budgets, work  # noqa: E402
from memlet.plans import Options, _run, chosen  # noqa: E402

MB = 10**6
#: How often a step runs each plan, and milliseconds and workspace of its finalists.
LAYER = (12, [(10.0, 100 * MB)])
HEAD = (1, [(20.0, 334 * MB), (22.0, 100 * MB)])


class Choices(unittest.TestCase):
    def test_a_plan_that_is_a_small_part_of_the_step_gives_time_up_for_memory(self):
        # 2 of 140 ms are 1.4%.
        self.assertEqual(chosen([LAYER, HEAD], 0.02), [0, 1])
        self.assertEqual(chosen([LAYER, HEAD], 0.01), [0, 0])
        self.assertEqual(chosen([HEAD], 0.02), [0], "alone it is a tenth")
        self.assertEqual(chosen([LAYER, HEAD], 0.0), [0, 0])

    def test_memory_below_the_largest_workspace_is_worth_nothing(self):
        small = (1, [(1.0, 90 * MB), (1.001, 10 * MB)])
        large = (1, [(50.0, 100 * MB)])
        self.assertEqual(chosen([large, small], 0.5), [0, 0])

    def test_memory_is_given_up_where_one_plan_alone_gains_nothing(self):
        # Both must become smaller, or neither.
        one, other = (1, [(10.0, 300 * MB), (10.1, 50 * MB)]), (1, [(10.0, 290 * MB), (10.2, 60 * MB)])
        self.assertEqual(chosen([one, other], 0.02), [1, 1])
        self.assertEqual(chosen([one, other], 0.008), [0, 0], "290 MB are hardly less than 300, and 60 cost one and a half percent")
        self.assertEqual(chosen([one, other], 0.004), [0, 0])

    def test_every_plan_gets_its_fastest_below_the_bound(self):
        many = (1, [(5.0, 200 * MB), (5.1, 150 * MB), (5.2, 90 * MB), (9.0, 1 * MB)])
        self.assertEqual(chosen([LAYER, many], 0.02), [0, 2])
        self.assertEqual(chosen([many], 0.03), [1])

    def test_the_choice_is_the_same_in_any_order(self):
        plans = [LAYER, HEAD, (1, [(3.0, 120 * MB), (3.2, 80 * MB)])]
        for slack in (0.0, 0.001, 0.01, 0.02, 0.1):
            forward, backward = chosen(plans, slack), chosen(plans[::-1], slack)
            self.assertEqual(forward, backward[::-1], slack)
        self.assertEqual(chosen([], 0.02), [])


#: A product of 4 x 5 x 6, its bias, and the rows that numbers name.
SMALL = """model: m
dims: {d0: 4, d1: 5, d2: 6}
steps:
  - "y0[d0,d1] = x0[d0,d2] * x1[d2,d1]"
  - "y1[d0,d1] = y0[d0,d1] + x2[d1]"
  - "y2[d0,d1] = x3[x4[d0],d1]"
outputs: [y1, y2]
"""


class Binary(unittest.TestCase):
    def test_a_missing_binary_is_said_with_what_to_do(self):
        before, Options.binary = Options.binary, "/nowhere/memlet"
        try:
            with self.assertRaisesRegex(RuntimeError, "`/nowhere/memlet` cannot be run .*put `memlet` on the PATH"):
                _run("variants")
        finally:
            Options.binary = before


class Budgets(unittest.TestCase):
    def test_products_count_by_their_multiply_adds_and_all_else_by_elements(self):
        # The largest tensor of the product has 30 elements, those of the others 20.
        self.assertEqual(work(SMALL), 4 * 5 * 6 + 50 * (30 + 20 + 20))
        scatter = SMALL.replace("x3[x4[d0],d1]", "scatter(x3[d2,d1], x4[d2], over: [d2], into: d0)")
        self.assertEqual(work(scatter), 4 * 5 * 6 + 50 * (30 + 20 + 30))

    def test_a_second_dim_of_a_size_counts_as_the_first(self):
        scores = SMALL.replace("d2: 6", "d2: 6, d0_1: d0").replace("y0[d0,d1] = x0[d0,d2] * x1[d2,d1]", "y0[d0,d0_1] = x0[d0,d2] * x1[d0_1,d2]")
        self.assertEqual(work(scores), 4 * 4 * 6 + 50 * (24 + 20 + 20))

    def test_windows_count_by_their_places_and_taps(self):
        text = """dims: {d0: 8, d1: "3", d2: (d0-1)/2 + 1, d3: d2, d4: 5}\nsteps:\n  - "y0[d3] = x0[d4,d1] * x1[d4,2*d3+d1-1 else 0]"\n"""
        self.assertEqual(work(text), 5 * 3 * 4 + 50 * 5 * 3 * 4)
        # Of the gradient by the image each place reads a tap or two, and not all places of the result.
        gradient = text.replace("y0[d3] = x0[d4,d1] * x1[d4,2*d3+d1-1 else 0]", "y0[d0] = x0[d4,d0+1-2*d3 else 0] * x1[d4,d3]")
        self.assertEqual(work(gradient), 8 * 5 + 50 * 8 * 5)

    def test_a_recipe_of_which_a_graph_has_little_gets_a_fifth(self):
        large = SMALL.replace("d0: 4", "d0: 4000")
        self.assertEqual(budgets([large, SMALL], "10s"), {large: "10s", SMALL: "2s"})
        self.assertEqual(budgets([large] + 50 * [SMALL], "1m"), {large: "1m", SMALL: "1m"}, "fifty layers are more than a little")
        self.assertEqual(budgets([SMALL], "0.5s"), {SMALL: "0.5s"})
        self.assertEqual(budgets([], "10s"), {})
        self.assertEqual(budgets([large, SMALL], "soon"), {large: "soon", SMALL: "soon"}, "the command says what is wrong")


if __name__ == "__main__":
    unittest.main()
