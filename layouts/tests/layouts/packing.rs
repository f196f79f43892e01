//! Plans of fusion against every plan there is, on random graphs; and certificates that were tampered with.

use layouts::packing::certificate::ProofStep;
use layouts::packing::problem::{FusionPattern, PackingProblem};
use layouts::packing::verify::{PackingVerifyError, verify};
use layouts::packing::{Dag, PackingLimits, PackingPlan, greedy, plan};

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

/// A graph of at most 14 operators with up to 18 patterns: intervals, neighbourhoods and arbitrary sets, some of them worth less than
/// nothing, some not convex.
fn random(seed: u64) -> (PackingProblem, Vec<FusionPattern>) {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let operators = 3 + numbers.below(12);
    let density = 1 + numbers.below(5);
    let mut edges = Vec::new();
    for to in 1..operators {
        for from in 0..to {
            if numbers.below(10) < density && to - from < 6 {
                edges.push((from as u32, to as u32));
            }
        }
    }
    let dag = Dag::in_order(operators as usize, edges).unwrap();
    let intervals_alone = numbers.below(4) == 0;
    let patterns: Vec<FusionPattern> = (0..2 + numbers.below(17))
        .map(|_| {
            let members = if intervals_alone || numbers.below(3) == 0 {
                let begin = numbers.below(operators - 1);
                (begin..(begin + 2 + numbers.below(4)).min(operators)).map(|m| m as u32).collect()
            } else {
                (0..2 + numbers.below(4)).map(|_| numbers.below(operators) as u32).collect()
            };
            FusionPattern { members, score: numbers.below(1_000_000) as i64 * 997 - 100_000_000 }
        })
        .collect();
    (PackingProblem::new(dag, patterns.clone()), patterns)
}

/// Whether the graph in which each set is one node has no cycle: reachability by repeated squaring of the adjacency.
fn acyclic(dag: &Dag, sets: &[u16]) -> bool {
    let operators = dag.operators();
    let node = |o: u32| sets.iter().position(|s| s >> o & 1 == 1).map_or(sets.len() + o as usize, |n| n);
    let nodes = sets.len() + operators;
    let mut reaches = vec![0u64; nodes];
    for (from, to) in dag.edges() {
        let (a, b) = (node(*from), node(*to));
        if a != b {
            reaches[a] |= 1 << b;
        }
    }
    for _ in 0..nodes {
        for n in 0..nodes {
            let through = (0..nodes).filter(|m| reaches[n] >> m & 1 == 1).fold(0, |all, m| all | reaches[m]);
            reaches[n] |= through;
        }
    }
    (0..nodes).all(|n| reaches[n] >> n & 1 == 0)
}

/// The best plan by trying all, from all patterns that were offered, dropped ones too.
fn brute(dag: &Dag, patterns: &[FusionPattern]) -> i64 {
    fn rest(dag: &Dag, patterns: &[(u16, i64)], at: usize, taken: u16, chosen: &mut Vec<u16>, total: i64, best: &mut i64) {
        let left: i64 = patterns[at..].iter().map(|(_, score)| score.max(&0)).sum();
        if total + left <= *best {
            return;
        }
        if at == patterns.len() {
            if acyclic(dag, chosen) {
                *best = total;
            }
            return;
        }
        let (set, score) = patterns[at];
        if set & taken == 0 {
            chosen.push(set);
            rest(dag, patterns, at + 1, taken | set, chosen, total + score, best);
            chosen.pop();
        }
        rest(dag, patterns, at + 1, taken, chosen, total, best);
    }
    let sets: Vec<(u16, i64)> = patterns
        .iter()
        .map(|p| (p.members.iter().fold(0u16, |set, m| set | 1 << m), p.score))
        .filter(|(set, _)| set.count_ones() > 1)
        .collect();
    let mut best = 0;
    rest(dag, &sets, 0, 0, &mut Vec::new(), 0, &mut best);
    best
}

#[test]
fn plans_are_the_best_of_all_on_ten_thousand_random_graphs() {
    let (mut cuts, mut joined, mut better) = (0, 0, 0);
    for seed in 0..10_000 {
        let (problem, offered) = random(seed);
        let found = plan(&problem, PackingLimits::default());
        assert_eq!(found.total, brute(&problem.dag, &offered), "seed {seed}");
        assert!(found.is_proven(), "seed {seed}");
        assert!(found.total >= found.greedy_total, "seed {seed}");
        assert_eq!(verify(&problem, &found.certificate), Ok(()), "seed {seed}");
        cuts += usize::from(found.statistics.cuts > 0);
        joined += usize::from(found.statistics.joined > 0);
        better += usize::from(found.total > found.greedy_total);
    }
    // The graphs are hard enough that every part of the planner works.
    assert!(cuts > 200 && joined > 30 && better > 1000, "{cuts} with cuts, {joined} joined, {better} better than greedy");
}

#[test]
fn a_search_that_ends_early_has_a_certificate_of_the_bound_that_holds() {
    let mut short = 0;
    for seed in 0..500 {
        let (problem, offered) = random(seed);
        let found = plan(&problem, PackingLimits { nodes: 1, pivots: 2 });
        let best = brute(&problem.dag, &offered);
        assert!(found.total <= best && best <= found.bound, "seed {seed}");
        assert_eq!(verify(&problem, &found.certificate), Ok(()), "seed {seed}");
        short += usize::from(!found.is_proven());
    }
    assert!(short > 20, "{short}");
}

#[test]
fn greedy_plans_are_plans() {
    for seed in 0..2_000 {
        let (problem, _) = random(seed);
        let sets: Vec<u16> =
            greedy(&problem).iter().map(|p| problem.patterns[*p as usize].members.iter().fold(0u16, |set, m| set | 1 << m)).collect();
        assert!(acyclic(&problem.dag, &sets) && sets.iter().map(|s| s.count_ones()).sum::<u32>() <= 14, "seed {seed}");
    }
}

/// The first random problem whose plan is such.
fn example(is: impl Fn(&PackingProblem, &PackingPlan) -> bool) -> (PackingProblem, PackingPlan) {
    (0..)
        .map(|seed| {
            let (problem, _) = random(seed);
            let found = plan(&problem, PackingLimits::default());
            (problem, found)
        })
        .find(|(problem, found)| is(problem, found))
        .unwrap()
}

#[test]
fn tampered_certificates_are_refused() {
    let (problem, found) = example(|_, plan| plan.statistics.cuts > 0 && plan.statistics.nodes > 2 && plan.chosen.len() > 1);
    let good = &found.certificate;
    let refused = |what: &str, change: &dyn Fn(&mut layouts::packing::PackingCertificate)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert_ne!(&bad, good, "{what} changes nothing");
        verify(&problem, &bad).expect_err(what)
    };
    assert!(matches!(refused("a higher total", &|c| c.total_ps += 1), PackingVerifyError::Total { .. }));
    assert!(matches!(refused("a lower bound", &|c| c.bound_ps -= 1), PackingVerifyError::Bound { .. }));
    assert!(matches!(refused("another format", &|c| c.format += 1), PackingVerifyError::Format { .. }));
    assert!(matches!(refused("another problem", &|c| c.problem.push('0')), PackingVerifyError::OtherProblem));
    assert!(matches!(refused("a pattern twice", &|c| c.chosen.push(c.chosen[0])), PackingVerifyError::NoPlan(_)));
    assert!(matches!(refused("no pattern", &|c| c.chosen.push(10_000)), PackingVerifyError::NoPlan(_)));
    assert!(matches!(refused("a pattern less", &|c| _ = c.chosen.pop()), PackingVerifyError::Total { .. }));
    let cut = |c: &layouts::packing::PackingCertificate| c.parts.iter().position(|part| !part.cuts.is_empty()).unwrap();
    refused("an edge that is none", &|c| {
        let part = cut(c);
        let edge = &mut c.parts[part].cuts[0].cycle[0];
        *edge = (edge.1, edge.0);
    });
    refused("a cut of all patterns", &|c| {
        let part = cut(c);
        c.parts[part].cuts[0].patterns = (0..c.parts[part].members.len() as u32).collect();
    });
    refused("a cut along no cycle", &|c| {
        let part = cut(c);
        c.parts[part].cuts[0].cycle.pop();
    });
    refused("a part without proof", &|c| c.parts[0].steps.clear());
    refused("a part left out", &|c| _ = c.instances.pop());
    refused("a part that is there twice", &|c| c.instances.push(c.instances[0].clone()));
    refused("a pattern with another score", &|c| c.parts[0].scores[0] -= 1);
    refused("a pattern with other members", &|c| _ = c.parts[0].members[0].pop());
    let steps = |c: &mut layouts::packing::PackingCertificate, change: &dyn Fn(&mut ProofStep)| {
        c.parts.iter_mut().flat_map(|part| &mut part.steps).for_each(change);
    };
    refused("no prices", &|c| {
        steps(c, &|step| {
            if let ProofStep::Bounded { operators, cuts } = step {
                operators.clear();
                cuts.clear();
            }
        })
    });
    refused("negative prices", &|c| {
        steps(c, &|step| {
            if let ProofStep::Bounded { operators, .. } = step {
                operators.iter_mut().for_each(|(_, price)| *price = -*price - 1);
            }
        })
    });
    refused("a branch that is left out", &|c| {
        steps(c, &|step| {
            if let ProofStep::Split { taken, left, .. } = step {
                *taken = *left;
            }
        })
    });
    refused("a proof in a circle", &|c| {
        steps(c, &|step| {
            if let ProofStep::Split { taken, .. } = step {
                *taken = 0;
            }
        })
    });
}

#[test]
fn kernels_that_would_wait_for_one_another_are_cut() {
    // 0 → 2 → 1 → 3 → 0 once {0, 3'} … : two patterns, each convex, that cannot both be chosen.
    let dag = Dag::in_order(4, [(0, 2), (1, 3)]).unwrap();
    let pattern = |members: &[u32], score| FusionPattern { members: members.to_vec(), score };
    let problem = PackingProblem::new(dag, [pattern(&[0, 3], 5), pattern(&[1, 2], 4)]);
    let found = plan(&problem, PackingLimits::default());
    assert_eq!((found.chosen.as_slice(), found.total, found.bound), (&[0][..], 5, 5));
    assert_eq!((found.statistics.joined, found.statistics.cuts), (1, 1));
    assert_eq!(verify(&problem, &found.certificate), Ok(()));
}

#[test]
fn candidates_that_are_none_are_dropped() {
    // 0 → 1 → 2: a kernel of the ends would wait for itself.
    let dag = Dag::in_order(3, [(0, 1), (1, 2)]).unwrap();
    let pattern = |members: &[u32], score| FusionPattern { members: members.to_vec(), score };
    let all = [pattern(&[0, 2], 9), pattern(&[0, 1], -1), pattern(&[1, 2], 3), pattern(&[2, 1], 4), pattern(&[1], 5), pattern(&[1, 7], 5)];
    let problem = PackingProblem::new(dag, all);
    assert_eq!(problem.patterns, [pattern(&[1, 2], 4)]);
    let dropped = problem.dropped;
    assert_eq!((dropped.negative, dropped.not_convex, dropped.repeated, dropped.empty), (1, 1, 1, 2));
}

#[test]
fn equal_segments_are_solved_once() {
    // A thousand copies of one segment behind one another: a chain in which every neighbour may be fused.
    let segment = 6u32;
    let operators = 1000 * segment;
    let dag = Dag::in_order(operators as usize, (1..operators).map(|n| (n - 1, n))).unwrap();
    let patterns = (0..1000).flat_map(|n| {
        let own = move |members: &[u32], score| FusionPattern { members: members.iter().map(|m| n * segment + m).collect(), score };
        [own(&[0, 1, 2], 70), own(&[0, 1], 40), own(&[1, 2, 3], 60), own(&[2, 3], 50), own(&[3, 4, 5], 65)]
    });
    let problem = PackingProblem::new(dag, patterns);
    let found = plan(&problem, PackingLimits::default());
    assert_eq!((found.statistics.parts, found.statistics.unique_parts, found.statistics.by_intervals), (1000, 1, 1));
    assert_eq!((found.total, found.is_proven()), (1000 * 135, true));
    assert_eq!(verify(&problem, &found.certificate), Ok(()));
}
