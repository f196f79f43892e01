"""The choice among finalists of several plans that share a workspace: `python test_plans.py`. Needs NumPy alone."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from memlet.plans import chosen  # noqa: E402

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


if __name__ == "__main__":
    unittest.main()
