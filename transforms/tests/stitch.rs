//! Candidates of stitched kernels, on graphs that are written out and on random ones.

use std::collections::HashSet;
use transforms::stitch::{
    AccessClass, GraphOperator, GraphTensor, GrowthLimits, OperatorGraph, Savings, Sorting, explore, ladder, structure,
};

/// A graph of operators, each with a class, the operators that it reads from, and a result of some bytes; the last result leaves.
fn graph(operators: &[(AccessClass, &[u32], u64)]) -> OperatorGraph {
    let tensors = operators.iter().enumerate().map(|(n, (_, _, bytes))| GraphTensor { bytes: *bytes, leaves: n + 1 == operators.len() });
    let operator = |(n, (class, from, bytes)): (usize, &(AccessClass, &[u32], u64))| GraphOperator {
        name: format!("o{n}"),
        class: *class,
        kind: class.to_string(),
        reads: from.iter().map(|f| (*f, operators[*f as usize].2)).collect(),
        writes: vec![(n as u32, *bytes)],
        on_chip: if class.is_reduction() { from.iter().map(|f| operators[*f as usize].2).sum() } else { 0 },
    };
    OperatorGraph::new(operators.iter().enumerate().map(operator).collect(), tensors.collect()).unwrap()
}

const E: AccessClass = AccessClass::Elementwise;

/// Two products with element-wise work before, between and behind; the last operator reads from the first.
fn two_products() -> OperatorGraph {
    graph(&[
        (E, &[], 100),
        (AccessClass::Gemm, &[0], 100),
        (E, &[1], 100),
        (AccessClass::ScalarReduction, &[2], 4),
        (E, &[2, 3], 100),
        (AccessClass::Gemm, &[4], 100),
        (E, &[5, 0], 100),
        (E, &[6], 100),
    ])
}

#[test]
fn everything_between_partition_operators_is_a_pattern_and_finer_rungs_lie_within() {
    let found = ladder(&two_products(), Sorting::Earliest);
    let rungs = |rung: usize| found.patterns.iter().filter(|(r, _)| *r == rung).map(|(_, p)| p.clone()).collect::<Vec<_>>();
    assert_eq!(rungs(0), [vec![2, 3, 4], vec![6, 7]]);
    // The scalar reduction becomes a partition operator on the fourth rung: one operator is left on each side.
    assert_eq!(rungs(3), [vec![6, 7]]);
    assert_eq!(found.segments, [vec![0], vec![2, 3, 4], vec![6, 7]]);
}

#[test]
fn an_operator_that_may_wait_goes_behind_all_products_when_depth_counts_from_the_end() {
    // Two updates, each behind a product of its own; only the second product reads from the first.
    let updates = graph(&[(AccessClass::Gemm, &[], 100), (E, &[0], 100), (AccessClass::Gemm, &[0], 100), (E, &[2], 100)]);
    let together = |sorting| ladder(&updates, sorting).patterns.iter().any(|(_, p)| p == &[1, 3]);
    assert!(!together(Sorting::Earliest) && together(Sorting::Latest));
}

/// Numbers that look random and are the same everywhere.
fn random(seed: &mut u64, most: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % most
}

fn random_graph(seed: u64) -> OperatorGraph {
    let mut seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let classes = [
        E,
        E,
        E,
        E,
        AccessClass::Gemm,
        AccessClass::BatchedGemm,
        AccessClass::RowReduction,
        AccessClass::ColumnReduction,
        AccessClass::ScalarReduction,
    ];
    let count = 4 + random(&mut seed, 40) as u32;
    let mut reads: Vec<Vec<u32>> = Vec::new();
    for n in 0..count {
        let mut from: Vec<u32> = (0..random(&mut seed, 3).min(u64::from(n))).map(|_| random(&mut seed, u64::from(n)) as u32).collect();
        from.sort_unstable();
        from.dedup();
        reads.push(from);
    }
    let all: Vec<(AccessClass, &[u32], u64)> =
        reads.iter().map(|from| (classes[random(&mut seed, 9) as usize], from.as_slice(), 4 << random(&mut seed, 16))).collect();
    graph(&all)
}

/// Whether no path between members passes another operator, by following every path.
fn is_convex(graph: &OperatorGraph, members: &[u32]) -> bool {
    let inside: HashSet<u32> = members.iter().copied().collect();
    let mut outside: Vec<u32> = members.iter().flat_map(|m| graph.after(*m)).copied().filter(|o| !inside.contains(o)).collect();
    let mut seen = HashSet::new();
    while let Some(operator) = outside.pop() {
        if inside.contains(&operator) {
            return false;
        }
        if seen.insert(operator) {
            outside.extend(graph.after(operator));
        }
    }
    true
}

#[test]
fn patterns_of_a_ladder_are_convex_and_its_order_can_run() {
    for seed in 0..500 {
        let graph = random_graph(seed);
        for sorting in [Sorting::Earliest, Sorting::Latest, Sorting::Program] {
            let found = ladder(&graph, sorting);
            let mut place = vec![usize::MAX; graph.len()];
            found.order.iter().enumerate().for_each(|(at, operator)| place[*operator as usize] = at);
            assert!(graph.edges().all(|(from, to)| place[from as usize] < place[to as usize]), "seed {seed}, {sorting:?}");
            for (rung, pattern) in &found.patterns {
                let places = || pattern.iter().map(|o| place[*o as usize]);
                let span = places().max().unwrap() - places().min().unwrap() + 1;
                assert_eq!(span, pattern.len(), "seed {seed}, {sorting:?}, rung {rung}: {pattern:?} is no interval");
                assert!(is_convex(&graph, pattern), "seed {seed}, {sorting:?}, rung {rung}: {pattern:?}");
            }
        }
    }
}

#[test]
fn explored_patterns_are_convex_and_within_bounds() {
    let bounds = GrowthLimits { per_seed: 6, members: 5, seed: 0, ..GrowthLimits::default() };
    let mut all = 0;
    for seed in 0..300 {
        let graph = random_graph(seed);
        let segment: Vec<u32> = (0..graph.len() as u32).collect();
        let found = explore(&graph, &segment, bounds, &mut |_| true);
        assert!(found.len() <= 6 * graph.len());
        for pattern in &found {
            assert!(pattern.len() > 1 && pattern.len() <= 5 && is_convex(&graph, pattern), "seed {seed}: {pattern:?}");
        }
        all += found.len();
    }
    assert!(all > 3_000, "{all}");
}

#[test]
fn a_refused_pattern_does_not_grow() {
    let graph = two_products();
    let segment: Vec<u32> = (0..graph.len() as u32).collect();
    let products = |members: &[u32]| members.iter().any(|m| graph.operator(*m).class.is_product());
    let found = explore(&graph, &segment, GrowthLimits { seed: 0, ..GrowthLimits::default() }, &mut |members| !products(members));
    assert!(found.contains(&vec![2, 3]) && found.contains(&vec![6, 7]) && found.iter().all(|pattern| !products(pattern)));
}

#[test]
fn savings_are_intermediate_results_and_operands_that_several_read() {
    let graph = graph(&[(E, &[], 64), (E, &[0], 100), (E, &[0], 10), (AccessClass::RowReduction, &[1], 8), (E, &[1, 2, 3], 100)]);
    let mut savings = Savings::new(&graph);
    let whole = savings.of(&[1, 2, 3, 4]);
    // Alone: (64+100) + (64+10) + (100+8) + (100+10+8+100); together: 64 read, 100 written.
    assert_eq!((whole.bytes, whole.launches, whole.on_chip, whole.is_complex), (564 - 164, 3, 100, false));
    // The result of 1 is needed outside: it is written all the same, and read once less.
    assert_eq!(savings.of(&[1, 3]).bytes, 100);
    assert_eq!(savings.of(&[3, 4]).on_chip, 100);
    assert_eq!(savings.of(&[1, 2]).bytes, 64);
}

#[test]
fn equal_patterns_have_equal_structures() {
    let twins = graph(&[(E, &[], 64), (E, &[0], 64), (E, &[], 64), (E, &[2], 64), (E, &[1, 3], 64)]);
    assert_eq!(structure(&twins, &[0, 1]), structure(&twins, &[2, 3]));
    // The same, but what leaves differs.
    assert_ne!(structure(&twins, &[0, 1]), structure(&twins, &[3, 4]));
}
