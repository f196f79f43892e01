//! Covers against every cover there is, on random graphs; and a proof that was tampered with.

use layouts::packing::branch::BranchNode;
use layouts::packing::cover::{CoverKernel, CoverPlan, CoverProblem, CoverStep, cover};
use layouts::packing::cover_verify::verify_cover;
use layouts::packing::{Dag, PackingLimits};

/// Numbers that look random and are the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % most
    }
}

/// A graph of at most 6 operators with at most 6 kernels, of which some leave less than others need.
fn random(seed: u64) -> CoverProblem {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let operators = 2 + numbers.below(5) as u32;
    let mut edges = Vec::new();
    for to in 1..operators {
        for from in 0..to {
            if numbers.below(10) < 4 {
                edges.push((from, to));
            }
        }
    }
    let dag = Dag::in_order(operators as usize, edges).unwrap();
    let leaves = (0..operators).map(|v| dag.after(v).is_empty() || numbers.below(6) == 0).collect();
    let kernels = (0..1 + numbers.below(6))
        .map(|_| {
            let mut members: Vec<u32> = (0..2 + numbers.below(3)).map(|_| numbers.below(u64::from(operators)) as u32).collect();
            members.sort_unstable();
            members.dedup();
            let mut writes: Vec<u32> = members.iter().copied().filter(|_| numbers.below(3) > 0).collect();
            if writes.is_empty() {
                writes.push(*members.last().unwrap());
            }
            CoverKernel { members, writes, cost: 1 + numbers.below(400) as i64 }
        })
        .collect();
    CoverProblem { alone: (0..operators).map(|_| 1 + numbers.below(300) as i64).collect(), leaves, kernels, dag }
}

/// The least cost of all choices of operators alone and kernels that run to the end in some order.
fn brute(problem: &CoverProblem) -> i64 {
    let operators = problem.dag.operators();
    let mut best = i64::MAX;
    for choice in 0u32..1 << (operators + problem.kernels.len()) {
        let chosen = |n: usize| choice >> n & 1 == 1;
        // What each step reads, what it leaves, and its cost.
        let mut steps: Vec<(u32, u32)> = Vec::new();
        let mut cost = 0;
        let reads = |members: u32| {
            let edges = problem.dag.edges().iter().filter(|(from, to)| members >> to & 1 == 1 && members >> from & 1 == 0);
            edges.fold(0, |all, (from, _)| all | 1 << from)
        };
        for operator in (0..operators).filter(|v| chosen(*v)) {
            steps.push((reads(1 << operator), 1 << operator));
            cost += problem.alone[operator];
        }
        for (_, kernel) in problem.kernels.iter().enumerate().filter(|(n, _)| chosen(operators + n)) {
            let mask = |of: &[u32]| of.iter().fold(0, |all, m| all | 1 << m);
            steps.push((reads(mask(&kernel.members)), mask(&kernel.writes)));
            cost += kernel.cost;
        }
        if cost >= best {
            continue;
        }
        let mut memory = 0u32;
        while let Some(at) = steps.iter().position(|(reads, _)| reads & !memory == 0) {
            memory |= steps.swap_remove(at).1;
        }
        let all = problem.leaves.iter().enumerate().all(|(v, leaves)| !leaves || memory >> v & 1 == 1);
        if steps.is_empty() && all {
            best = cost;
        }
    }
    best
}

#[test]
fn covers_equal_brute_force_and_are_proven() {
    let (mut twice, mut cuts) = (0, 0);
    for seed in 1..4000 {
        let problem = random(seed);
        let plan = cover(&problem, &[], PackingLimits::default());
        verify_cover(&problem, &plan).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!((plan.cost, plan.is_proven()), (brute(&problem), true), "seed {seed}: {problem:?} {plan:?}");
        let computed = |v: u32| {
            let by = |step: &&CoverStep| match step {
                CoverStep::Alone(operator) => *operator == v,
                CoverStep::Kernel(kernel) => problem.kernels[*kernel as usize].members.contains(&v),
            };
            plan.steps.iter().filter(by).count()
        };
        twice += usize::from((0..problem.dag.operators() as u32).any(|v| computed(v) > 1));
        cuts += usize::from(!plan.proof.cuts.is_empty());
    }
    assert!(twice > 100 && cuts > 10, "{twice} plans compute something twice, {cuts} needed cuts");
}

/// A cheap operator with two readers that other kernels keep apart: to compute it twice saves its launch and its result.
fn exponential_twice() -> (CoverProblem, CoverPlan) {
    let dag = Dag::in_order(3, [(0, 1), (0, 2)]).unwrap();
    let kernel = |members: &[u32], writes: &[u32], cost| CoverKernel { members: members.to_vec(), writes: writes.to_vec(), cost };
    let kernels = vec![kernel(&[0, 1], &[1], 12), kernel(&[0, 2], &[2], 12), kernel(&[0, 1], &[0, 1], 16)];
    let problem = CoverProblem { dag, leaves: vec![false, true, true], alone: vec![10, 10, 10], kernels };
    let plan = cover(&problem, &[2], PackingLimits::default());
    (problem, plan)
}

#[test]
fn a_cheap_operator_is_computed_twice() {
    let (problem, plan) = exponential_twice();
    assert_eq!((plan.cost, plan.is_proven(), plan.kernels().collect::<Vec<_>>()), (24, true, vec![0, 1]));
    verify_cover(&problem, &plan).unwrap();
}

#[test]
fn a_bound_that_the_proof_does_not_show_is_refused() {
    let (problem, plan) = exponential_twice();
    let refused = |change: &dyn Fn(&mut CoverPlan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        verify_cover(&problem, &plan).expect_err("it was changed")
    };
    refused(&|plan| plan.bound += 1);
    refused(&|plan| plan.cost -= 1);
    refused(&|plan| _ = plan.steps.pop());
    refused(&|plan| plan.proof.tree = vec![BranchNode::Bounded(vec![])]);
}
